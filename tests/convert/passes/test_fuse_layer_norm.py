import numpy as np
import pytest

from edgeinfer.convert.passes.fuse_layer_norm import AbsorbLayerNormScale, FuseLayerNorm
from edgeinfer.types import Array
from tests.convert.passes.fusing import check_fused, check_left_alone, graph, ops

RNG = np.random.default_rng(0)
X = (3 * RNG.standard_normal((2, 5, 4)) + 1).astype(np.float32)
BOTH = [FuseLayerNorm(), AbsorbLayerNormScale()]
HEAD = "g (float[N,5,4] x) => (float[N,5,4] y) "
CONSTANTS = (
    "<int64[1] last = {-1}, int64[2] two_last = {-2, -1}, int64[1] middle = {1},"
    " float two = {2}, float eps = {1e-5}, float minus_half = {-0.5}, float half = {0.5},"
    " float one = {1}, float[4] w = {1, 2, 3, 0.5}, float[4] b = {0.1, 0.2, 0.3, 0.4}> "
)
STATISTICS = (
    "m = ReduceMean(x, last) d = Sub(x, m) p = Pow(d, two) v = ReduceMean(p, last)"
    " e = Add(v, eps) s = Sqrt(e) "
)
W, B = np.array([1, 2, 3, 0.5]), np.array([0.1, 0.2, 0.3, 0.4])
ONE = {"LayerNormalization": 1}


def bits(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def normal(x: Array, axes: tuple[int, ...] = (-1,), eps: float = 1e-5) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axes, keepdims=True) + eps))


@pytest.mark.parametrize(
    "body",
    [
        STATISTICS + "y = Div(d, s)",
        STATISTICS + "r = Reciprocal(s) y = Mul(d, r)",
        STATISTICS + "r = Div(one, s) y = Mul(r, d)",
        STATISTICS.replace("p = Pow(d, two)", "p = Mul(d, d)") + "y = Div(d, s)",
        STATISTICS.replace("s = Sqrt(e)", "s = Pow(e, half)") + "y = Div(d, s)",
        STATISTICS.replace("s = Sqrt(e)", "r = Pow(e, minus_half)") + "y = Mul(d, r)",
    ],
)
def test_the_formula_becomes_one_node(body: str) -> None:
    check_fused(HEAD + CONSTANTS + f"{{ {body} }}", BOTH, ONE, {"x": X}, normal(X))


def test_several_trailing_axes_are_taken_in_any_order() -> None:
    text = HEAD + CONSTANTS + f"{{ {STATISTICS} y = Div(d, s) }}"
    text = text.replace("last)", "two_last)").replace("{-2, -1}", "{2, 1}")
    model = check_fused(text, BOTH, ONE, {"x": X}, normal(X, (1, 2)))
    assert model.graph.node(0).attributes.get_int("axis") == -2


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("n = Div(d, s) t = Mul(n, w) y = Add(t, b)", W * normal(X) + B),
        ("n = Div(d, s) t = Mul(w, n) y = Add(b, t)", W * normal(X) + B),
        ("n = Div(d, s) y = Mul(n, w)", W * normal(X)),
        ("n = Div(d, s) y = Add(n, b)", normal(X) + B),
        ("n = Div(d, s) t = Add(n, b) y = Mul(t, w)", W * (normal(X) + B)),
        ("n = Div(d, s) t = Mul(n, two) y = Add(t, one)", 2 * normal(X) + 1),
    ],
)
def test_scale_and_bias_are_taken_in(tail: str, expected: Array) -> None:
    check_fused(HEAD + CONSTANTS + f"{{ {STATISTICS} {tail} }}", BOTH, ONE, {"x": X}, expected)


HALF = (
    "g (float16[2,5,4] x) => (float16[2,5,4] y) <int64[1] last = {-1},"
    f" float16 two = {{{bits(2.0)}}}, float16 eps = {{{bits(1e-5)}}},"
    f" float16[4] w = {{{', '.join(str(bits(v)) for v in W)}}}> "
)


@pytest.mark.parametrize(
    ("tail", "left"),
    [
        ("y = Div(d, s)", {}),
        ("n = Div(d, s) t = Mul(n, w) y = Add(t, w)", {}),
        ("n = Div(d, s) t = Mul(n, w) y = Mul(t, w)", {"Mul": 1}),
        ("n = Div(d, s) t = Add(n, w) y = Mul(t, w)", {"Mul": 1}),
        ("n = Div(d, s) t = Add(n, w) y = Add(t, w)", {"Add": 1}),
    ],
)
def test_half_precision_is_fused_where_no_constants_are_joined(
    tail: str, left: dict[str, int]
) -> None:
    model = graph(f"{HALF} {{ {STATISTICS} {tail} }}")
    for step in BOTH:
        step(model)
    assert ops(model) == ONE | left


