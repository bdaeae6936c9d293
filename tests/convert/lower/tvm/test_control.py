"""Branches and turns that a run decides, with every number of turns in turn on one library."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tvm.run import Array, load, lower

X = np.array([0.5, -1.0, 2.0], np.float32)
LOOP = """(int64 n, bool t, float[3] x) => (float[3] y, float[k,3] s) {
    y, s = Loop(n, t, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w, float[3] o)
        <float k = {0.5}, float top = {1.9}, int64[1] a = {0}> { f = Cast<to=1>(i) g = Add(v, f)
            w = Mul(g, k) m = ReduceMax<keepdims=0>(w, a) d = Less(m, top) o = Sub(w, x) }> }"""
IF = """(bool c, float[n,3] x) => (float[m,3] y) {
    y = If(c) <then_branch = a () => (float[p,3] u) { q = Relu(x) u = Concat<axis=0>(q, x) },
        else_branch = b () => (float[q,3] v) { v = Identity(x) }> }"""


def _agree(folder: Path, text: str, *all_feeds: dict[str, Array]) -> None:
    head = '<ir_version: 10, opset_import: ["": 21]> g '
    model = onnx.parser.parse_model(head + text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    ready = load(model, folder)
    for feeds in all_feeds:
        before = {name: array.copy() for name, array in feeds.items()}
        got, names = ready.run(feeds), [o.name for o in model.graph.output]
        for wanted, name in zip(session.run(None, feeds), names, strict=True):
            assert got[name].shape == wanted.shape
            np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-6)
            assert not any(np.shares_memory(got[name], array) for array in feeds.values())
        for name, array in before.items():
            np.testing.assert_array_equal(feeds[name], array)
    ready.close()


def test_turns_that_a_count_or_a_condition_ends(tmp_path: Path) -> None:
    counts = ((4, True), (0, True), (100, True), (3, False), (1, True), (2, True), (3, True))
    feeds = [{"n": np.array(n), "t": np.array(t), "x": X} for n, t in counts]
    _agree(tmp_path, LOOP, *feeds)


def test_two_loops_that_do_the_same(tmp_path: Path) -> None:
    results = "(bool d, float[2] w) { d = Identity(c) w = Exp(v) }"
    body = f"<body = b (int64 i, bool c, float[2] v) => {results}>"
    text = f"""(int64 n, float[2] x) => (float[2] y, float[2] z) <bool t = {{1}}> {{
        y = Loop(n, t, x) {body} a = Neg(x) z = Loop(n, t, a) {body} }}"""
    _agree(tmp_path, text, *({"n": np.array(n), "x": X[:2]} for n in (2, 0)))


@pytest.mark.parametrize(
    ("text", "machine", "why"),
    [
        (LOOP, "sm_90", "never run on a GPU"),
        (IF, "sm_90", "never run on a GPU"),
        (
            "(int64 n, float[k] x) => (float[m] y) <bool t = {1}> { y = Loop(n, t, x)"
            " <body = b (int64 i, bool c, float[p] v) => (bool d, float[q] w)"
            " <int64[1] a = {0}> { d = Identity(c) w = Unsqueeze(v, a) }> }",
            "x86-64-v3",
            "changes its type or rank from turn to turn",
        ),
    ],
)
def test_what_stays_refused(tmp_path: Path, text: str, machine: str, why: str) -> None:
    head = '<ir_version: 10, opset_import: ["": 21]> g '
    with pytest.raises(UnsupportedError, match=why):
        lower(onnx.parser.parse_model(head + text), tmp_path, machine)
