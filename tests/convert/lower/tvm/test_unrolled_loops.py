"""Loops of a known number of turns become their turns; what a run decides is named."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.lower.tvm.unrolled_loops import obstacle, unroll
from edgeinfer.types import Array

X = np.array([0.5, -1.0, 2.0], np.float32)
LOOP = """g (float[3] x) => (float[3] y, float[4,3] s) <int64 n = {4}, bool t = {1}> {
    y, s = Loop(n, t, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w, float[3] o)
        <float k = {0.5}> { d = Identity(c) f = Cast<to=1>(i) a = Add(v, f) w = Mul(a, k)
            o = Sub(w, x) }> }"""
SCAN = """g (float[2] h, float[3,4,2] x) => (float[2] y, float[2,4,3] z) {
    y, z = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[1], scan_output_directions=[1],
        body = b (float[2] s, float[3,2] e) => (float[2] o, float[2,3] p)
        { m = ReduceMax<keepdims=0>(e) o = Add(s, m) p = Transpose(e) }>(h, x) }"""


def _model(text: str) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["": 21]> {text}')


def _run(model: ir.Model, feeds: dict[str, Array]) -> list[Array]:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    return list(session.run(None, feeds))


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (LOOP, {"x": X}),
        (
            SCAN,
            {"h": X[:2], "x": np.arange(24, dtype=np.float32).reshape(3, 4, 2)},
        ),
    ],
    ids=["loop", "scan"],
)
def test_turns_are_written_out(text: str, feeds: dict[str, Array]) -> None:
    written = _model(text)
    right = _run(_model(text), feeds)
    assert unroll(written) == 1
    assert not {n.op_type for n in written.graph} & {"Loop", "Scan"}
    for found, wanted in zip(_run(written, feeds), right, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("<int64 n = {4}, bool t = {1}>", "<bool t = {1}>"), "known only at run time"),
        (("int64 n = {4}", "int64 n = {900}"), "900 turns of 5 operators are more than 2048"),
        (("int64 n = {4}", "int64 n = {0}"), "no turn"),
        (("bool t = {1}", "bool t = {0}"), "a condition that may end it"),
        (("d = Identity(c) f", "d = Less(k, k) f"), "a condition that may end it"),
    ],
)
def test_what_only_a_run_decides_stays(change: tuple[str, str], reason: str) -> None:
    text = LOOP.replace(*change)
    if "n =" not in text:
        text = text.replace("g (float[3] x)", "g (int64 n, float[3] x)")
    model = _model(text)
    (node,) = [n for n in model.graph if n.op_type == "Loop"]
    assert reason in obstacle(node)
    assert unroll(model) == 0
