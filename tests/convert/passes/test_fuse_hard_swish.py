import numpy as np
import pytest

from edgeinfer.convert.passes.fuse_hard_swish import FuseHardSigmoid, FuseHardSwish
from tests.convert.passes.fusing import check_fused, check_left_alone

HEAD = "g (float[4,16] x) => (float[4,16] y) "
CONSTANTS = (
    "<float zero = {0}, float one = {1}, float three = {3}, float six = {6},"
    " float sixth = {0.16666667}, float half = {0.5}> "
)
X = (3 * np.random.default_rng(0).standard_normal((4, 16))).astype(np.float32)
X[0, :6] = [-3, 3, -2.9999998, 2.9999998, 0, -1e-30]
BOTH = [FuseHardSwish(), FuseHardSigmoid()]

CLIPS = {
    "clip": "c = Clip(a, zero, six)",
    "min of max": "b = Max(a, zero) c = Min(b, six)",
    "max of min": "b = Min(six, a) c = Max(b, zero)",
    "relu6": "b = Relu(a) c = Min(b, six)",
    "relu and clip": "b = Relu(a) c = Clip(b, zero, six)",
}
SWISHES = {
    "torch": "m = Mul(x, c) y = Div(m, six)",
    "gate first": "m = Div(c, six) y = Mul(x, m)",
    "inverse": "m = Mul(c, sixth) y = Mul(m, x)",
    "value first": "m = Mul(x, sixth) y = Mul(c, m)",
}


def gate() -> np.ndarray:
    return np.clip(X.astype(np.float64) + 3, 0, 6) / 6


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("swish", SWISHES)
def test_a_gated_value_becomes_hard_swish(clip: str, swish: str) -> None:
    text = HEAD + CONSTANTS + f"{{ a = Add(x, three) {CLIPS[clip]} {SWISHES[swish]} }}"
    check_fused(text, BOTH, {"HardSwish": 1}, {"x": X}, X * gate())


def test_a_value_times_its_hard_sigmoid_becomes_hard_swish() -> None:
    text = HEAD + "{ h = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) y = Mul(h, x) }"
    check_fused(text, BOTH, {"HardSwish": 1}, {"x": X}, X * gate())


def test_a_hard_sigmoid_of_another_slope_stays() -> None:
    check_left_alone(HEAD + "{ h = HardSigmoid(x) y = Mul(h, x) }", *BOTH)


@pytest.mark.parametrize("clip", CLIPS)
def test_a_clipped_line_becomes_hard_sigmoid(clip: str) -> None:
    text = HEAD + CONSTANTS + f"{{ a = Add(x, three) {CLIPS[clip]} y = Div(c, six) }}"
    check_fused(text, BOTH, {"HardSigmoid": 1}, {"x": X}, gate())


def test_slope_and_offset_are_taken_over() -> None:
    text = HEAD + (
        "<float k = {0.2}, float half = {0.5}, float zero = {0}, float one = {1}>"
        " { m = Mul(x, k) a = Add(m, half) y = Clip(a, zero, one) }"
    )
    expected = np.clip(0.2 * X.astype(np.float64) + 0.5, 0, 1)
    model = check_fused(text, BOTH, {"HardSigmoid": 1}, {"x": X}, expected)
    assert model.graph.node(0).attributes.get_float("alpha") == pytest.approx(0.2)


@pytest.mark.parametrize(
    "body",
    [
        "{ a = Add(x, three) c = Clip(a, zero, three) m = Mul(x, c) y = Div(m, six) }",
        "{ a = Add(x, one) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six) }",
        "{ a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, three) }",
        "{ a = Add(x, three) c = Clip(a, , six) m = Mul(x, c) y = Div(m, six) }",
        "{ r = Relu(x) a = Add(x, three) c = Clip(a, zero, six) m = Mul(r, c) y = Div(m, three) }",
        "{ m = Mul(x, half) y = Clip(m, zero, one) }",
        "{ n = Neg(x) m = Mul(x, n) a = Add(m, half) y = Clip(a, zero, three) }",
    ],
)
def test_what_only_looks_like_it_is_left_alone(body: str) -> None:
    check_left_alone(HEAD + CONSTANTS + body, *BOTH)


def test_an_inner_value_that_is_an_output_is_left_alone() -> None:
    text = HEAD.replace("=> (", "=> (float[4,16] a, ") + CONSTANTS
    body = "{ a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six) }"
    check_left_alone(text + body, *BOTH)
