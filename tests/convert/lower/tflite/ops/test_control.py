"""If, Loop and Scan, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import check, lower, ops
from tests.convert.lower.tflite.together import rows

F = np.float32


def array(*values: float, dtype: Any = F) -> Any:
    return np.array(values, dtype)


IF = """g (bool c, float[3] x, float[3] y) => (float[3] z, float[3] w) {
    s = Add(x, y)
    z, w = If(c) <then_branch = t () => (float[3] a, float[3] b) {a = Mul(s, x) b = Identity(y)},
                  else_branch = e () => (float[3] p, float[3] q) {p = Sub(x, y) q = Sub(y, s)}>
}"""


@pytest.mark.parametrize("c", [True, False])
def test_if(c: bool) -> None:
    feeds = {"c": np.array(c), "x": array(1, 2, -3), "y": array(0.5, 9, 1)}
    assert "IF" in ops(check(IF, feeds))


def test_if_in_if_reads_the_outermost_graph() -> None:
    text = """g (bool c, bool d, float[2] x) => (float[2] y) {
        n = Neg(x)
        y = If(c) <then_branch = t () => (float[2] a) {
            a = If(d) <then_branch = t2 () => (float[2] p) {p = Add(n, x)},
                       else_branch = e2 () => (float[2] q) {q = Mul(n, x)}>
        }, else_branch = e () => (float[2] b) {b = Identity(n)}>
    }"""
    for c in (True, False):
        for d in (True, False):
            check(text, {"c": np.array(c), "d": np.array(d), "x": array(3, -4)})


def test_branches_of_other_ranks_are_refused() -> None:
    text = """g (bool c, float[4] x) => (float y) {
        y = If(c) <then_branch = t () => (float[4] a) {a = Neg(x)},
                   else_branch = e () => (float[4,1] b) {b = Unsqueeze(x, one)}>
    }"""
    model = f'<ir_version: 10, opset_import: ["" : 24]> {text}'.replace(
        "(float y) {", "(float y) <int64[1] one = {1}> {"
    )
    with pytest.raises(UnsupportedError, match=r"ranks 1 and 2|no known type or rank"):
        lower(model)


LOOP = """g (int64 m, float[2] x, float[2] k) => (float[2] y, float[T,2] all) <bool go = {1}> {
    y, all = Loop(m, go, x) <body = b (int64 i, bool c, float[2] v)
        => (bool c2, float[2] v2, float[2] s) {
        c2 = Identity(c) w = Mul(v, k) v2 = Add(w, x) s = Neg(v2)}>
}"""


@pytest.mark.parametrize("turns", [0, 1, 2, 7])
def test_loop_with_turns_known_at_run_time(turns: int) -> None:
    feeds = {"m": np.array(turns), "x": array(1, -2), "k": array(0.5, 2)}
    assert "WHILE" in ops(check(LOOP, feeds))


def test_loop_of_fixed_turns() -> None:
    text = LOOP.replace("int64 m, ", "").replace("bool go = {1}", "int64 m = {5}, bool go = {1}")
    check(text, {"x": array(1, -2), "k": array(0.5, 2)})


WHILE = """g (float x, bool go) => (float y, float[T] all) {LIMIT} {
    y, all = Loop(LIMIT_NAME, go, x) <body = b (int64 i, bool c, float v)
        => (bool c2, float v2, float s)
        <float two = {2}, float hundred = {100}> {
        v2 = Mul(v, two) c2 = Less(v2, hundred) s = Add(v2, two)}>
}"""


@rows("limit", ["int64 m = {4}", "int64 m = {9223372036854775807}", ""])
@rows(("x", "go"), [(1, True), (60, True), (1, False)])
def test_loop_that_stops_itself(limit: str, x: float, go: bool) -> None:
    text = WHILE.replace("{LIMIT}", f"<{limit}>" if limit else "")
    text = text.replace("LIMIT_NAME", "m" if limit else "")
    check(text, {"x": np.array(x, F), "go": np.array(go)})


def test_counter_is_seen_by_the_body() -> None:
    text = """g (int64 x) => (int64 y) <int64 m = {6}> {
        y = Loop(m, , x) <body = b (int64 i, bool c, int64 v) => (bool c2, int64 v2) {
            c2 = Identity(c) v2 = Add(v, i)}>
    }"""
    check(text, {"x": np.array(100)})


def test_carried_value_of_another_rank_is_refused() -> None:
    text = """g (float[2] x) => (float y) <int64 m = {3}, bool go = {1}, int64[1] zero = {0}> {
        y = Loop(m, go, x) <body = b (int64 i, bool c, float v) => (bool c2, float v2) {
            c2 = Identity(c) v2 = Unsqueeze(v, zero)}>
    }"""
    with pytest.raises(UnsupportedError, match="comes back as"):
        lower(f'<ir_version: 10, opset_import: ["" : 24]> {text}')


SCAN = """g (float[2] h, float[5,2] x) => (float[2] y, float[5,2] all) {
    y, all = Scan <num_scan_inputs = 1, ATTRS body = b (float[2] v, float[2] e)
        => (float[2] v2, float[2] s) {v2 = Add(v, e) s = Mul(v2, h)}> (h, x)
}"""


@rows(
    "attrs",
    [
        "",
        "scan_input_directions = [1],",
        "scan_output_directions = [1],",
        "scan_output_axes = [1],",
        "scan_output_axes = [-1], scan_input_directions = [1], scan_output_directions = [1],",
    ],
)
def test_scan(attrs: str) -> None:
    text = SCAN.replace("ATTRS", attrs)
    if "axes" in attrs:
        text = text.replace("float[5,2] all", "float[2,5] all")
    rng = np.random.default_rng(0)
    check(text, {"h": array(1, 2), "x": rng.standard_normal((5, 2)).astype(F)})


def test_scan_over_open_sizes_and_other_axes() -> None:
    text = """g (float[2] h, float[2,T] x) => (float[2] y, float[T,2] all) {
        y, all = Scan <num_scan_inputs = 1, scan_input_axes = [1],
            body = b (float[2] v, float[2] e)
            => (float[2] v2, float[2] s) {v2 = Add(v, e) s = Mul(v2, h)}> (h, x)
    }"""
    rng = np.random.default_rng(0)
    sizes = [{"h": array(1, 2), "x": rng.standard_normal((2, n)).astype(F)} for n in (4, 1, 9)]
    check(text, *sizes)


def test_convolution_in_a_body() -> None:
    text = """g (bool c, float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,3,3] y) {
        y = If(c) <then_branch = t () => (float[1,3,3,3] a) {a = Conv(x, w)},
                   else_branch = e () => (float[1,3,3,3] b) {n = Neg(x) b = Conv(n, w)}>
    }"""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 5, 5)), rng.standard_normal((3, 2, 3, 3))
    for c in (True, False):
        check(text, {"c": np.array(c), "x": x.astype(F), "w": w.astype(F)})
