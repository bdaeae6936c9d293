"""Lists that loops append to are collected by the loops; what is more than that stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.passes.collect_sequences import CollectSequences

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
BODY = (
    "<body = b (int64 i, bool c, float[2,3] h, seq(float[2,3]) q)"
    " => (bool d, float[2,3] g, seq(float[2,3]) r) <float two = {2.0}>"
    " {d = Identity(c) g = Mul(h, two) v = Neg(g) r = SequenceInsert(q, v)}>"
)
LOOP = f"e = SequenceEmpty() z, s = Loop(n, t, x, e) {BODY}"


def _model(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(
        f"{HEAD} g (float[2,3] x, int64 n, int64 k) => {text.replace('{', '<bool t = {1}> {', 1)}"
    )
    made: ir.Model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    return made


def _run(model: ir.Model, turns: int) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    feeds = {"x": x, "n": np.array(turns), "k": np.array(1)}
    wanted = {i.name for i in session.get_inputs()}
    return [
        np.asarray(y) for y in session.run(None, {n: v for n, v in feeds.items() if n in wanted})
    ]


READERS = {
    "stacked first": ("float[a,2,3]", "ConcatFromSequence<axis=0, new_axis=1>(s)"),
    "stacked last": ("float[2,3,a]", "ConcatFromSequence<axis=-1, new_axis=1>(s)"),
    "joined": ("float[a,3]", "ConcatFromSequence<axis=0>(s)"),
    "joined behind": ("float[2,a]", "ConcatFromSequence<axis=1>(s)"),
    "one of them": ("float[2,3]", "SequenceAt(s, k)"),
    "their number": ("int64", "SequenceLength(s)"),
}


@pytest.mark.parametrize("reader", READERS)
def test_lists_are_collected(reader: str) -> None:
    kind, call = READERS[reader]
    text = f"({kind} y, float[2,3] z) {{{LOOP} y = {call}}}"
    plain, short = _model(text), _model(text)
    assert CollectSequences()(short).modified
    every = {n.op_type for n in ir.traversal.RecursiveGraphIterator(short.graph)}
    assert not {"SequenceInsert", "ConcatFromSequence", "SequenceAt", "SequenceLength"} & every
    for turns in (3, 2):
        for found, right in zip(_run(short, turns), _run(plain, turns), strict=True):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    "text",
    [
        # Something inside reads the list.
        f"(float[2,a] y) {{{LOOP} y = ConcatFromSequence<axis=1>(s)}}".replace(
            "v = Neg(g)", "l = SequenceLength(q) f = Cast<to=1>(l) v = Add(g, f)"
        ),
        # New members come first.
        f"(float[2,a] y) {{{LOOP} y = ConcatFromSequence<axis=1>(s)}}".replace(
            "SequenceInsert(q, v)", "SequenceInsert(q, v, k)"
        ),
        # It is more than a list of the turns'.
        f"(float[2,a] y) {{{LOOP} y = ConcatFromSequence<axis=1>(s)}}".replace(
            "SequenceEmpty()", "SequenceConstruct(x)"
        ),
        f"(float[2,a] y) {{{LOOP} u = SequenceInsert(s, x) y = ConcatFromSequence<axis=1>(u)}}",
        # Pieces grow.
        f"(float[a,3] y) {{{LOOP} y = ConcatFromSequence<axis=0>(s)}}".replace("[2,3] h", "[p,3] h")
        .replace("[2,3] g", "[o,3] g")
        .replace("Mul(h, two)", "Concat<axis=0>(h, x)"),
    ],
)
def test_other_lists_stay(text: str) -> None:
    model = _model(text)
    assert not CollectSequences()(model).modified
