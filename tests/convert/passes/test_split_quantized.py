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
    # Without VNNI its kernels saturate, unless it may store weights in another way.
    options.add_session_config_entry("session.x64quantprecision", "1")
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


@pytest.mark.parametrize("channels", [8, 64, 70])
def test_long_sums_are_added_up_in_parts(channels: int) -> None:
    text = f"""g (uint8[1,{channels},5,5] x, uint8[3,{channels},3,3] w) => (int32[1,3,3,3] y)
        {{y = ConvInteger(x, w)}}"""
    model = ir.from_onnx_text(HEADER + text)
    feeds = {
        "x": np.full((1, channels, 5, 5), 255, np.uint8),
        "w": np.full((3, channels, 3, 3), 255, np.uint8),
    }
    want = run(model, feeds)
    assert SplitQuantized()(model).modified
    kinds = [n.op_type for n in model.graph]
    # 28 channels of 9 products each: 28 * 9 * 255 * 255 < 2 ** 24.
    assert kinds.count("Conv") == -(-channels // 28)
    np.testing.assert_array_equal(run(model, feeds), want)


@pytest.mark.parametrize("depth", [7, 600])
@pytest.mark.parametrize(
    ("types", "shapes", "zeros"),
    [
        (("uint8", "int8"), ("2,3,K", "K,4"), "uint8 az = {7}, int8[4] bz = {1, -2, 3, -4}"),
        (("uint8", "uint8"), ("3,K", "K,4"), "uint8[3] az = {1, 2, 3}, uint8 bz = {130}"),
        (("int8", "uint8"), ("K", "K,4"), "int8 az = {-8}, uint8[1] bz = {250}"),
        (("int8", "int8"), ("2,3,K", "2,K,4"), ""),
    ],
)
def test_integer_products_are_exact(
    types: tuple[str, str], shapes: tuple[str, str], zeros: str, depth: int
) -> None:
    a, b = (s.replace("K", str(depth)) for s in shapes)
    given = ", az, bz" if zeros else ""
    text = f"""g ({types[0]}[{a}] a, {types[1]}[{b}] b) => (int32[?] y) <{zeros}>
        {{y = MatMulInteger(a, b{given})}}"""
    model = ir.from_onnx_text(HEADER + text)
    feeds = {
        name: np.full(tuple(map(int, shape.split(","))), np.iinfo(kind).max, kind)
        for name, kind, shape in zip("ab", types, (a, b), strict=True)
    }
    # Not by ONNX Runtime: without VNNI its kernels saturate.
    wide = {n: v.astype(np.int64) for n, v in feeds.items()}
    points = {
        n: v.const_value.numpy() for n, v in model.graph.initializers.items() if v.const_value
    }
    left = points.get("az", np.zeros((), np.uint8)).astype(np.int64)
    right = points.get("bz", np.zeros((), np.uint8)).astype(np.int64)
    want = (wide["a"] - (left[:, None] if left.ndim else left)) @ (wide["b"] - right)
    assert SplitQuantized()(model).modified
    assert not any(n.op_type == "MatMulInteger" for n in model.graph)
    np.testing.assert_array_equal(run(model, feeds), want)


def test_integers_that_become_floats_are_one_product() -> None:
    text = """g (uint8[3,K] a, int8[K,4] b) => (float[3,4] y)
        {i = MatMulInteger(a, b) y = Cast<to=1>(i)}"""
    model = ir.from_onnx_text(HEADER + text)
    SplitQuantized()(model)
    assert [n.op_type for n in model.graph].count("MatMul") == 1


def test_a_state_of_a_loop_has_sizes_of_its_own() -> None:
    text = """g (int64 n, float[2,8] x, int8[8,8] w) => (float[2,8] y) {
        c = Constant<value = bool {1}>()
        y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2,8] s) => (bool co, float[2,8] so) {
            co = Identity(ci) q, k, z = DynamicQuantizeLinear(s) p = MatMulInteger(q, w, z)
            f = Cast<to = 1>(p) so = Mul(f, k) }> }"""
    model = ir.from_onnx_text(HEADER + text)
    feeds = {
        "n": np.array(2),
        "x": RNG.normal(size=(2, 8)).astype(np.float32),
        "w": RNG.integers(-9, 9, (8, 8)).astype(np.int8),
    }
    want = run(model, feeds)
    for node in model.graph.all_nodes():
        if node.op_type == "DynamicQuantizeLinear":
            (state,) = node.inputs
            assert state is not None
            state.shape = None
            node.outputs[2].shape = ir.Shape([])
    assert SplitQuantized()(model).modified
    assert "MatMulInteger" not in [n.op_type for n in model.graph.all_nodes()]
    np.testing.assert_allclose(run(model, feeds), want, rtol=1e-5)


def test_sums_of_an_unknown_length_are_left_alone() -> None:
    text = "g (uint8[3,K] a, int8[K,4] b) => (int32[3,4] y) {y = MatMulInteger(a, b)}"
    assert not SplitQuantized()(ir.from_onnx_text(HEADER + text)).modified


def test_only_what_is_asked_for_is_split() -> None:
    text = "g (uint8[3,8] a, int8[8,4] b) => (int32[3,4] y) {y = MatMulInteger(a, b)}"
    model = ir.from_onnx_text(HEADER + text)
    assert not SplitQuantized(lambda node: node.op_type == "ConvInteger")(model).modified
    assert SplitQuantized(lambda node: node.op_type == "MatMulInteger")(model).modified
