import numpy as np
import pytest

from edgeinfer.convert.passes.fuse_silu import FuseSilu
from tests.convert.passes.fusing import check_fused, check_left_alone

HEAD = "g (float[4,16] x) => (float[4,16] y) "
X = (8 * np.random.default_rng(0).standard_normal((4, 16))).astype(np.float32)


@pytest.mark.parametrize(
    "body",
    [
        "{ s = Sigmoid(x) y = Mul(x, s) }",
        "{ s = Sigmoid(x) y = Mul(s, x) }",
        "<float one = {1}> { n = Neg(x) e = Exp(n) a = Add(e, one) y = Div(x, a) }",
    ],
)
def test_a_value_times_its_sigmoid_becomes_swish(body: str) -> None:
    wide = X.astype(np.float64)
    model = check_fused(
        HEAD + body, [FuseSilu()], {"Swish": 1}, {"x": X}, wide / (1 + np.exp(-wide))
    )
    assert model.graph.node(0).attributes.get_float("alpha") == 1.0


@pytest.mark.parametrize("body", ["a = Mul(x, c)", "a = Mul(c, x)"])
def test_a_scaled_sigmoid_gives_alpha(body: str) -> None:
    wide = X.astype(np.float64)
    text = HEAD + "<float c = {1.702}> { " + body + " s = Sigmoid(a) y = Mul(x, s) }"
    expected = wide / (1 + np.exp(-1.702 * wide))
    model = check_fused(text, [FuseSilu()], {"Swish": 1}, {"x": X}, expected)
    assert model.graph.node(0).attributes.get_float("alpha") == pytest.approx(1.702)


def test_extreme_values_stay_what_they_are() -> None:
    x = np.array([1e30, 200, 88, -88, -1e-30, 0, np.nan], np.float32)
    text = "g (float[7] x) => (float[7] y) { s = Sigmoid(x) y = Mul(x, s) }"
    check_fused(text, [FuseSilu()], {"Swish": 1}, {"x": x})


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "{ r = Relu(x) s = Sigmoid(x) y = Mul(r, s) }",
        HEAD + "<float[16] c> { a = Mul(x, c) s = Sigmoid(a) y = Mul(x, s) }",
        HEAD + "<float c = {2}> { s = Sigmoid(x) m = Mul(x, s) n = Mul(m, c) y = Mul(n, s) }",
        HEAD.replace("=> (", "=> (float[4,16] s, ") + "{ s = Sigmoid(x) y = Mul(x, s) }",
        "g (float16[4] x) => (float16[4] y) { s = Sigmoid(x) y = Mul(x, s) }",
    ],
    ids=["other value", "array", "used twice", "output inside", "half precision"],
)
def test_what_is_no_swish_is_left_alone(text: str) -> None:
    check_left_alone(
        text.replace("float[16] c", "float[16] c = {" + ", ".join("1" * 16) + "}"), FuseSilu()
    )
