import numpy as np
import pytest

from edgeinfer.convert.passes.fuse_leaky_relu import FuseLeakyRelu
from tests.convert.passes.fusing import check_fused, check_left_alone

HEAD = "g (float[4,8] x) => (float[4,8] y) "
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
X[0] = [0, -0.0, np.inf, -np.inf, np.nan, 1e-38, -1e-38, 3e38]


@pytest.mark.parametrize(
    ("alpha", "join"),
    [
        (0.2, "y = Max(x, a)"),
        (0.2, "y = Max(a, x)"),
        (1.5, "y = Min(x, a)"),
        (0.3, "g = Greater(x, zero) y = Where(g, x, a)"),
        (-0.3, "g = GreaterOrEqual(x, zero) y = Where(g, x, a)"),
        (2.0, "g = Less(x, zero) y = Where(g, a, x)"),
        (0.3, "g = LessOrEqual(x, zero) y = Where(g, a, x)"),
    ],
)
def test_a_bent_line_becomes_leaky_relu(alpha: float, join: str) -> None:
    text = HEAD + f"<float c = {{{alpha}}}, float zero = {{0}}> {{ a = Mul(x, c) {join} }}"
    wide = X.astype(np.float64)
    expected = np.where(wide < 0, np.float64(np.float32(alpha)) * wide, wide)
    check_fused(text, [FuseLeakyRelu()], {"LeakyRelu": 1}, {"x": X})
    finite = X[1:]
    text = text.replace("4,8", "3,8")
    check_fused(text, [FuseLeakyRelu()], {"LeakyRelu": 1}, {"x": finite}, expected[1:])


@pytest.mark.parametrize(
    ("alpha", "join"),
    [
        (1.5, "y = Max(x, a)"),
        (-0.2, "y = Max(x, a)"),
        (0.0, "y = Max(x, a)"),
        (0.5, "y = Min(x, a)"),
        (0.0, "g = Greater(x, zero) y = Where(g, x, a)"),
        (0.3, "g = Greater(x, zero) y = Where(g, a, x)"),
        (0.3, "r = Neg(x) y = Max(r, a)"),
        (0.3, "y = Max(x, a, zero)"),
    ],
)
def test_another_bend_is_left_alone(alpha: float, join: str) -> None:
    text = HEAD + f"<float c = {{{alpha}}}, float zero = {{0}}> {{ a = Mul(x, c) {join} }}"
    check_left_alone(text, FuseLeakyRelu())


def test_a_slope_for_each_channel_is_left_alone() -> None:
    text = HEAD + "<float[8] c = {0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8}> { a = Mul(x, c) y = Max(x, a) }"
    check_left_alone(text, FuseLeakyRelu())


def test_integers_are_left_alone() -> None:
    text = "g (int32[4] x) => (int32[4] y) <int32 c = {2}> { a = Mul(x, c) y = Min(x, a) }"
    check_left_alone(text, FuseLeakyRelu())


def test_an_inner_value_that_is_an_output_is_left_alone() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] a) <float c = {0.2}> "
    check_left_alone(text + "{ a = Mul(x, c) y = Max(x, a) }", FuseLeakyRelu())
