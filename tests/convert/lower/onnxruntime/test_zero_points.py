"""Every quantized weight has a zero point of its own; activations keep theirs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edgeinfer.convert.lower.onnxruntime.zero_points import unshare_zero_points

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
