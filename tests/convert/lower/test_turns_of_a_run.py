"""Branches and turns that a run decides, with every number of turns in turn, on every target."""

from __future__ import annotations

import numpy as np
import pytest

from tests.convert.lower.forms import FORMATS, Form, check, one

_X = np.array([0.5, -1.0, 2.0], np.float32)

TURNS = {
    "turns that a count or a condition ends": Form(
        """(int64 n, bool t, float[3] x) => (float[3] y, float[k,3] s) {
    y, s = Loop(n, t, x) <body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w, float[3] o)
        <float k = {0.5}, float top = {1.9}, int64[1] a = {0}> { f = Cast<to=1>(i) g = Add(v, f)
            w = Mul(g, k) m = ReduceMax<keepdims=0>(w, a) d = Less(m, top) o = Sub(w, x) }> }""",
        [{"n": one(n), "t": one(t, np.bool_), "x": _X}
         for n, t in ((4, 1), (0, 1), (100, 1), (3, 0), (1, 1))],
    ),
    "turns that nothing counts": Form(
        """(float[n,2] x) => (float[n,2] y) <bool t = {1}> {
    y = Loop("", t, x) <body = b (int64 i, bool c, float[n,2] v) => (bool d, float[n,2] w)
        <float k = {1.001}, float top = {5.0}> { w = Mul(v, k) m = ReduceMax<keepdims=0>(w)
            d = Less(m, top) }> }""",
        [{"x": np.full((n, 2), v, np.float32)} for n, v in ((1, 0.1), (3, 6))],
    ),
    "turns inside of turns": Form(
        """(int64 n, float[2] x) => (float[2] y) <bool t = {1}> {
    y = Loop(n, t, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w)
        <bool on = {1}> { d = Identity(c) w = Loop(i, on, v) <body = e (int64 j, bool f, float[2] u)
            => (bool h, float[2] z) { h = Identity(f) p = Add(u, x) z = Tanh(p) }> }> }""",
        [{"n": one(n), "x": _X[:2]} for n in (3, 0, 2, 1)],
    ),
    "branches of other sizes": Form(
        """(bool c, float[n,3] x) => (float[m,3] y) {
    y = If(c) <then_branch = a () => (float[p,3] u) { q = Relu(x) u = Concat<axis=0>(q, x) },
        else_branch = b () => (float[q,3] v) { v = Identity(x) }> }""",
        [{"c": one(c, np.bool_), "x": np.tile(_X, (n, 1))} for c in (1, 0) for n in (2, 1)],
    ),
    "a branch whose size the data decides": Form(
        """(bool c, float[6] x) => (float[m] y) <int64[1] one = {-1}> {
    y = If(c) <then_branch = a () => (float[p] u) { z = NonZero(x) r = Reshape(z, one)
        u = Gather(x, r) }, else_branch = b () => (float[6] v) { v = Neg(x) }> }""",
        [{"c": one(c, np.bool_), "x": np.array(v, np.float32)}
         for c in (1, 0) for v in ([0, 2, 0, 3, 0, 1], [1] * 6)],
    ),
}  # fmt: skip

REFUSED = {
    "aimodel": {
        "turns that a count or a condition ends": "unknown number of results",
        "turns that nothing counts": "no known shape",
    },
}
"""Forms that a format refuses, and what it says."""


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_decides(form: str) -> None:
    check(form, TURNS, REFUSED.get(form, {}))
