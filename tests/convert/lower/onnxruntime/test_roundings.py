"""Roundings that ONNX Runtime carries over moves by itself."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.onnxruntime.roundings import shorten
from edgeinfer.convert.quantize import readback
from edgeinfer.convert.quantize.calibrate.ranges import Range
from edgeinfer.convert.quantize.rewrite import qdq
from tests.convert.quantize.conftest import graph
from tests.convert.quantize.rewrite.test_qdq import limits

RANGES = {n: Range(-9.0, 9.0) for n in "xy"} | {n: Range(0.0, 9.0) for n in "rmf"}


def pooled() -> ir.Model:
    rng = np.random.default_rng(0)
    model = graph(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[1,3,8,8] x) => (float[1,5] y) <float[4,3,3,3] w, float[64,5] v>
        {
          a = Conv<pads=[1,1,1,1]>(x, w)
          r = Relu(a)
          m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
          f = Flatten(m)
          y = MatMul(f, v)
        }""",
        w=rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        v=rng.normal(size=(64, 5)).astype(np.float32),
    )
    for node in model.graph:
        if node.op_type == "Flatten":
            node.op_type = "Reshape"
            node.attributes.clear()
            shape = ir.tensor(np.array([1, 64]), name="shape")
            value = ir.Value(name="shape", const_value=shape, type=ir.TensorType(shape.dtype))
            model.graph.register_initializer(value)
            node.resize_inputs(2)
            node.replace_input_with(1, value)
    return qdq.write(model, limits("onnxruntime", "onnx"), RANGES).model


def count(model: ir.Model) -> int:
    return sum(n.op_type == "QuantizeLinear" for n in model.graph)


def run(model: ir.Model, path: Path) -> np.ndarray:
    import onnxruntime

    ir.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).uniform(-9, 9, (1, 3, 8, 8)).astype(np.float32)
    return np.asarray(session.run(None, {"x": x})[0])


def test_the_engine_finds_the_same_kernels_and_numbers(tmp_path: Path) -> None:
    plain, short = pooled(), pooled()
    assert shorten(short) == 2
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    RemoveUnusedNodesPass()(short)
    assert count(plain) - count(short) == 2
    np.testing.assert_array_equal(run(plain, tmp_path / "a"), run(short, tmp_path / "b"))
    plans = [[y.op for y in readback.layers(tmp_path / n, "onnx")] for n in ("a", "b")]
    assert plans[0] == plans[1]
    first = plans[1].index("QLinearConv")
    assert plans[1][first : first + 3] == ["QLinearConv", "MaxPool", "Reshape"]
    assert "DequantizeLinear" not in plans[1]


@pytest.mark.parametrize(
    "text",
    [
        # Another scale behind it; what the integers are is seen; a float operator between.
        "(float[1,2,4] x) => (float[1,8] y) { q = QuantizeLinear(x, s, z)"
        " d = DequantizeLinear(q, s, z) r = Reshape(d, n) p = QuantizeLinear(r, t, z)"
        " y = DequantizeLinear(p, t, z) }",
        "(float[1,2,4] x) => (float[1,8] y, uint8[1,8] p) { q = QuantizeLinear(x, s, z)"
        " d = DequantizeLinear(q, s, z) r = Reshape(d, n) p = QuantizeLinear(r, s, z)"
        " e = DequantizeLinear(p, s, z) y = Relu(e) }",
        "(float[1,2,4] x) => (float[1,8] y) { q = QuantizeLinear(x, s, z)"
        " d = DequantizeLinear(q, s, z) m = Relu(d) r = Reshape(m, n)"
        " p = QuantizeLinear(r, s, z) e = DequantizeLinear(p, s, z) y = Relu(e) }",
    ],
    ids=["another scale", "integers are seen", "no move"],
)
def test_other_roundings_stay(text: str) -> None:
    body = text.replace(" { ", " <float s, float t, uint8 z, int64[2] n> { ", 1)
    model = graph(
        f'<ir_version: 10, opset_import: ["" : 20]> net {body}',
        s=np.array(0.1, np.float32),
        n=np.array([1, 8]),
        z=np.array(3, np.uint8),
        **({"t": np.array(0.2, np.float32)} if ", t," in text else {}),
    )
    assert shorten(model) == 0
