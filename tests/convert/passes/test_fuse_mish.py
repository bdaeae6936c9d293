import numpy as np
import pytest

from edgeinfer.convert.passes.fuse_mish import FuseMish, FuseSoftplus
from tests.convert.passes.fusing import check_fused, check_left_alone

HEAD = "g (float[4,16] x) => (float[4,16] y) <float limit = {20}, float one = {1}> "
X = (9 * np.random.default_rng(0).standard_normal((4, 16))).astype(np.float32)
X[0, :4] = [0, 20, 20.000002, 90]

GUARD = "p = Softplus(x) g = Greater(x, limit) s = Where(g, x, p)"


def softplus() -> np.ndarray:
    return np.logaddexp(X.astype(np.float64), 0)


@pytest.mark.parametrize(
    "body",
    [
        "p = Softplus(x) t = Tanh(p) y = Mul(x, t)",
        "p = Softplus(x) t = Tanh(p) y = Mul(t, x)",
        GUARD + " t = Tanh(s) y = Mul(x, t)",
        "e = Exp(x) a = Add(e, one) p = Log(a) t = Tanh(p) y = Mul(x, t)",
    ],
)
@pytest.mark.parametrize("passes", [[FuseMish()], [FuseSoftplus(), FuseMish()]])
def test_the_formula_becomes_mish(body: str, passes: list[FuseMish]) -> None:
    expected = X * np.tanh(softplus())
    check_fused(HEAD + f"{{ {body} }}", list(passes), {"Mish": 1}, {"x": X}, expected)


def test_a_guarded_softplus_loses_its_guard() -> None:
    text = HEAD + f"{{ {GUARD} y = Neg(s) }}"
    check_fused(text, [FuseSoftplus()], {"Softplus": 1, "Neg": 1}, {"x": X}, -softplus())


def test_the_formula_of_softplus_becomes_it() -> None:
    text = HEAD + "{ e = Exp(x) a = Add(one, e) y = Log(a) }"
    check_fused(text, [FuseSoftplus()], {"Softplus": 1}, {"x": np.minimum(X, 80)})


@pytest.mark.parametrize(
    "body",
    [
        "r = Relu(x) p = Softplus(x) t = Tanh(p) y = Mul(r, t)",
        "e = Exp(x) a = Add(e, limit) y = Log(a)",
        "p = Softplus(x) g = Greater(x, one) y = Where(g, x, p)",
        "p = Softplus(x) g = Less(x, limit) y = Where(g, x, p)",
        "p = Sigmoid(x) t = Tanh(p) y = Mul(x, t)",
    ],
    ids=["other value", "another addend", "low guard", "other side", "sigmoid"],
)
def test_what_only_looks_like_it_is_left_alone(body: str) -> None:
    check_left_alone(HEAD + f"{{ {body} }}", FuseSoftplus(), FuseMish())


def test_an_inner_value_with_another_reader_is_left_alone() -> None:
    text = HEAD.replace("=> (", "=> (float[4,16] z, ")
    check_left_alone(text + "{ p = Softplus(x) t = Tanh(p) y = Mul(x, t) z = Neg(t) }", FuseMish())
