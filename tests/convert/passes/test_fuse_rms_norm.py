import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.fuse_rms_norm import AbsorbRmsNormScale, FuseRmsNorm
from edgeinfer.types import Array
from tests.convert.passes.fusing import check_fused, check_left_alone, graph, ops

X = (3 * np.random.default_rng(0).standard_normal((2, 5, 4))).astype(np.float32)
BOTH = [FuseRmsNorm(), AbsorbRmsNormScale()]
HEAD = "g (float[N,5,4] x) => (float[N,5,4] y) "
CONSTANTS = (
    "<int64[1] last = {-1}, int64[1] middle = {1}, float two = {2}, float eps = {1e-6},"
    " float one = {1}, float[4] w = {1, 2, 3, 0.5}> "
)
ROOT = "p = Pow(x, two) v = ReduceMean(p, last) e = Add(v, eps) s = Sqrt(e) "
W = np.array([1, 2, 3, 0.5])
ONE = {"RMSNormalization": 1}
HALF = (
    "g (float16[N,5,4] h) => (float16[N,5,4] y) <int64[1] last = {-1}, float two = {2},"
    " float eps = {1e-6}, float16[4] w = {15360, 16384, 16896, 14336}> "
    "{ x = Cast<to = 1>(h) " + ROOT + "n = Div(x, s) c = Cast<to = 10>(n) y = Mul(w, c) }"
)


def normal(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6))


@pytest.mark.parametrize(
    "tail",
    [
        "y = Div(x, s)",
        "r = Reciprocal(s) y = Mul(x, r)",
        "r = Div(one, s) y = Mul(r, x)",
    ],
)
def test_the_formula_becomes_one_node(tail: str) -> None:
    check_fused(HEAD + CONSTANTS + f"{{ {ROOT} {tail} }}", BOTH, ONE, {"x": X}, normal(X))


@pytest.mark.parametrize("tail", ["y = Mul(n, w)", "y = Mul(w, n)"])
def test_the_scale_is_taken_in(tail: str) -> None:
    text = HEAD + CONSTANTS + f"{{ {ROOT} r = Reciprocal(s) n = Mul(x, r) {tail} }}"
    check_fused(text, BOTH, ONE, {"x": X}, W * normal(X))


def test_a_sum_after_it_stays_outside() -> None:
    text = HEAD + CONSTANTS + f"{{ {ROOT} n = Div(x, s) y = Add(n, w) }}"
    check_fused(text, BOTH, ONE | {"Add": 1}, {"x": X}, W + normal(X))


def test_half_precision_between_casts_is_fused_as_it_is_computed() -> None:
    model = graph(HALF)
    for step in BOTH:
        assert step(model).modified
    assert ops(model) == ONE
    node = model.graph.node(0)
    assert node.attributes.get_int("stash_type") == 1
    assert [v.name for v in node.inputs if v is not None] == ["h", "w"]
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT16


def test_a_widened_value_with_other_readers_stays_for_them() -> None:
    text = HALF.replace("=> (", "=> (float[N,5,4] z, ").replace(" y = Mul", " z = Neg(x) y = Mul")
    model = graph(text)
    for step in BOTH:
        step(model)
    assert ops(model) == ONE | {"Cast": 1, "Neg": 1}


PLAIN = (
    "g (float16[2,4] x) => (float16[2,4] y) <int64[1] last = {-1}, float16 two = {16384},"
    " float16 eps = {5243}> { " + ROOT + " y = Div(x, s) }"
)


def test_half_precision_without_casts_is_fused_too() -> None:
    model = graph(PLAIN)
    for step in BOTH:
        step(model)
    assert ops(model) == ONE
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT16


def test_bfloat16_without_casts_is_left_alone() -> None:
    check_left_alone(PLAIN.replace("float16", "bfloat16").replace("5243", "14120"), *BOTH)


def test_a_scale_in_half_precision_is_not_multiplied_in() -> None:
    text = HALF.replace("y = Mul(w, c)", "u = Mul(w, c) y = Mul(u, w)")
    model = graph(text)
    for step in BOTH:
        step(model)
    assert ops(model) == ONE | {"Mul": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ReduceMean(p, last)", "ReduceMean(p, middle)"),
        ("ReduceMean(p, last)", "ReduceSum(p, last)"),
        ("Pow(x, two)", "Pow(x, one)"),
        ("e = Add(v, eps)", "e = Add(v, v)"),
    ],
)
def test_other_statistics_are_left_alone(old: str, new: str) -> None:
    body = f"{{ {ROOT.replace(old, new)} y = Div(x, s) }}"
    check_left_alone(HEAD + CONSTANTS + body, *BOTH)


def test_another_value_over_the_root_is_left_alone() -> None:
    check_left_alone(HEAD + CONSTANTS + f"{{ {ROOT} r = Relu(x) y = Div(r, s) }}", *BOTH)


def test_axes_of_unknown_size_are_left_alone() -> None:
    text = "g (float[N,5,C] x) => (float[N,5,C] y) " + CONSTANTS
    check_left_alone(text + f"{{ {ROOT} y = Div(x, s) }}", *BOTH)


@pytest.mark.parametrize("kept", ["p", "v", "s"])
def test_an_inner_value_that_is_an_output_is_left_alone(kept: str) -> None:
    text = f"g (float[N,5,4] x) => (float[N,5,4] y, {kept}) " + CONSTANTS
    check_left_alone(text + f"{{ {ROOT} y = Div(x, s) }}", *BOTH)