@pytest.mark.parametrize("shape", ["1,1,4", "1,4"])
def test_a_scale_with_leading_ones_is_taken_in(shape: str) -> None:
    text = HEAD + CONSTANTS.replace("float[4] w", f"float[{shape}] w")
    body = f"{{ {STATISTICS} n = Div(d, s) y = Mul(n, w) }}"
    check_fused(text + body, BOTH, ONE, {"x": X}, W * normal(X))


def test_a_computed_scale_and_bias_are_taken_in() -> None:
    head = "g (float[N,5,4] x, float[4] u, float[4] c) => (float[N,5,4] y) "
    body = f"{{ {STATISTICS} n = Div(d, s) t = Mul(n, u) y = Add(t, c) }}"
    feeds = {"x": X, "u": W.astype(np.float32), "c": B.astype(np.float32)}
    check_fused(head + CONSTANTS + body, BOTH, ONE, feeds, W * normal(X) + B)


def test_a_scale_of_other_axes_stays_outside() -> None:
    text = HEAD + CONSTANTS.replace("{1, 2, 3, 0.5}", "{1, 2, 3, 0.5, 7}")
    text = (
        text.replace("float[4] w", "float[5,1] w")
        + f"{{ {STATISTICS} n = Div(d, s) y = Mul(n, w) }}"
    )
    expected = np.array([1, 2, 3, 0.5, 7])[:, None] * normal(X)
    check_fused(text, BOTH, ONE | {"Mul": 1}, {"x": X}, expected)


def test_a_scale_that_raises_the_rank_stays_outside() -> None:
    text = HEAD.replace("=> (float[N,5,4] y)", "=> (y)") + CONSTANTS
    text = text.replace("float[4] w", "float[1,1,1,4] w")
    text += f"{{ {STATISTICS} n = Div(d, s) y = Mul(n, w) }}"
    check_fused(text, BOTH, ONE | {"Mul": 1}, {"x": X}, (W * normal(X))[None])


def test_a_residual_after_it_stays_outside() -> None:
    text = HEAD + CONSTANTS + f"{{ {STATISTICS} n = Div(d, s) y = Add(n, x) }}"
    check_fused(text, BOTH, ONE | {"Add": 1}, {"x": X}, normal(X) + X)


def test_a_normal_value_with_two_readers_keeps_its_scale_outside() -> None:
    text = HEAD.replace("=> (", "=> (float[N,5,4] n, ") + CONSTANTS
    body = f"{{ {STATISTICS} n = Div(d, s) y = Mul(n, w) }}"
    check_fused(text + body, BOTH, ONE | {"Mul": 1}, {"x": X}, normal(X))


def test_a_quotient_of_the_normal_value_is_no_scale() -> None:
    check_left_alone(
        "g (float[2,4] x, float[4] w) => (float[2,4] y) "
        "{ n = LayerNormalization(x, w) y = Div(n, w) }",
        *BOTH,
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v = ReduceMean(p, last)", "v = ReduceMean(p, two_last)"),
        ("v = ReduceMean(p, last)", "v = ReduceSum(p, last)"),
        ("p = Pow(d, two)", "p = Pow(d, one)"),
        ("d = Sub(x, m)", "d = Sub(m, x)"),
        ("e = Add(v, eps)", "e = Sub(v, eps)"),
        ("s = Sqrt(e)", "s = Exp(e)"),
    ],
)
def test_other_statistics_are_left_alone(old: str, new: str) -> None:
    assert old in STATISTICS
    body = f"{{ {STATISTICS.replace(old, new)} y = Div(d, s) }}"
    check_left_alone(HEAD + CONSTANTS + body, *BOTH)


def test_axes_that_are_not_the_last_ones_are_left_alone() -> None:
    body = f"{{ {STATISTICS} y = Div(d, s) }}".replace("last)", "middle)")
    check_left_alone(HEAD + CONSTANTS + body, *BOTH)


def test_axes_of_unknown_size_are_left_alone() -> None:
    head = "g (float[N,5,C] x) => (float[N,5,C] y) "
    check_left_alone(head + CONSTANTS + f"{{ {STATISTICS} y = Div(d, s) }}", *BOTH)


@pytest.mark.parametrize("kept", ["m", "d", "v", "s"])
def test_an_inner_value_that_is_an_output_is_left_alone(kept: str) -> None:
    head = f"g (float[N,5,4] x) => (float[N,5,4] y, {kept}) "
    check_left_alone(head + CONSTANTS + f"{{ {STATISTICS} y = Div(d, s) }}", *BOTH)


def test_the_channel_first_form_keeps_its_transposes() -> None:
    text = (
        "g (float[2,4,3,3] i) => (float[2,4,3,3] o) "
        + CONSTANTS
        + "{ x = Transpose<perm=[0,2,3,1]>(i) "
        f"{STATISTICS} n = Div(d, s) t = Mul(n, w) y = Add(t, b)"
        " o = Transpose<perm=[0,3,1,2]>(y) }"
    )
    feeds = {"i": RNG.standard_normal((2, 4, 3, 3)).astype(np.float32)}
    check_fused(text, BOTH, ONE | {"Transpose": 2}, feeds)
