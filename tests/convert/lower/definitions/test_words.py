"""Counts of sequences of words by their definition, against ONNX Runtime; and small constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from edgeinfer.convert.lower.expand import expand
from edgeinfer.types import Array

POOL: dict[str, Any] = {
    "ngram_counts": [0, 4],
    "ngram_indexes": [0, 1, 2, 3, 6, 5, 4],
    "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
}
TEXT = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8], [5, 6, 7, 8, 6, 7]], np.int32)


def _model(x: Array, shape: list[int], attributes: dict[str, Any]) -> onnx.ModelProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    node = onnx.helper.make_node("TfIdfVectorizer", ["x"], ["y"], name="n", **attributes)
    given = onnx.helper.make_tensor_value_info("x", kind, x.shape)
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph([node], "g", [given], [made])
    opset = [onnx.helper.make_opsetid("", 24)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=10)


def _run(model: onnx.ModelProto, x: Array) -> Array:
    session = ort.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.sample(10)
@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_counts(mode: str, lengths: tuple[int, int], skips: int) -> None:
    given = dict(POOL, mode=mode, max_skip_count=skips, weights=[0.5, 1, 2, 3, 0.25, 4, 7])
    given.update(min_gram_length=lengths[0], max_gram_length=lengths[1])
    for x, shape in ((TEXT, [3, 7]), (TEXT[2].astype(np.int64), [7])):
        plain = _model(x, shape, given)
        written = ir.from_proto(plain)
        assert expand(written, list(written.graph))
        assert "TfIdfVectorizer" not in {n.op_type for n in written.graph}
        np.testing.assert_array_equal(_run(ir.to_proto(written), x), _run(plain, x))


def test_words_in_letters_stay() -> None:
    given = dict(POOL, mode="TF", max_skip_count=0, min_gram_length=1, max_gram_length=1)
    del given["pool_int64s"]
    written = ir.from_proto(_model(TEXT, [3, 7], dict(given, pool_strings=["a"] * 10)))
    assert expand(written, list(written.graph)) == []


@pytest.mark.parametrize(
    "text",
    [
        "g () => (y) <int64 n = {8}, int64 d = {64}, int64 r = {8000}, float a = {20.0},"
        " float b = {3500.0}> {y = MelWeightMatrix(n, d, r, a, b)}",
        "g (float[2] x) => (y) {y = OptionalHasElement(x)}",
        "g (float[2] x) => (y) {y = OptionalGetElement(x)}",
        "g () => (y) {y = OptionalHasElement()}",
    ],
)
def test_constants_and_what_is_there(text: str) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 24]> {text}')
    proto = onnx.shape_inference.infer_shapes(proto)
    feeds = {v.name: np.ones(2, np.float32) for v in proto.graph.input}
    (right,) = ReferenceEvaluator(proto).run(None, feeds)
    written = ir.from_proto(proto)
    before = [n.op_type for n in written.graph if n.op_type.startswith(("Mel", "Optional"))]
    assert expand(written, [n for n in written.graph if n.op_type in before])
    assert before[0] not in {n.op_type for n in written.graph}
    (found,) = ReferenceEvaluator(ir.to_proto(written)).run(None, feeds)
    np.testing.assert_allclose(found, right, rtol=1e-6)
    assert np.asarray(found).dtype == np.asarray(right).dtype
