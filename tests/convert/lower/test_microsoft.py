"""ONNX Runtime's own operators, written out in the standard's, against ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.convert.lower.expand import definition, expand
from edgeinfer.types import Array

HEAD = '<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]> g '


def _run(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    runtime = import_onnxruntime()
    settings = runtime.SessionOptions()
    settings.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(ir.to_proto(model).SerializeToString(), settings)
    return list(session.run(None, dict(feeds)))


def _same(text: str, tolerance: float = 1e-5, **given: Array) -> ir.Model:
    model = ir.from_onnx_text(HEAD + text)
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.inputs:
        shape = value.shape.numpy() if value.shape is not None else ()
        feeds[value.name or ""] = rng.standard_normal(shape).astype(np.float32)
    feeds |= given
    want = _run(model, feeds)
    nodes = [n for n in model.graph if n.domain == "com.microsoft"]
    assert expand(model, nodes) == nodes
    assert not [n for n in model.graph if n.domain]
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


def test_what_has_no_definition_is_left() -> None:
    model = ir.from_onnx_text(
        HEAD + "(float[1,3,32] x) => (float[1,3,32] y) "
        "{ y = com.microsoft.GroupQueryAttention<num_heads = 4>(x) z = com.microsoft.Nothing(x) }"
    )
    assert [definition(node, 24) for node in model.graph] == [None, None]
    assert onnx.defs.onnx_opset_version() >= 24
