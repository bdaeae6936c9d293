"""A squeeze of unknown axes at the end of a model, for formats in which ranks are fixed."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.passes.shapes import InferShapes
from edgeinfer.convert.passes.strip_squeeze import strip_squeezes
from tests.convert.passes.rewriting import f32, ops, parse, run

FOUR = "<float four = {4.0}, float[1] row = {4.0}>"


def stripped(text: str) -> tuple[ir.Model, ir.Model, tuple[str, ...]]:
    before, after = parse(text), parse(text)
    InferShapes()(after)
    return before, after, strip_squeezes(after)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Squeeze(x)", {"Identity": 1}),
        (
            "s = Squeeze(x) t = Sigmoid(s) u = Mul(four, t) y = Sub(u, four)",
            {"Identity": 1, "Sigmoid": 1, "Mul": 1, "Sub": 1},
        ),
    ],
)
def test_the_result_is_the_same_once_squeezed(body: str, left: dict[str, int], batch: int) -> None:
    text = f"g (float[B,1,3] x) => (float[] y) {FOUR} {{ {body} }}"
    before, after, names = stripped(text)
    assert names == ("y",)
    assert ops(after) == left
    assert [v.name for v in after.graph.outputs] == ["y"]
    assert after.graph.outputs[0].shape == ir.Shape(["B", 1, 3])
    feeds = {"x": f32(np.random.default_rng(0).standard_normal((batch, 1, 3)))}
    (want,), (got,) = run(before, feeds), run(after, feeds)
    np.testing.assert_array_equal(got.squeeze(), want)


@pytest.mark.parametrize(
    "body",
    [
        # A row of one gives an axis back, which squeezing at the end would take away.
        "s = Squeeze(x) y = Add(s, row)",
        "s = Squeeze(x) y = Add(s, s)",
        "s = Squeeze(x) y = ReduceSum<keepdims = 1>(s)",
    ],
)
def test_leaves_alone_what_needs_the_rank(body: str) -> None:
    before, after, names = stripped(f"g (float[B,1,3] x) => (float[] y) {FOUR} {{ {body} }}")
    assert names == ()
    assert ops(after) == ops(before)


def test_leaves_alone_what_others_read_too() -> None:
    text = "g (float[B,1,3] x) => (float[] y, float[] z) { s = Squeeze(x) y = Tanh(s) z = Size(s) }"
    assert stripped(text)[2] == ()


def test_leaves_alone_axes_that_are_known() -> None:
    text = "g (float[2,1,3] x) => (float[2,3] y) { y = Squeeze(x) }"
    assert stripped(text)[2] == ()
