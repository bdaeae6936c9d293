"""Infinities of a mask stay infinite, with XNNPACK and without."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from tests.convert.lower.tflite.run import HEADER, check, lower, ops
from tests.convert.lower.tflite.together import rows

X = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
MASK = np.array([[True, False, True], [False, False, False]])


def with_limit(text: str, limit: float) -> ir.Model:
    """The text's graph with the scalar ``far``, which the text format has no number for."""
    proto = ir.to_proto(ir.from_onnx_text(HEADER + text))
    kept = [v for v in proto.graph.input if v.name != "far"]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    far = onnx.numpy_helper.from_array(np.array(limit, np.float32), "far")
    proto.graph.initializer.append(far)
    model: ir.Model = ir.from_proto(proto)
    return model


@rows("op", ["Add", "Sub", "Mul"])
def test_arithmetic_of_a_mask(op: str) -> None:
    text = f"""g (float[2,3] x, bool[2,3] m, float far) => (float[2,3] y)
        <float one = {{1}}, int64[2] s = {{2, 3}}> {{
        a = Where(m, one, far)
        b = Reshape(a, s)
        y = {op}(x, b) }}"""
    check(with_limit(text, -np.inf), {"x": X, "m": MASK})


@rows("op", ["ReduceMax", "ReduceMin"])
@rows("limit", [np.inf, -np.inf])
def test_extremes_of_a_mask(limit: float, op: str) -> None:
    text = f"""g (float[2,3] x, bool[2,3] m, float far) => (float[2] y) <int64[1] a = {{1}}> {{
        b = Where(m, x, far)
        y = {op}<keepdims=0>(b, a) }}"""
    check(with_limit(text, limit), {"x": X, "m": MASK})


def test_other_sums_are_left_alone() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) <float[3] b = {1, 2, 3}> { y = Add(x, b) }"
    assert ops(lower(text)) == ["ADD"]
