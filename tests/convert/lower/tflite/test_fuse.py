"""What joins what, and what must not."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.fuse import fuse
from tests.convert.lower.tflite.run import check, ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 4, 6, 6)).astype(np.float32)
WEIGHTS = ", ".join(f"{v:.3f}" for v in RNG.normal(size=144))


def net(body: str, out: str = "1,4,6,6") -> list[str]:
    """Operators of a convolution ``c`` and what follows it, between the transposes."""
    text = f"""g (float[1,4,6,6] x) => (float[{out}] y)
    <float[4,4,3,3] w = {{{WEIGHTS}}}, float[4,1,1] k = {{0.5, -2, 3, 4}}, float two = {{2}},
     float zero = {{0}}, float six = {{6}}, float neg = {{-1}}, float one = {{1}}>
    {{ c = Conv<pads=[1,1,1,1]>(x, w) {body} }}"""
    found = ops(check(text, {"x": X}))
    return [code for code in found if code != "TRANSPOSE"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Relu(c)",
        "y = Clip(c, zero, six)",
        "y = Clip(c, neg, one)",
        "a = Mul(c, k) y = Relu(a)",
        "a = Add(k, c) y = Relu(a)",
        "a = Sub(c, k) b = Div(a, two) y = Relu(b)",
        "y = Neg(c)",
        "a = Mul(c, two) b = Add(a, k) y = Relu(b)",
    ],
)
def test_one_convolution_is_left(body: str) -> None:
    assert net(body) == ["CONV_2D"]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Relu(c) y = Add(a, c)", ["CONV_2D", "RELU", "ADD"]),
        ("a = Relu(c) y = Mul(a, k)", ["CONV_2D", "MUL"]),
        ("y = Sub(k, c)", ["CONV_2D", "SUB"]),
    ],
)
def test_what_would_change_the_numbers_is_left(body: str, left: list[str]) -> None:
    assert net(body) == left


def test_a_constant_that_widens_the_result_is_left() -> None:
    text = f"""g (float[1,4,6,6] x) => (float[3,4,6,6] y)
    <float[4,4,3,3] w = {{{WEIGHTS}}}, float[3,1,1,1] k = {{1, 2, 3}}>
    {{ c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, k) }}"""
    assert "ADD" in ops(check(text, {"x": X}))


def test_lines_of_convolutions_have_no_reshape_inside() -> None:
    weights = ", ".join(f"{v:.3f}" for v in RNG.normal(size=48))
    text = f"""g (float[1,4,30] x) => (float[1,4,24] y) <float[4,4,3] w = {{{weights}}}> {{
        a = Conv(x, w) b = Relu(a) c = Conv(b, w) d = Sigmoid(c) y = Conv(d, w) }}"""
    found = ops(check(text, {"x": RNG.normal(size=(1, 4, 30)).astype(np.float32)}))
    inner = found[found.index("CONV_2D") : len(found) - found[::-1].index("CONV_2D")]
    assert inner == ["CONV_2D", "CONV_2D", "LOGISTIC", "CONV_2D"]


def test_equal_operators_are_computed_once() -> None:
    g = Builder()
    x = g.tensor((2, 3), np.float32)
    g.inputs = [x]
    g.outputs = [g.binary("ADD", g.unary("EXP", x), g.unary("EXP", x))]
    fuse(g)
    assert [op.code for op in g.ops] == ["EXP", "ADD"]


def test_transposes_meet_their_inverse() -> None:
    g = Builder()
    x = g.tensor((2, 3, 4), np.float32)
    g.inputs = [x]
    g.outputs = [g.unary("EXP", g.transpose(g.transpose(x, [1, 2, 0]), [2, 0, 1]))]
    fuse(g)
    assert [op.code for op in g.ops] == ["EXP"]


def test_products_read_their_second_operand_transposed() -> None:
    g = Builder()
    a, b = g.tensor((2, 3, 4), np.float32), g.tensor((2, 5, 4), np.float32)
    g.inputs = [a, b]
    turned = g.transpose(b, [0, 2, 1])
    options = {"adj_x": False, "adj_y": False, "asymmetric_quantize_inputs": False}
    g.outputs = [g.emit("BATCH_MATMUL", [a, turned], (2, 3, 5), **options)]
    fuse(g)
    assert [op.code for op in g.ops] == ["BATCH_MATMUL"]
    assert g.ops[0].options["adj_y"] is True


@pytest.mark.parametrize(("indices", "left"), [([1], ["SLICE"]), ([1, 2], ["SLICE"]), ([2, 0], ["GATHER"])])  # fmt: skip # noqa: E501
def test_neighbours_are_sliced(indices: list[int], left: list[str]) -> None:
    g = Builder()
    x = g.tensor((3, 4), np.float32)
    g.inputs = [x]
    g.outputs = [g.gather(x, g.const(indices, np.int32), 0)]
    fuse(g)
    assert [op.code for op in g.ops if op.code != "RESHAPE"] == left


def test_a_mean_that_keeps_axes_and_one_that_does_not_are_one() -> None:
    text = """g (float[2,3,4] x) => (float[2,1] a, float[2] b) <int64[2] axes = {1, 2}> {
        m = ReduceMean(x, axes) s = Sum(m) d = ReduceMean<keepdims=0>(x, axes)
        f = Flatten(m) a = Relu(f) b = Relu(d) }"""
    found = ops(check(text, {"x": RNG.normal(size=(2, 3, 4)).astype(np.float32)}))
    assert found.count("MEAN") == 1


def test_a_reshape_goes_behind_a_product_that_reads_it_twice() -> None:
    text = """g (float[1,2,3] x) => (float[1,3,1,2] y) <int64[4] shape = {1,3,1,2}> {
        r = Reshape(x, shape) p = Mul(r, r) y = Relu(p)
    }"""
    data = check(text, {"x": np.arange(-3, 3, dtype=np.float32).reshape(1, 2, 3)})
    assert ops(data) == ["MUL", "RESHAPE"]
