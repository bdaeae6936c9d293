"""Products of integers with a bias behind them run on ONNX Runtime's integer kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.lower.onnxruntime.product_biases import round_product_biases
from edgeinfer.convert.quantize import readback
from tests.processor import skip_where_onnxruntime_saturates

W = ", ".join(str((7 * i) % 255 - 127) for i in range(32))

NET = f"""<ir_version: 10, opset_import: ["" : 21]>
net (float[1,7,8] x) => (float[1,7,4] y)
<float s = {{0.02}}, uint8 z = {{120}}, int8[8,4] w = {{{W}}},
 float[4] t = {{0.01, 0.02, 0.03, 0.01}},
 int8[4] n = {{0, 0, 0, 0}}, float[4] b = {{0.5, -0.25, 1.0, 0.125}}> {{
  xq = QuantizeLinear(x, s, z)
  xf = DequantizeLinear(xq, s, z)
  wf = DequantizeLinear<axis = 1>(w, t, n)
  p = MatMul(xf, wf)
  y = Add(p, b)
}}"""


def run(model: ir.Model) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    data = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((1, 7, 8)).astype(np.float32)
    return np.asarray(session.run(None, {"x": x})[0])


def kinds(model: ir.Model, path: Path) -> dict[str, int]:
    ir.save(model, path)
    return readback.counts(readback.layers(path, "onnx"))


@pytest.mark.parametrize("swapped", [False, True])
def test_the_integer_kernel_takes_it(tmp_path: Path, swapped: bool) -> None:
    skip_where_onnxruntime_saturates()
    text = NET.replace("Add(p, b)", "Add(b, p)") if swapped else NET
    model = ir.from_onnx_text(text)
    before = run(model)
    assert round_product_biases(model) == 1
    assert kinds(model, tmp_path / "m.onnx") == {"int8/int8": 1}
    # Half a step of the largest product of scales.
    assert np.abs(run(model) - before).max() <= 0.5 * 0.02 * 0.03 + 1e-6
    assert round_product_biases(model) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MatMul(xf, wf)", "MatMul(x, wf)"),
        ("b = {0.5, -0.25", "b = {1e9, -0.25"),
        ("=> (float[1,7,4] y)", "=> (float[1,7,4] y, float[1,7,4] p)"),
    ],
    ids=["activations of floats", "more steps than 32 bits hold", "the product is an output"],
)
def test_other_biases_stay(old: str, new: str) -> None:
    assert old in NET
    model = ir.from_onnx_text(NET.replace(old, new))
    before = run(model)
    assert round_product_biases(model) == 0
    np.testing.assert_array_equal(run(model), before)
