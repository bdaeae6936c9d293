"""Weights of 4 and 8 bits stay what they are up to the kernel that multiplies by them."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from tests.convert.lower.tvm.run import Array, outputs

from edgeinfer.backends.engines import import_onnxruntime  # isort: skip
from edgeinfer.convert.lower.tvm import narrow  # isort: skip

NEAR = 1e-4
"""Vectors have 16 bits within each block; the results are up to ten times less than their terms."""


def _nbits(bits: int, block: int, level: int, zeros: str, vectors: int, kind: int) -> Any:
    n, k = 21, 100
    rng = np.random.default_rng(0)
    count = -(-k // block)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    known = {
        "w": rng.integers(0, 256, (n, count, block * bits // 8), dtype=np.uint8),
        "s": (rng.random((n, count)) * 0.02 + 0.001).astype(dtype),
        "b": rng.standard_normal(n).astype(dtype),
    }
    if zeros == "whole":
        known["z"] = rng.integers(0, 256, (n, -(-count * bits // 8)), dtype=np.uint8)
    if zeros == "float":
        known["z"] = (rng.random((n, count)) * 15).astype(dtype)
    inputs = ["x", "w", "s", "z" if zeros else "", "", "b"]
    about = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **about)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, vectors, k])],
        [helper.make_tensor_value_info("y", kind, [1, vectors, n])],
        [numpy_helper.from_array(a, name) for name, a in known.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _expected(model: onnx.ModelProto, x: Array) -> Array:
    session = import_onnxruntime().InferenceSession(model.SerializeToString())
    found: Array = session.run(None, {"x": x})[0]
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("bits", "block", "level", "zeros", "vectors"),
    [
        (4, 32, 0, "", 1),
        (4, 128, 4, "whole", 3),
        (4, 32, 0, "float", 1),
        (4, 16, 0, "whole", 2),
        (8, 32, 0, "whole", 1),
        (4, 32, 0, "", narrow.MOST + 1),
    ],
)
def test_ort_operator(bits: int, block: int, level: int, zeros: str, vectors: int) -> None:
    model = _nbits(bits, block, level, zeros, vectors, TensorProto.FLOAT)
    x = np.random.default_rng(1).standard_normal((1, vectors, 100)).astype(np.float32)
    want = _expected(model, x)
    error = np.abs(outputs(model, {"x": x})["y"] - want).max() / np.abs(want).max()
    assert error < NEAR


def _dequantized(
    q: Array, kind: int, scales: Array, zeros: Array | None, text: str, **about: int
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')
    held = [("q", q, kind), ("s", scales, TensorProto.FLOAT)]
    held += [] if zeros is None else [("z", zeros, kind)]
    for name, array, dtype in held:
        model.graph.initializer.append(helper.make_tensor(name, dtype, array.shape, array.ravel()))
    model.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in about.items())
    return model


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("columns", TensorProto.UINT4),
        ("rows", TensorProto.INT4),
        ("row scales", TensorProto.INT8),
        ("one scale", TensorProto.INT4),
    ],
)
def test_dequantized_weights(case: str, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def spied(*given: Any, **named: Any) -> Any:
        used.append(1)
        return narrow.multiplied(*given, **named)

    monkeypatch.setattr("edgeinfer.convert.lower.tvm.ops.matrix.multiplied", spied)
    rng = np.random.default_rng(0)
    low, high = {TensorProto.UINT4: (0, 16), TensorProto.INT4: (-8, 8)}.get(kind, (-128, 128))
    right = "(float[2,96] x) => (float[2,24] y) { w = DequantizeLinear(q, s, z) y = MatMul(x, w) }"
    left = (
        "(float[2,96] x) => (float[2,24] y) "
        "{ w = DequantizeLinear(q, s, z) t = Transpose<perm=[1,0]>(w) y = MatMul(x, t) }"
    )
    text, shape, factors, about = {
        "columns": (right, (96, 24), (3, 24), {"axis": 0, "block_size": 32}),
        "rows": (left, (24, 96), (24, 3), {"axis": 1, "block_size": 32}),
        "row scales": (left, (24, 96), (24,), {"axis": 0}),
        "one scale": (right, (96, 24), (), {}),
    }[case]
    q, zeros = rng.integers(low, high, shape), rng.integers(low, high, factors)
    scales = (rng.random(factors) * 0.02 + 0.001).astype(np.float32)
    model = _dequantized(q, kind, scales, np.asarray(zeros), text, **about)
    x = rng.standard_normal((2, 96)).astype(np.float32)
    axis, block = about.get("axis", 0), about.get("block_size", 0)
    wide = [np.asarray(a, np.float64) for a in (scales, zeros)]
    if block:
        wide = [np.repeat(a, block, axis) for a in wide]
    if case == "row scales":
        wide = [a[:, None] for a in wide]
    matrix = (q - wide[1]) * wide[0]
    want = x.astype(np.float64) @ (matrix.T if text == left else matrix)
    got = outputs(model, {"x": x})["y"]
    assert np.abs(got - want).max() < NEAR * np.abs(want).max()
    assert used == [1]


def _decoder(size: int, inner: int) -> onnx.ModelProto:
    """A layer of a decoder as exporters for ONNX Runtime write it, over a cache of 16 tokens."""
    rng = np.random.default_rng(0)
    angles = np.outer(np.arange(32), 0.5 ** np.arange(8)).astype(np.float32)
    known = {"one": np.ones(size, np.float32), "c": np.cos(angles), "s": np.sin(angles)}
    known |= {"last": np.array([9], np.int32), "all": np.array(10, np.int32)}

    def product(x: str, y: str, n: int, k: int) -> str:
        known[f"{y}_q"] = rng.integers(0, 256, (n, k // 32, 16), dtype=np.uint8)
        known[f"{y}_s"] = (rng.random(n * k // 32) * 0.2 / k**0.5).astype(np.float32)
        about = f"K={k}, N={n}, bits=4, block_size=32"
        return f"{y} = com.microsoft.MatMulNBits<{about}>({x}, {y}_q, {y}_s)"

    skip = "com.microsoft.SkipSimplifiedLayerNormalization<epsilon=0.00001>"
    steps = [
        "n = SimplifiedLayerNormalization<axis=-1, epsilon=0.00001>(x, one)",
        *(product("n", y, n, size) for y, n in (("q", size), ("k", size // 2), ("v", size // 2))),
        "a, ok, ov = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2, do_rotary=1>"
        "(q, k, v, pk, pv, last, all, c, s)",
        product("a", "o", size, size),
        f"m, , , r = {skip}(x, o, one)",
        product("m", "g", inner, size),
        product("m", "u", inner, size),
        "t = Sigmoid(g) h = Mul(g, t) j = Mul(h, u)",
        product("j", "d", size, inner),
        f"y, , , z = {skip}(r, d, one)",
    ]
    row = f"float[1,1,{size}]"
    cache = "float[1,2,16,16]"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g '
        f"({row} x, {cache} pk, {cache} pv) => ({row} y, {row} z, {cache} ok, {cache} ov) "
        f"{{ {' '.join(steps)} }}"
    )
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in known.items())
    return model


@pytest.mark.slow
def test_a_layer_of_a_decoder() -> None:
    model, rng = _decoder(64, 96), np.random.default_rng(1)
    feeds = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim])
        for value in model.graph.input
    }
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    session = import_onnxruntime().InferenceSession(model.SerializeToString())
    names = [v.name for v in model.graph.output]
    got = outputs(model, feeds)
    for name, want in zip(names, session.run(names, feeds), strict=True):
        assert np.abs(got[name] - want).max() < NEAR * np.abs(want).max()
