"""ONNX Runtime's own operators, written out in the standard's, against ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.convert.lower.expand import definition, expand
from edgeinfer.convert.lower.onnxruntime.quirks import RULES
from edgeinfer.convert.lower.rules import apply
from edgeinfer.errors import Remarks
from edgeinfer.types import Array

HEAD = '<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]> g '


def _run(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    runtime = import_onnxruntime()
    settings = runtime.SessionOptions()
    settings.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(ir.to_proto(model).SerializeToString(), settings)
    return list(session.run(None, dict(feeds)))


def _same(text: str, tolerance: float = 1e-5, **given: Any) -> ir.Model:
    model = ir.from_onnx_text(HEAD + text)
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.inputs:
        if value.name in given:
            continue
        shape = value.shape.numpy() if value.shape is not None else ()
        feeds[value.name or ""] = rng.standard_normal(shape).astype(np.float32)
    feeds |= given
    want = _run(model, feeds)
    nodes = [n for n in model.graph if n.domain == "com.microsoft"]
    assert expand(model, nodes) == nodes
    assert not [n for n in model.graph if n.domain]
    # ONNX Runtime does not broadcast the rows of masks.
    assert not apply(model, RULES, Remarks())
    for a, b in zip(_run(model, feeds), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    return model


@pytest.mark.parametrize(
    "text",
    [
        "y = com.microsoft.FastGelu(x)",
        "y = com.microsoft.FastGelu(x, w)",
        "y = com.microsoft.BiasGelu(x, w)",
        "y = com.microsoft.Gelu(x)",
        "y = com.microsoft.QuickGelu<alpha = 1.5>(x)",
        "y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, z, w, v, u)",
        "y = com.microsoft.SkipLayerNormalization(x, z, w)",
        "y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(x, z, w, v)",
        "a, , , s = com.microsoft.SkipSimplifiedLayerNormalization(x, z, w) y = Add(a, s)",
    ],
)
def test_norms_and_gates(text: str) -> None:
    _same(
        "(float[2,3,8] x, float[2,3,8] z, float[8] w, float[8] v, float[8] u) => (float[2,3,8] y) "
        f"{{ {text} }}"
    )


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric: str) -> None:
    _same(
        "(float[5,4] x, float[7,4] z) => (float[5,7] y) "
        f'{{ y = com.microsoft.CDist<metric = "{metric}">(x, z) }}'
    )


@pytest.mark.parametrize(
    ("shape", "about", "ids"),
    [
        ("2,3,32", "num_heads = 4", [[4, 5, 6], [0, 2, 9]]),
        ("2,3,32", "interleaved = 1", [4]),
        ("2,4,3,8", "", [[4, 5, 6], [0, 2, 9]]),
        ("1,1,32", "", [7]),
    ],
)
def test_rotary_positions(shape: str, about: str, ids: list[object]) -> None:
    places = np.array(ids)
    sizes = ",".join(map(str, places.shape))
    _same(
        f"(float[{shape}] x, int64[{sizes}] p, float[12,4] c, float[12,4] s) => (float[{shape}] y) "
        f"{{ y = com.microsoft.RotaryEmbedding{f'<{about}>' if about else ''}(x, p, c, s) }}",
        p=places,
    )


@pytest.mark.parametrize(
    ("operands", "outputs", "about"),
    [
        ("q, k, v", "y", "num_heads = 2"),
        ("q, k, v, b", "y", "num_heads = 2, scale = 0.4"),
        ("q, k, v, , , m", "y", "num_heads = 2"),
        ("q, k, v, , , , pk, pv", "y, ok, ov", "num_heads = 2"),
    ],
)
def test_attention_of_many_heads(operands: str, outputs: str, about: str) -> None:
    results = "float[2,3,16] y" + (
        ", float[2,2,9,8] ok, float[2,2,9,8] ov" if "ok" in outputs else ""
    )
    _same(
        "(float[2,3,16] q, float[2,5,16] k, float[2,5,16] v, float[48] b, float[1,2,3,5] m, "
        f"float[2,2,4,8] pk, float[2,2,4,8] pv) => ({results}) "
        f"{{ {outputs} = com.microsoft.MultiHeadAttention<{about}>({operands}) }}"
    )


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize(
    ("tokens", "past", "present", "last"), [(1, 8, 8, 5), (1, 6, 7, 6), (3, 8, 8, 4), (4, 4, 4, 3)]
)
def test_grouped_attention_over_a_cache(
    rotary: int, tokens: int, past: int, present: int, last: int
) -> None:
    cache = f"float[1,2,{past},16]"
    grown = f"float[1,2,{present},16]"
    _same(
        f"(float[1,{tokens},64] q, float[1,{tokens},32] k, float[1,{tokens},32] v, {cache} pk, "
        f"{cache} pv, int32[1] l, int32 t, float[16,8] c, float[16,8] s) => "
        f"(float[1,{tokens},64] y, {grown} ok, {grown} ov) "
        "{ y, ok, ov = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, "
        f"do_rotary = {rotary}>(q, k, v, pk, pv, l, t, c, s) }}",
        l=np.array([last], np.int32),
        t=np.array(last + 1, np.int32),
    )


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize(("tokens", "past"), [(4, 0), (4, 6), (3, 3), (1, 6)])
@pytest.mark.parametrize("last", [(3, 1), (0, 2), (2, 2)])
def test_texts_of_one_prompt_have_lengths_of_their_own(
    rotary: int, tokens: int, past: int, last: tuple[int, int]
) -> None:
    """The shorter one's tokens were written before the cache's beginning."""
    if tokens == 1 and past:
        last = (last[0] + 2, last[1] + 3)
    else:
        last = (min(last[0], tokens - 1), min(last[1], tokens - 1))
    cache = f"float[2,2,{past},16]"
    grown = f"float[2,2,{past or tokens},16]"
    _same(
        f"(float[2,{tokens},64] q, float[2,{tokens},32] k, float[2,{tokens},32] v, {cache} pk, "
        f"{cache} pv, int32[2] l, int32 t, float[16,8] c, float[16,8] s) => "
        f"(float[2,{tokens},64] y, {grown} ok, {grown} ov) "
        "{ y, ok, ov = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, "
        f"do_rotary = {rotary}>(q, k, v, pk, pv, l, t, c, s) }}",
        l=np.array(last, np.int32),
        t=np.array(max(last) + 1 if tokens == 1 else tokens, np.int32),
    )


def test_what_has_no_definition_is_left() -> None:
    model = ir.from_onnx_text(
        HEAD + "(float[1,3,32] x) => (float[1,3,32] y) "
        "{ y = com.microsoft.GroupQueryAttention<num_heads = 4>(x) z = com.microsoft.Nothing(x) }"
    )
    assert [definition(node, 24) for node in model.graph] == [None, None]
    assert onnx.defs.onnx_opset_version() >= 24


def _ints(kind: str, *shape: int) -> Array:
    # Within 6 bits: on processors without VNNI ONNX Runtime's kernels saturate sums of more.
    ends = (0, 63) if kind == "uint8" else (-31, 31)
    return np.random.default_rng(3).integers(*ends, shape).astype(kind)


@pytest.mark.parametrize(
    ("mask", "given"),
    [
        ("", {}),
        ("int32[2,5] m", {"m": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], np.int32)}),
        # ONNX Runtime asks whether it is above zero.
        ("int32[2,5] m", {"m": np.array([[1, 7, 99, 1, 2], [3, 1, 0, -5, 0]], np.int32)}),
        ("int32[2,5,5] m", {"m": np.tril(np.ones((2, 5, 5), np.int32))}),
        ("int32[2] m", {"m": np.array([5, 3], np.int32)}),
    ],
)
@pytest.mark.parametrize("about", ["", ", unidirectional = 1", ", scale = 0.5"])
def test_attention_with_packed_weights(mask: str, given: dict[str, Any], about: str) -> None:
    _same(
        f"(float[2,5,8] x, float[8,24] w, float[24] b{', ' if mask else ''}{mask}) "
        f"=> (float[2,5,8] y) {{ y = com.microsoft.Attention<num_heads = 2{about}>"
        f"(x, w, b{', m' if mask else ''}) }}",
        **given,
    )


@pytest.mark.parametrize("about", ["", ", unidirectional = 1"])
def test_packed_weights_and_the_steps_before(about: str) -> None:
    seen = np.ones((2, 8), np.int32)
    seen[1, -2:] = 0
    _same(
        f"(float[2,5,8] x, float[8,24] w, float[24] b, int32[2,8] m, float[2,2,2,3,4] p) "
        f"=> (float[2,5,8] y, float[2,2,2,8,4] q) {{ "
        f"y, q = com.microsoft.Attention<num_heads = 2{about}>"
        "(x, w, b, m, p) }",
        m=seen,
    )


@pytest.mark.parametrize("scales", ["", "[24]"])
def test_attention_of_integers(scales: str) -> None:
    shape = (24,) if scales else ()
    _same(
        f"(uint8[2,5,8] x, int8[8,24] w, float[24] b, float xs, float{scales} ws, int32[2,5] m, "
        f"uint8 xz, int8{scales} wz) => (float[2,5,8] y) "
        "{ y = com.microsoft.QAttention<num_heads = 2>(x, w, b, xs, ws, m, xz, wz) }",
        x=_ints("uint8", 2, 5, 8),
        w=_ints("int8", 8, 24),
        xs=np.array(0.05, np.float32),
        ws=np.full(shape, 0.02, np.float32),
        m=np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], np.int32),
        xz=np.array(30, np.uint8),
        wz=np.zeros(shape, np.int8),
        tolerance=1e-4,
    )


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("bias", ["", ", c"])
def test_products_of_integers(kind: str, bias: str) -> None:
    given: dict[str, Any] = {
        "x": _ints("uint8", 3, 8),
        "w": _ints(kind, 8, 4),
        "xs": np.array(0.05, np.float32),
        "ws": np.array([0.01, 0.02, 0.03, 0.04], np.float32),
        "xz": np.array(20, np.uint8),
        "wz": np.full(4, 3, kind),
    }
    taken = f"{kind}[8,4] w, float[4] ws, {kind}[4] wz, float[4] c"
    _same(
        f"(uint8[3,8] x, float xs, uint8 xz, {taken}) => (float[3,4] y) "
        f"{{ y = com.microsoft.MatMulIntegerToFloat(x, w, xs, ws, xz, wz{bias}) }}",
        **given,
    )
    stored: dict[str, Any] = {name: given[name] for name in ("w", "ws", "wz")}
    _same(
        f"(float[3,8] x, {taken}) => (float[3,4] y) "
        f"{{ y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, wz{bias}) }}",
        tolerance=1e-4,
        **stored,
    )


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("scales", [1, 32])
def test_lstm_of_integers(direction: str, scales: int) -> None:
    ways = 2 if direction == "bidirectional" else 1
    size = f"{ways}" if scales == 1 else f"{ways},{scales}"
    shape = tuple(map(int, size.split(",")))
    _same(
        f"(float[4,2,6] x, int8[{ways},6,32] w, int8[{ways},8,32] r, float[{ways},64] b, "
        f"float[{size}] s, int8[{size}] z) => (float[4,{ways},2,8] y, float[{ways},2,8] h) "
        f'{{ y, h = com.microsoft.DynamicQuantizeLSTM<hidden_size = 8, direction = "{direction}">'
        '(x, w, r, b, "", "", "", "", s, z, s, z) }',
        w=_ints("int8", ways, 6, 32),
        r=_ints("int8", ways, 8, 32),
        s=np.full(shape, 0.01, np.float32),
        z=np.zeros(shape, np.int8),
        # It rounds inputs and states to 8 bits in each step, which is its error.
        tolerance=2e-2,
    )


def test_embeddings() -> None:
    ids = np.array([[1, 2, 3, 0], [4, 5, 0, 0]], np.int32)
    given: dict[str, Any] = {
        "i": ids,
        "s": (ids > 2).astype(np.int32),
        "m": (ids > 0).astype(np.int32),
    }
    names = "int32[2,4] i, int32[2,4] s, int32[2,4] m"
    _same(
        f"({names}, float[9,8] w, float[6,8] p, float[2,8] t, float[8] g, float[8] b) "
        "=> (float[2,4,8] y, int32[2] n) "
        "{ y, n = com.microsoft.EmbedLayerNormalization(i, s, w, p, t, g, b, m) }",
        **given,
    )
    # Sizes of a run, and a mask of which ONNX Runtime counts the ones alone.
    opened = names.replace("2,4", "n,t")
    _same(
        f"({opened}, float[9,8] w, float[6,8] p, float[2,8] t, float[8] g, float[8] b) "
        "=> (float[n,t,8] y, int32[n] k) "
        "{ y, k = com.microsoft.EmbedLayerNormalization(i, s, w, p, t, g, b, m) }",
        **given | {"m": np.array([[1, 7, 1, 0], [-1, 1, 1, 2]], np.int32)},
    )
    scale, zero = np.array(0.02, np.float32), np.array(3, np.int8)
    _same(
        f"({names}, int8[9,8] w, int8[6,8] p, int8[2,8] t, int8[8] g, int8[8] b, float k, int8 z) "
        "=> (float[2,4,8] y) { y, n = com.microsoft.QEmbedLayerNormalization"
        "(i, s, w, p, t, g, b, m, k, k, k, k, k, z, z, z, z, z) }",
        **given,
        **{n: _ints("int8", *s) for n, s in {"w": (9, 8), "p": (6, 8), "t": (2, 8)}.items()},
        g=_ints("int8", 8),
        b=_ints("int8", 8),
        k=scale,
        z=zero,
        tolerance=1e-4,
    )


@pytest.mark.parametrize(
    "text",
    [
        "(float[2,3,4] x, float[2,5,4] z) => (float[2,3,5] y) "
        "{ y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, z) }",
        "(float[1,3,6,6] x, float[4,3,3,3] w, float[4] b) => (float[1,4,4,4] y) "
        '{ y = com.microsoft.FusedConv<activation = "LeakyRelu", activation_params = [0.2], '
        "kernel_shape = [3, 3]>(x, w, b) }",
        "(float[1,3,6,6] x, float[4,3,3,3] w, float[4] b, float[1,4,6,6] s) => (float[1,4,6,6] y) "
        '{ y = com.microsoft.FusedConv<activation = "Relu", pads = [1, 1, 1, 1]>(x, w, b, s) }',
        "(float[1,3,6,6] x, float[4,3,3,3] w) => (float[1,4,4,4] y) "
        '{ y = com.microsoft.FusedConv<activation = "Relu">(x, w) }',
        "(float[3,4] x, float[4,5] w, float[5] b) => (float[3,5] y) "
        '{ y = com.microsoft.FusedGemm<activation = "Tanh">(x, w, b) }',
        "(float[4,3] x, float[4,5] w) => (float[3,5] y) "
        "{ y = com.microsoft.TransposeMatMul<transA = 1>(x, w) }",
        "(float[3,4] x) => (float[3,4] y) { y = com.microsoft.Trilu<upper = 0>(x) }",
        "(float[3,4] x) => (float[1,3,4] y) <int32 a = {0}> { y = com.microsoft.ExpandDims(x, a) }",
        "(float[3,4] x) => (float[4,6] y) <int64[4] p = {0, 1, 1, 1}> "
        '{ y = com.microsoft.Pad<mode = "edge">(x, p) }',
        "(float[3,4] x, float[5,4] w, float[5] b) => (float[3,5] y) "
        '{ y = com.microsoft.FusedGemm<activation = "Relu", transB = 1>(x, w, b) }',
    ],
)
def test_what_the_optimiser_joins(text: str) -> None:
    _same(text)
