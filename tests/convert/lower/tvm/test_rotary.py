"""Rotary positions: by their kernel where everything is float32 of a fixed size, else by loops."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from onnx.reference import ReferenceEvaluator

from tests.convert.lower.tvm.run import Array, outputs

from edgeinfer.kernels.defs import rows  # isort: skip


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> g {text}')


def _feeds(model: onnx.ModelProto, ids: Array | None) -> dict[str, Array]:
    rng, made = np.random.default_rng(0), {}
    for value in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [d.dim_value or 5 for d in value.type.tensor_type.shape.dim]
        made[value.name] = rng.standard_normal(shape).astype(kind)
    return {**made, **({} if ids is None else {"p": ids})}


IDS = np.array([[3, 4, 11, 0, 7], [0, 1, 2, 3, 4]])

HEADS_FIRST = (
    "(float[2,3,5,32] x, float[12,16] c, float[12,16] s, int64[2,5] p) => (float[2,3,5,32] y) "
    "{ y = RotaryEmbedding(x, c, s, p) }"
)
TOKENS_FIRST = (
    "(float[2,5,96] x, float[2,5,10] c, float[2,5,10] s) => (float[2,5,96] y) "
    "{ y = RotaryEmbedding<num_heads=3, rotary_embedding_dim=20, interleaved=1>(x, c, s) }"
)
PARTLY = (
    "(float[2,3,5,32] x, float[12,8] c, float[12,8] s, int64[2,5] p) => (float[2,3,5,32] y) "
    "{ y = RotaryEmbedding<rotary_embedding_dim=16>(x, c, s, p) }"
)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (HEADS_FIRST, "float"),
        (TOKENS_FIRST, "float"),
        (PARTLY, "float"),
        (PARTLY, "float16"),
        (TOKENS_FIRST, "open"),
    ],
)
def test_numbers(text: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    kernel = rows.rope

    def spied(*given: Any, **named: Any) -> Any:
        used.append(1)
        return kernel(*given, **named)

    monkeypatch.setattr(rows, "rope", spied)
    if form == "open":
        text = text.replace("2,3,5,32", "2,3,T,32").replace("2,5", "2,T")
    model = _model(text.replace("float", form) if form == "float16" else text)
    feeds = _feeds(model, IDS if "p)" in text else None)
    want = ReferenceEvaluator(model).run(None, feeds)[0]
    got = outputs(model, feeds)["y"]
    assert np.abs(got - want).max() < (5e-3 if form == "float16" else 1e-6)
    assert bool(used) == (form == "float")


def test_a_position_beyond_the_tables_is_the_last() -> None:
    feeds = _feeds(_model(HEADS_FIRST), IDS)
    beyond = {**feeds, "p": np.where(IDS == 11, 1 << 40, IDS)}
    first, second = (outputs(_model(HEADS_FIRST), f)["y"] for f in (feeds, beyond))
    np.testing.assert_array_equal(first, second)
