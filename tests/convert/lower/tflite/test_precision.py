"""What a file computes in is read from the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.lower.tflite.precision import OperatorPrecision, layers, summary
from tests.convert.lower.tflite.run import lower

TEXT = """g (float[2,64] x, float[2,8] r) => (float[2,8] y) <
    float xs = {0.05}, int8 xz = {3}, float ys = {0.1}, int8 yz = {0}> {
    BODY
}"""

INTEGERS = """
    qx = QuantizeLinear(x, xs, xz)  dx = DequantizeLinear(qx, xs, xz)
    f = DequantizeLinear <axis=1> (w, s)  m = MatMul(dx, f)
    qm = QuantizeLinear(m, ys, yz)  dm = DequantizeLinear(qm, ys, yz)
    y = Add(dm, r)"""


def read(tmp_path: Path, body: str, precision: str = "fp32") -> tuple[OperatorPrecision, ...]:
    import onnx

    text = '<ir_version: 10, opset_import: ["" : 24]> ' + TEXT.replace("BODY", body)
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    constants: dict[str, Any] = {
        "w": rng.integers(-127, 128, (64, 8)).astype(np.int8),
        "s": (rng.random(8) * 0.01 + 0.01).astype(np.float32),
        "v": rng.standard_normal((64, 8)).astype(np.float32),
    }
    for name, value in constants.items():
        if name in body:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    path = tmp_path / "model.tflite"
    path.write_bytes(lower(model, precision))
    return layers(path)


@pytest.mark.parametrize(
    ("body", "precision", "expected"),
    [
        (INTEGERS, "fp32", {"int8/int8": 1}),
        (
            "f = DequantizeLinear <axis=1> (w, s) m = MatMul(x, f) y = Add(m, r)",
            "fp32",
            {"fp32/int8": 1},
        ),
        ("m = MatMul(x, v) y = Add(m, r)", "fp32", {"fp32/fp32": 1}),
        ("m = MatMul(x, v) y = Add(m, r)", "fp16", {"fp32/fp16": 1}),
    ],
)
def test_layers_are_counted_by_precision(
    tmp_path: Path, body: str, precision: str, expected: dict[str, int]
) -> None:
    assert summary(read(tmp_path, body, precision)) == expected


def test_layers_are_listed_in_order(tmp_path: Path) -> None:
    found = read(tmp_path, INTEGERS)
    assert [y.op for y in found] == ["QUANTIZE", "FULLY_CONNECTED", "DEQUANTIZE", "ADD"]
    product = found[1]
    assert (product.activations, product.weights, product.channels) == ("int8", "int8", 8)
    assert found[-1] == OperatorPrecision("main", "ADD", "y", "fp32")
