"""Quantized operators become float ones between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.passes.split_quantized import SplitQuantized

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
RNG = np.random.default_rng(0)
Array = npt.NDArray[Any]


def run(model: ir.Model, feeds: dict[str, Array]) -> Array:
    data = ir.to_proto(model).SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    result: Array = ort.InferenceSession(data, options).run(None, feeds)[0]
    return result


def split(text: str, feeds: dict[str, Array], off: int) -> list[str]:
    """Compare before and after, within steps; returns the operators after."""
    model = ir.from_onnx_text(HEADER + text)
    before = run(model, feeds).astype(np.int64)
    assert SplitQuantized()(model).modified
    after = run(model, feeds).astype(np.int64)
    assert before.shape == after.shape
    assert np.abs(before - after).max() <= off
    return [node.op_type for node in model.graph]


def small(*shape: int, kind: str = "uint8") -> Array:
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)


SCALES = (
    "float xs = {0.02}, float ws = {0.03}, float ys = {0.9}, uint8 xz = {120}, uint8 yz = {100}"
)


def test_convolution_with_bias_and_scales_per_channel() -> None:
    text = f"""g (uint8[1,2,5,5] x, int8[3,2,3,3] w) => (uint8[1,3,5,5] y) <{SCALES},
        float[3] s = {{0.01, 0.02, 0.03}}, int8[3] wz = {{0, 0, 0}}, int32[3] b = {{100, -500, 7}}>
        {{y = QLinearConv <pads=[1,1,1,1]> (x, xs, xz, w, s, wz, ys, yz, b)}}"""
    found = split(text, {"x": small(1, 2, 5, 5), "w": small(3, 2, 3, 3, kind="int8")}, 1)
    assert found == [*["DequantizeLinear"] * 3, "Conv", "QuantizeLinear"]


def test_matmul() -> None:
    text = f"""g (uint8[2,4,6] x, uint8[6,3] w) => (uint8[2,4,3] y) <{SCALES}>
        {{y = QLinearMatMul(x, xs, xz, w, ws, xz, ys, yz)}}"""
    found = split(text, {"x": small(2, 4, 6), "w": small(6, 3)}, 1)
    assert found == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_binary_operators_of_onnx_runtime(op: str) -> None:
    text = f"""g (uint8[2,4] x, uint8[4] w) => (uint8[2,4] y) <{SCALES}>
        {{y = com.microsoft.QLinear{op}(x, xs, xz, w, ws, xz, ys, yz)}}"""
    assert op in split(text, {"x": small(2, 4), "w": small(4)}, 1)


def test_gemm_and_softmax_of_onnx_runtime() -> None:
    text = f"""g (uint8[2,4] x, int8[3,4] w) => (uint8[2,3] y) <{SCALES}, int8 wz = {{0}},
        int32[3] b = {{9, -9, 500}}, float ps = {{0.00390625}}, uint8 pz = {{0}}>
        {{h = com.microsoft.QGemm <transB=1> (x, xs, xz, w, ws, wz, b, ys, yz)
          y = com.microsoft.QLinearSoftmax <axis=-1, opset=13> (h, ys, yz, ps, pz)}}"""
    found = split(text, {"x": small(2, 4), "w": small(3, 4, kind="int8")}, 2)
    assert {"Gemm", "Softmax"} <= set(found)


def test_integer_convolution_is_exact() -> None:
    text = """g (uint8[1,2,5,5] x, uint8[3,2,3,3] w) => (int32[1,3,3,3] y)
        <uint8 xz = {120}, uint8 wz = {7}> {y = ConvInteger(x, w, xz, wz)}"""
    assert "Conv" in split(text, {"x": small(1, 2, 5, 5), "w": small(3, 2, 3, 3)}, 0)


def test_sums_beyond_exact_floats_are_left_alone() -> None:
    text = """g (uint8[1,64,5,5] x, uint8[3,64,3,3] w) => (int32[1,3,3,3] y)
        {y = ConvInteger(x, w)}"""
    model = ir.from_onnx_text(HEADER + text)
    assert not SplitQuantized()(model).modified
