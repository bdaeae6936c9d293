"""First states that are zero in every run are left out; others stay."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.drop_zero_states import DropZeroStates

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(kind: str, filled: str, *, directions: int = 1) -> ir.Model:
    """A layer of 5 units whose states are filled as exporters do, of the batch's size."""
    rows = GATES[kind] * 5
    states = ", h" + (", h" if kind == "LSTM" else "")
    direction = "bidirectional" if directions == 2 else "forward"
    shapes = {
        "w": (directions, rows, 4),
        "r": (directions, rows, 5),
        "b": (directions, 2 * rows),
    }
    declared = ", ".join(
        f"float[{','.join(map(str, shape))}] {name} = {{{','.join(['0.0'] * math.prod(shape))}}}"
        for name, shape in shapes.items()
    )
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[S,N,4] x) => (float[S,{directions},N,5] y)
        <{declared}> {{
          s = Shape(x) one = Constant<value_ints=[1]>() two = Constant<value_ints=[2]>()
          n = Slice(s, one, two) d = Constant<value_ints=[{directions}]>()
          five = Constant<value_ints=[5]>() size = Concat<axis=0>(d, n, five)
          {filled}
          y = {kind}<hidden_size=5, direction="{direction}">(x, w, r, b, ""{states})
        }}"""
    )
    random = np.random.default_rng(0)
    for name, value in model.graph.initializers.items():
        array = random.standard_normal(shapes[name]).astype(np.float32) * 0.3
        value.const_value = ir.tensor(array, name=name)
    return model


ZEROS = {
    "filled": "h = ConstantOfShape(size)",
    "expanded": "z = Constant<value_float=0.0>() h = Expand(z, size)",
    "cut": "e = Concat<axis=0>(two, n, five) all = ConstantOfShape(e) "
    "at = Constant<value_ints=[0]>() h = Slice(all, at, d, at)",
}


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("filled", ZEROS)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", GATES)
def test_zeros_are_left_out(kind: str, directions: int, filled: str) -> None:
    model = layer(kind, ZEROS[filled], directions=directions)
    short = normalise(model).model
    assert [n.op_type for n in short.graph] == [kind]
    x = np.random.default_rng(1).standard_normal((6, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(short, x), run(model, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [0.5, -0.5])
def test_other_numbers_stay(value: float) -> None:
    text = f"v = Constant<value_float={value}>() h = Expand(v, size)"
    model = layer("GRU", text)
    assert not DropZeroStates()(model).modified
    assert "Expand" in [n.op_type for n in normalise(model).model.graph]
