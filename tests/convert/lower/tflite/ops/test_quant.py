"""Quantized graphs: integers where they can be, exact arithmetic elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.convert.lower.tflite.run import (
    assert_close,
    check,
    expected,
    lower,
    ops,
    outputs,
)
from tests.convert.lower.tflite.together import rows

Array = npt.NDArray[Any]
KIND = {"int8": 3, "uint8": 2, "int16": 5}


class Net:
    """A QDQ graph in the making."""

    def __init__(self, kind: str = "int8") -> None:
        self.kind = kind
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.rng = np.random.default_rng(0)
        self.count = 0

    def const(self, value: Any) -> str:
        self.count += 1
        name = f"k{self.count}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, inputs: Sequence[str], out: str = "", **attributes: Any) -> str:
        self.count += 1
        out = out or f"t{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out

    def qdq(self, x: str, scale: float, zero: int = 0, out: str = "") -> str:
        """Quantize and dequantize."""
        s, z = self.const(np.float32(scale)), self.const(np.array(zero, self.kind))
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [x, s, z]), s, z], out)

    def weights(self, *shape: int, axis: int = 0, bias_of: float = 0.0) -> list[str]:
        """int8 weights with a scale per channel; an int32 bias if the input's scale is given."""
        size = shape[axis]
        w = self.rng.integers(-127, 128, shape).astype(np.int8)
        scale = (self.rng.random(size) * 0.01 + 0.002).astype(np.float32)
        zero = np.zeros(size, np.int8)
        names = [self.const(w), self.const(scale), self.const(zero)]
        made = [self.node("DequantizeLinear", names, axis=axis)]
        if bias_of:
            b = self.rng.integers(-500, 500, size).astype(np.int32)
            names = [self.const(b), self.const((scale * np.float32(bias_of)).astype(np.float32))]
            made.append(self.node("DequantizeLinear", names, axis=0))
        return made

    def model(self, x: Mapping[str, Sequence[Any]], y: str, kind: int = 1) -> onnx.ModelProto:
        ins = [helper.make_tensor_value_info(k, 1, s) for k, s in x.items()]
        out = helper.make_tensor_value_info(y, kind, None)
        graph = helper.make_graph(self.nodes, "g", ins, [out], self.constants)
        opsets = [helper.make_opsetid("", 21)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(made)


def run(model: Any, feeds: dict[str, Array], step: float, steps: float = 1.0) -> list[str]:
    """Compare within quantization steps; returns the operators."""
    data = lower(model)
    for name, value in expected(model, feeds).items():
        for xnnpack in (True, False):
            got = outputs(data, feeds, xnnpack=xnnpack)[name]
            assert got.shape == value.shape
            off = np.abs(got.astype(np.float64) - value).max() / step
            assert off <= steps + 1e-3, f"{off} steps, xnnpack={xnnpack}"
    return ops(data)


def normal(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((4, 3, 3, 3), {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
        ((3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
        ((6, 3, 1, 1), {}),
    ],
)
def test_convolution(kind: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    net = Net(kind)
    zero = {"int8": -3, "uint8": 120, "int16": 0}[kind]
    scale = 0.03 if kind != "int16" else 0.001
    x = net.qdq("x", scale, zero)
    y = net.node("Conv", [x, *net.weights(*shape, bias_of=scale)], **attributes)
    net.qdq(y, scale * 2, zero, "y")
    found = run(net.model({"x": (1, 3, 8, 8)}, "y"), {"x": normal(1, 3, 8, 8)}, scale * 2)
    assert found.count("QUANTIZE") == 1
    assert found.count("DEQUANTIZE") == 1


def test_convolution_with_relu_and_unbiased() -> None:
    net = Net()
    x = net.qdq("x", 0.03)
    y = net.node("Relu", [net.node("Conv", [x, *net.weights(4, 3, 3, 3)])])
    net.qdq(y, 0.05, -128, "y")
    found = run(net.model({"x": (1, 3, 8, 8)}, "y"), {"x": normal(1, 3, 8, 8)}, 0.05)
    assert "RELU" not in found
    assert found.count("DEQUANTIZE") == 1


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
def test_fully_connected(kind: str) -> None:
    net = Net(kind)
    scale, zero = (0.03, 5) if kind == "int8" else (0.03, 120) if kind == "uint8" else (0.001, 0)
    x = net.qdq("x", scale, zero)
    y = net.node("Gemm", [x, *net.weights(6, 16, bias_of=scale)], transB=1)
    net.qdq(y, scale * 2, zero, "y")
    found = run(net.model({"x": (2, 16)}, "y"), {"x": normal(2, 16)}, scale * 2)
    assert found.count("DEQUANTIZE") == 1


def test_matmul() -> None:
    net = Net()
    y = net.node("MatMul", [net.qdq("x", 0.03), *net.weights(16, 6, axis=1)])
    net.qdq(y, 0.06, 0, "y")
    found = run(net.model({"x": (2, 5, 16)}, "y"), {"x": normal(2, 5, 16)}, 0.06)
    assert found.count("DEQUANTIZE") == 1


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_two_operands(op: str, kind: str) -> None:
    net = Net(kind)
    zero = 0 if kind == "int8" else 128
    a, b = net.qdq("a", 0.02, zero), net.qdq("b", 0.03, zero + 4)
    net.qdq(net.node(op, [a, b]), 0.05, zero, "y")
    feeds = {"a": normal(2, 8), "b": normal(2, 8)[::-1].copy()}
    found = run(net.model({"a": (2, 8), "b": (2, 8)}, "y"), feeds, 0.05)
    assert found.count("DEQUANTIZE") == 1


def test_moves_stay_integers() -> None:
    net = Net()
    x = net.qdq("x", 0.02, 3)
    t = net.qdq(net.node("Transpose", [x], perm=[0, 2, 1]), 0.02, 3)
    net.qdq(net.node("Reshape", [t, net.const(np.array([2, 12]))]), 0.02, 3, "y")
    model = net.model({"x": (2, 3, 4)}, "y")
    found = ops(check(model, {"x": normal(2, 3, 4)}))
    assert found.count("QUANTIZE") == 1
    assert found.count("DEQUANTIZE") == 1


@pytest.mark.parametrize(("pads", "relu"), [([1, 1, 1, 1], True), ([0, 1, 1, 0], False)])
def test_padded_maxima_stay_integers(pads: list[int], relu: bool) -> None:
    net = Net()
    zero = -128 if relu else 7
    conv = net.node("Conv", [net.qdq("x", 0.03), *net.weights(4, 3, 3, 3, bias_of=0.03)])
    c = net.qdq(net.node("Relu", [conv]) if relu else conv, 0.05, zero)
    pooled = net.node("MaxPool", [c], kernel_shape=[3, 3], strides=[2, 2], pads=pads)
    net.qdq(pooled, 0.05, zero, "y")
    found = run(net.model({"x": (1, 3, 9, 9)}, "y"), {"x": normal(1, 3, 9, 9)}, 0.05, 1)
    assert found.count("QUANTIZE") == 1
    assert found.count("DEQUANTIZE") == 1


def test_parts_are_joined_as_integers_of_the_whole() -> None:
    net = Net()
    a, b = net.qdq("a", 0.02, 3), net.qdq("b", 0.05, -20)
    net.qdq(net.node("Concat", [a, b], axis=1), 0.05, -20, "y")
    feeds = {"a": normal(2, 3, 4), "b": normal(2, 5, 4)}
    found = run(net.model({"a": (2, 3, 4), "b": (2, 5, 4)}, "y"), feeds, 0.05, 1)
    # One part has the scale of the whole already.
    assert found.count("QUANTIZE") == 3
    assert found.count("DEQUANTIZE") == 1


def test_pooling_and_residual_block() -> None:
    net = Net("uint8")
    x = net.qdq("x", 0.03, 128)
    c = net.qdq(
        net.node(
            "Relu",
            [net.node("Conv", [x, *net.weights(3, 3, 3, 3, bias_of=0.03)], pads=[1, 1, 1, 1])],
        ),
        0.04,
        0,
    )
    s = net.qdq(net.node("Add", [x, c]), 0.05, 100)
    p = net.qdq(net.node("MaxPool", [s], kernel_shape=[2, 2], strides=[2, 2]), 0.05, 100)
    net.qdq(net.node("GlobalAveragePool", [p]), 0.04, 90, "y")
    found = run(net.model({"x": (1, 3, 8, 8)}, "y"), {"x": normal(1, 3, 8, 8)}, 0.04, 2)
    assert found.count("QUANTIZE") == 1
    assert found.count("DEQUANTIZE") == 1


def test_weights_alone_are_stored_as_bytes_and_give_the_same_floats() -> None:
    net = Net()
    net.node("Conv", ["x", *net.weights(8, 3, 3, 3)], "y")
    model = net.model({"x": (1, 3, 8, 8)}, "y")
    data = check(model, {"x": normal(1, 3, 8, 8)})
    assert "DEQUANTIZE" in ops(data)
    net = Net()
    net.node("Gemm", ["x", *net.weights(64, 128)], "y", transB=1)
    data = check(net.model({"x": (2, 128)}, "y"), {"x": normal(2, 128)})
    assert len(data) < 64 * 128 + 4000


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
def test_integer_outputs(kind: str) -> None:
    net = Net(kind)
    zero = 0 if kind == "int16" else 7
    s, z = net.const(np.float32(0.05)), net.const(np.array(zero, kind))
    net.node("QuantizeLinear", ["x", s, z], "y")
    model = net.model({"x": (10,)}, "y", KIND[kind])
    x = np.array([0, 0.025, 0.075, -0.025, -0.075, 1e7, -1e7, 1, -1, 6], np.float32)
    assert ops(check(model, {"x": x})) == ["QUANTIZE"]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32"])
def test_integer_inputs(kind: str) -> None:
    text = f"g ({kind}[5] x, float s) => (float[5] y) {{y = DequantizeLinear(x, s)}}"
    limits = np.iinfo(kind)
    x = np.array([limits.min, limits.max, 0, 1, 77], kind)
    check(text, {"x": x, "s": np.array(0.3, np.float32)})
    if kind != "int32":
        fixed = text.replace(", float s", "").replace("y) {", "y) <float s = {0.3}> {")
        assert ops(check(fixed, {"x": x})) == ["DEQUANTIZE"]


@rows("kind", ["int8", "uint8"])
def test_scales_of_the_run(kind: str) -> None:
    text = f"""g (float[2,3] x, float[3] s, {kind}[3] z) => ({kind}[2,3] q, float[2,3] y) {{
        q = QuantizeLinear <axis=1> (x, s, z)
        y = DequantizeLinear <axis=1> (q, s, z)}}"""
    z = np.array([3, 0, 100], kind)
    s = np.array([0.5, 0.1, 2], np.float32)
    check(text, {"x": normal(2, 3) * 30, "s": s, "z": z})


def test_blocks_of_a_constant() -> None:
    text = """g (float[2,4] x) => (float[2,6] y)
        <float[2,6] s = {1,2,3,4,5,6,0.5,0.25,1,1,2,3}, int8[4,6] w = {1,2,3,4,5,6,7,8,9,10,11,12,
        -1,-2,-3,-4,-5,-6,-7,-8,-9,-10,-11,-12}> {
        f = DequantizeLinear <axis=0, block_size=2> (w, s)
        y = MatMul(x, f)}"""
    check(text, {"x": normal(2, 4)})


@rows("size", [6, 5])
def test_blocks_of_the_run(size: int) -> None:
    text = f"""g (float[2,{size}] x, float[2,3] s, uint8[2,3] z)
        => (uint8[2,{size}] q, float[2,{size}] y) {{
        q = QuantizeLinear <axis=1, block_size=2> (x, s, z)
        y = DequantizeLinear <axis=1, block_size=2> (q, s, z)}}"""
    s = np.array([[0.5, 0.1, 2], [0.25, 1, 0.3]], np.float32)
    z = np.array([[3, 0, 100], [128, 1, 7]], np.uint8)
    check(text, {"x": normal(2, size) * 30, "s": s, "z": z})


def test_scales_of_half_precision() -> None:
    text = """g (float16[2,6] x, float16 s, int8 z) => (int8[2,6] q, float16[2,6] y) {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z)}"""
    feeds = {"x": normal(2, 6).astype(np.float16), "s": np.array(0.125, np.float16)}
    check(text, {**feeds, "z": np.array(3, np.int8)})


def test_dynamic_quantization() -> None:
    text = """g (float[3,4] x) => (uint8[3,4] y, float s, uint8 z) {
        y, s, z = DynamicQuantizeLinear(x)}"""
    for feeds in (
        {"x": normal(3, 4)},
        {"x": np.abs(normal(3, 4)) + 1},
        {"x": -np.abs(normal(3, 4))},
    ):
        check(text, feeds)


def test_scales_are_compared_not_assumed() -> None:
    """Two quantized values of other scales are not joined as bytes."""
    net = Net()
    a, b = net.qdq("a", 0.02), net.qdq("b", 0.05)
    net.node("Concat", [a, b], "y", axis=0)
    model = net.model({"a": (3,), "b": (3,)}, "y")
    data = lower(model)
    feeds = {"a": normal(3), "b": normal(3) * 2}
    for name, value in expected(model, feeds).items():
        assert_close(outputs(data, feeds)[name], value, 1e-6, name)
