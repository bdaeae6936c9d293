"""Members of known sequences are read where they are made; others stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.settle_sequences import SettleSequences

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '


def run(model: ir.Model, x: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(y) for y in session.run(None, {"x": x})]


@pytest.mark.parametrize(
    "text",
    [
        "<int64 n = {2}, int64 i = {-1}> "
        "{ s = SplitToSequence<axis=0>(x, n) y = SequenceAt(s, i) }",
        "<int64 n = {4}, int64 i = {1}> { s = SplitToSequence<axis=0>(x, n) y = SequenceAt(s, i) }",
        "<int64[3] n = {1, 2, 3}, int64 i = {2}> "
        "{ s = SplitToSequence<axis=0>(x, n) y = SequenceAt(s, i) }",
        "<int64 i = {3}> { s = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(s, i) }",
        "{ s = SplitToSequence<axis=1>(x) y = ConcatFromSequence<axis=0>(s) }",
        "{ s = SplitToSequence<axis=1, keepdims=0>(x) "
        "y = ConcatFromSequence<axis=0, new_axis=1>(s) }",
        "<int64 i = {1}> { r = Relu(x) n = Neg(x) s = SequenceConstruct(x, r) "
        "t = SequenceInsert(s, n, i) u = SequenceErase(t) y = ConcatFromSequence<axis=1>(u) }",
        "{ r = Relu(x) s = SequenceConstruct(x, r) n = SequenceLength(s) f = Cast<to=1>(n) "
        "y = Add(x, f) }",
    ],
)
def test_known_members(text: str) -> None:
    model = ir.from_onnx_text(f"{HEAD} g (float[6,3] x) => (float[?] y) {text}")
    short = normalise(model).model
    assert not [n.op_type for n in short.graph if "Sequence" in n.op_type]
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    for found, right in zip(run(short, x), run(model, x), strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ("float[6,3] x, int64 n", "<int64 i = {0}>"),
        ("float[N,3] x, int64[2] n", "<int64 i = {0}>"),
    ],
)
def test_what_only_a_run_knows_stays(inputs: str, text: str) -> None:
    body = "{ s = SplitToSequence<axis=0>(x, n) y = SequenceAt(s, i) }"
    model = ir.from_onnx_text(f"{HEAD} g ({inputs}) => (float[?] y) {text} {body}")
    assert not SettleSequences()(model).modified


@pytest.mark.parametrize("shape", ["N,3", "6,M", "6,3"])
@pytest.mark.parametrize(
    "text",
    [
        "(float[a,b] y) {s = SplitToSequence<axis=0>(x, n) y = SequenceAt(s, i)}",
        "(float[a,b] y) {s = SplitToSequence<axis=-1>(x, n) y = SequenceAt(s, i)}",
        "(float[a] y) {s = SplitToSequence<axis=1, keepdims=0>(x) y = SequenceAt(s, i)}",
        "(int64 y) {s = SplitToSequence<axis=0>(x, n) y = SequenceLength(s)}",
        "(float[a,b] y) {s = SplitToSequence<axis=1>(x, n) y = ConcatFromSequence<axis=-1>(s)}",
        "(float[a,b] y) {s = SplitToSequence<axis=0, keepdims=0>(x)"
        " y = ConcatFromSequence<axis=0, new_axis=1>(s)}",
    ],
)
def test_equal_parts_that_only_a_run_counts(text: str, shape: str) -> None:
    text = text.replace("{", "<int64 n = {4}> {", 1)
    plain = ir.from_onnx_text(f"{HEAD} g (float[{shape}] x, int64 i) => {text}")
    short = normalise(plain).model
    assert not [n.op_type for n in short.graph if "Sequence" in n.op_type]
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    for place in (0, -1, 1 if "axis=0" in text else 0):
        answers = []
        for model in (short, plain):
            session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
            given = {v.name for v in session.get_inputs()}
            feeds = {"x": x, "i": np.array(place)}
            answers.append(session.run(None, {k: v for k, v in feeds.items() if k in given})[0])
        np.testing.assert_array_equal(*answers)
