"""Every quantized weight has a zero point of its own; activations keep theirs.

Weights that several operators read have no sign, or are copied.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.lower.onnxruntime.zero_points import (
    unshare_weights,
    unshare_zero_points,
)

NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[1,2,4,4] x) => (float[1,2,4,4] y)
<float s = {0.1}, int8 z = {0}, int8[2,2,1,1] a = {1, 2, 3, 4}, int8[2,2,1,1] b = {4, 3, 2, 1}> {
  xq = QuantizeLinear(x, s, z)
  xf = DequantizeLinear(xq, s, z)
  af = DequantizeLinear(a, s, z)
  c = Conv(xf, af)
  cq = QuantizeLinear(c, s, z)
  cf = DequantizeLinear(cq, s, z)
  bf = DequantizeLinear(b, s, z)
  d = Conv(cf, bf)
  dq = QuantizeLinear(d, s, z)
  y = DequantizeLinear(dq, s, z)
}"""


def run(model: ir.Model) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # Without a zero point each, this refuses the model on processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    data = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    return np.asarray(session.run(None, {"x": x})[0])


def test_weights_do_not_share() -> None:
    model = ir.from_onnx_text(NET)
    assert unshare_zero_points(model) == 1
    points = {
        str(n.inputs[0].name): str(n.inputs[2].name)
        for n in model.graph
        if n.op_type == "DequantizeLinear" and n.inputs[0] is not None and n.inputs[2] is not None
    }
    assert points["a"] != points["b"]
    assert points["xq"] == points["cq"] == "z"
    assert unshare_zero_points(model) == 0
    assert run(model).shape == (1, 2, 4, 4)


def shared(points: str) -> tuple[ir.Model, np.ndarray]:
    """Three convolutions with the same weights, and the matrix that they multiply with.

    Weights within -64..63 cannot saturate, and are left as they are.
    """
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2] s, int8[2] z, int8[2,2,1,1] a> {
          f = DequantizeLinear<axis=0>(POINTS)
          c = Conv(x, f)
          g = DequantizeLinear<axis=0>(POINTS)
          d = Conv(c, f)
          y = Conv(d, g)
        }""".replace("POINTS", points)
    )
    scale, steps = np.array([0.1, 0.2], np.float32), np.array([[100, -120], [30, 40]], np.int8)
    arrays: dict[str, np.ndarray] = {
        "s": scale,
        "z": np.zeros(2, np.int8),
        "a": steps[:, :, None, None],
    }
    values = {v.name: v for n in model.graph for v in n.inputs if v is not None}
    for name in points.split(", "):
        value, array = values[name], arrays[name]
        value.const_value = ir.tensor(array, name=name)
        value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(array.shape)
        model.graph.register_initializer(value)
    return model, steps * scale[:, None]


@pytest.mark.parametrize("points", ["a, s, z", "a, s"])
@pytest.mark.parametrize("unsigned", [True, False])
def test_weights_that_are_read_twice(points: str, unsigned: bool) -> None:
    model, matrix = shared(points)
    with pytest.raises(Exception, match="Attempt to replace the existing tensor"):
        run(model)
    assert unshare_weights(model, unsigned=unsigned) == 1
    unshare_zero_points(model)
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    wanted = np.einsum("oc,bchw->bohw", np.linalg.matrix_power(matrix, 3), x)
    np.testing.assert_allclose(run(model), wanted, rtol=1e-4, atol=1e-6)
    weights = [n.inputs[0] for n in model.graph if n.op_type == "DequantizeLinear"]
    assert len({id(w) for w in weights}) == (1 if unsigned else 3)
    assert {w.dtype for w in weights if w is not None} == {
        ir.DataType.UINT8 if unsigned else ir.DataType.INT8
    }


def test_scales_of_channels_without_a_zero_point_get_one() -> None:
    model, _ = shared("a, s")
    first = next(iter(model.graph))
    for node in list(model.graph):
        if node.op_type == "DequantizeLinear" and node is not first:
            node.outputs[0].replace_all_uses_with(first.outputs[0])
            model.graph.remove(node)
    model.graph.outputs[:] = [next(n for n in model.graph if n.op_type == "Conv").outputs[0]]
    for node in [n for n in model.graph if n.op_type == "Conv"][:0:-1]:
        model.graph.remove(node, safe=True)
    with pytest.raises(Exception, match="x_zero_point must be null or 1D tensor"):
        run(model)
    assert unshare_zero_points(model) == 1
    assert np.isfinite(run(model)).all()


def test_weights_that_one_operator_reads_keep_their_sign() -> None:
    model = ir.from_onnx_text(NET)
    assert unshare_weights(model, unsigned=True) == 0


@pytest.mark.parametrize("weights", [("a", "b"), ("a", "a")])
@pytest.mark.parametrize("zero", [True, False])
def test_products_of_integers_do_not_share(weights: tuple[str, str], zero: bool) -> None:
    """As ``quantize_dynamic`` writes them, with equal zero points stored once."""
    point = ", w" if zero else ""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    net (float[3,4] x) => (float[3,4] y)
    <int8 w = {0}, int8[4,4] a = {100,-120,30,40,5,6,7,8,9,-1,-2,-3,90,-70,11,12},
     int8[4,4] b = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,127}> {
      p, s, z = DynamicQuantizeLinear(x)
      c = MatMulInteger(p, FIRST, zPOINT) d = Cast<to=1>(c) e = Mul(d, s)
      q, t, u = DynamicQuantizeLinear(e)
      f = MatMulInteger(q, SECOND, uPOINT) g = Cast<to=1>(f) y = Mul(g, t)
    }"""
    text = text.replace("FIRST", weights[0]).replace("SECOND", weights[1]).replace("POINT", point)
    model = ir.from_onnx_text(text)
    unshare_weights(model, unsigned=True)
    unshare_zero_points(model)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": x})
    (want,) = onnx.reference.ReferenceEvaluator(ir.to_proto(ir.from_onnx_text(text))).run(
        None, {"x": x}
    )
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)
