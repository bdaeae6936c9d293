"""Signed activations become unsigned ones of the same value; everything else stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.lower.onnxruntime.unsigned import store_unsigned

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
PAIR = """net (float[4,5] x) => (float[4,5] y) <float s = {0.05}, int8 z = {-7}> {
  q = QuantizeLinear(x, s, z)
  y = DequantizeLinear(q, s, z)
}"""
# At the edge of a model with channels last a transpose stands between the pair and the operator.
EDGE = """net (float[1,4,4,2] x) => (float[1,2,4,4] y)
<float s = {0.1}, int8 z = {3}, int8[2,2,1,1] w = {1, 2, 3, 4}, int8 o = {0}> {
  q = QuantizeLinear(x, s, z)
  f = DequantizeLinear(q, s, z)
  t = Transpose<perm = [0, 3, 1, 2]>(f)
  v = DequantizeLinear(w, s, o)
  c = Conv(t, v)
  p = QuantizeLinear(c, s, z)
  y = DequantizeLinear(p, s, z)
}"""
KEPT = {
    "others read the integers": """net (float[4] x) => (float[4] y, int8[4] r)
      <float s = {0.05}, int8 z = {-7}> {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z)
        r = Identity(q) }""",
    "they are an output": """net (float[4] x) => (int8[4] q)
      <float s = {0.05}, int8 z = {-7}> { q = QuantizeLinear(x, s, z) }""",
    "16 bits": """net (float[4] x) => (float[4] y) <float s = {0.05}, int16 z = {0}> {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z) }""",
    "another zero point": """net (float[4] x) => (float[4] y)
      <float s = {0.05}, int8 z = {-7}, int8 o = {1}> {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, o) }""",
}


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    data = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def test_the_values_stay() -> None:
    x = np.linspace(-9, 9, 20, dtype=np.float32).reshape(4, 5)
    want = run(ir.from_onnx_text(HEAD + PAIR), x)
    model = ir.from_onnx_text(HEAD + PAIR)
    assert store_unsigned(model) == 1
    np.testing.assert_array_equal(run(model, x), want)
    (zero,) = {n.inputs[2] for n in model.graph}
    assert zero is not None
    assert zero.const_value is not None
    assert zero.const_value.numpy() == 121
    assert store_unsigned(model) == 0


def test_a_transpose_between_pair_and_operator_is_taken() -> None:
    model = ir.from_onnx_text(HEAD + EDGE)
    assert store_unsigned(model) == 2
    x = np.random.default_rng(0).standard_normal((1, 4, 4, 2)).astype(np.float32)
    assert run(model, x).shape == (1, 2, 4, 4)


@pytest.mark.parametrize("why", KEPT)
def test_what_stays_as_it_is(why: str) -> None:
    assert store_unsigned(ir.from_onnx_text(HEAD + KEPT[why])) == 0
