"""Integers of 64 bits in a package: proven, bounded and held to it, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.bundle.values import INTEGERS
from edgeinfer.convert.lower.coreml.options import CoreMLOptions
from edgeinfer.errors import RunError, UnsupportedError, UsageError
from edgeinfer.types import Array
from tests.convert.lower.coreml.run import HEADER, check, evaluate, floats, lower, refusal

ADD = "g (int64[3] x) => (int64[3] y) {y = Add(x, x)}"


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_what_int32_holds_needs_no_declaration_and_is_recorded(tmp_path: Path) -> None:
    text = "g (int64[3] x, int16[3] z) => (int64[3] y) {w = Cast <to = 7> (z) y = Max(x, w)}"
    made = lower(text, tmp_path)
    whole = [-(1 << 31), (1 << 31) - 1]
    assert json.loads(made.constraints[INTEGERS]) == {"x": whole}
    assert any("'x'" in n and "refused at a run" in n for n in made.notes)
    z = np.array([1, 2, 3], np.int16)
    np.testing.assert_array_equal(
        evaluate(text, made, {"x": i64(*whole, 0), "z": z})["y"], [1, whole[1], 3]
    )
    with pytest.raises(RunError, match="2147483648 is not between"):
        evaluate(text, made, {"x": i64(0, 1 << 31, 0), "z": z})


def test_wide_bounds_that_would_do_are_taken_and_enforced(tmp_path: Path) -> None:
    made = lower(ADD, tmp_path)
    most = (1 << 30) - 1
    assert json.loads(made.constraints[INTEGERS]) == {"x": [-most, most]}
    assert any("'x'" in n and "refused at a run" in n for n in made.notes)
    found = evaluate(ADD, made, {"x": i64(-most, 5, most)})["y"]
    np.testing.assert_array_equal(found, [-2 * most, 10, 2 * most])
    with pytest.raises(RunError, match=f"{most + 1} is not between"):
        evaluate(ADD, made, {"x": i64(0, most + 1, 1)})


def test_narrow_inputs_are_bounded_where_what_they_become_is_wide(tmp_path: Path) -> None:
    text = """g (int32[3] x) => (int64[3] y) <int64 k = {2}> {
        w = Cast <to = 7> (x) y = Add(w, k) }"""
    made = lower(text, tmp_path)
    most = (1 << 30) - 1
    assert json.loads(made.constraints[INTEGERS]) == {"x": [-most, most]}
    x = np.array([0, most, -5], np.int32)
    np.testing.assert_array_equal(evaluate(text, made, {"x": x})["y"], [2, most + 2, -3])
    with pytest.raises(RunError, match="is not between"):
        evaluate(text, made, {"x": x + np.int32(1)})


def test_products_are_refused_with_the_bounds_that_would_do(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as e:
        lower("g (int64[3] x) => (int64[3] y) {y = Mul(x, x)}", tmp_path)
    (problem,) = e.value.problems
    assert "may leave int32" in problem.detail
    assert "-46340 to 46340 would do" in problem.hint


def test_no_negatives_are_asked_for_where_inputs_have_none(tmp_path: Path) -> None:
    text = """g (uint32[3] x, uint32[3] s) => (uint32[3] y) {
        y = BitShift <direction = "LEFT"> (x, s) }"""
    with pytest.raises(UnsupportedError) as e:
        lower(text, tmp_path)
    (problem,) = e.value.problems
    assert "inputs hold: 0 to " in problem.hint


SIZES = """g (float[1,3,H,W] x) => (float[?] y) <int64 two = {2}, int64 three = {3}> {
    c = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(x)
    s = Shape(c) h = Gather(s, two) w = Gather(s, three) MADE
    f = Cast<to = 1>(a) m = ReduceMean<keepdims = 0>(c) y = Add(f, m) }"""


@pytest.mark.parametrize("made", ["a = Mul(h, w)", "b = Mul(w, h) c2 = Mul(b, two) a = Add(b, c2)"])
def test_an_area_is_bounded_by_the_elements_that_there_are(made: str) -> None:
    feeds = ({"x": floats(1, 3, *s)} for s in ((8, 6), (5, 9)))
    check(HEADER + SIZES.replace("MADE", made), *feeds)


def test_sizes_that_nothing_bounds_name_what_does(tmp_path: Path) -> None:
    text = SIZES.replace("MADE", "b = Mul(h, w) a = Mul(b, b)")
    with pytest.raises(UnsupportedError) as e:
        lower(text, tmp_path)
    (problem,) = e.value.problems
    assert "may leave int32" in problem.detail
    assert "--input-shape" in problem.hint


def test_declared_bounds_are_a_proof_and_enforced(tmp_path: Path) -> None:
    options = CoreMLOptions(integers={"x": (0, 1000)})
    made = lower(ADD, tmp_path, options=options)
    assert json.loads(made.constraints[INTEGERS]) == {"x": [0, 1000]}
    found = evaluate(ADD, made, {"x": i64(0, 5, 1000)})["y"]
    np.testing.assert_array_equal(found, [0, 10, 2000])
    for value in (-1, 1001):
        with pytest.raises(RunError, match=f"{value} is not between 0 and 1000"):
            evaluate(ADD, made, {"x": i64(0, value, 1)})


def test_declared_bounds_of_int32_inputs_are_enforced_too(tmp_path: Path) -> None:
    text = "g (int32[2] x) => (int32[2] y) {y = Neg(x)}"
    made = lower(text, tmp_path, options=CoreMLOptions(integers={"x": (1, 7)}))
    with pytest.raises(RunError, match="0 is not between 1 and 7"):
        evaluate(text, made, {"x": np.array([0, 1], np.int32)})


@pytest.mark.parametrize("bounds", [(0, 1 << 31), (5, 4), (-(1 << 40), 0)])
def test_bounds_beyond_int32_are_refused(bounds: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected bounds between"):
        lower(ADD, tmp_path, options=CoreMLOptions(integers={"x": bounds}))


def test_bounds_of_unknown_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no integer input 'q'"):
        lower(ADD, tmp_path, options=CoreMLOptions(integers={"q": (0, 1)}))


def test_an_output_beyond_int32_is_refused_where_only_small_inputs_would_do(tmp_path: Path) -> None:
    text = """g (int32[2] x) => (int64[2] y) <int64 m = {1000000}>
        {w = Cast <to = 7> (x) y = Mul(w, m)}"""
    with pytest.raises(UnsupportedError, match="may leave int32"):
        lower(text, tmp_path)


LOOP = """g (float[2] x, int64 s) => (int64 e, float[2] y)
    <int64 n = {40}, bool c = {1}, int64 one = {1}, int64 most = {100}> {
    e, y = Loop (n, c, s, x) <body = b (int64 i, bool d, int64 v, float[2] z)
        => (bool d2, int64 v2, float[2] z2) {d2 = Identity(d) BODY z2 = Add(z, x)}>
}"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("v2 = Add(v, one)", 43),
        ("v2 = Sub(v, one)", -37),
        ("w = Add(v, v) v2 = Min(w, most)", 100),
        ("v2 = Add(i, one)", 40),
        ("v2 = Identity(v)", 3),
    ],
)
def test_what_a_loop_carries_is_proven(body: str, expected: int, tmp_path: Path) -> None:
    text = LOOP.replace("BODY", body)
    made = lower(text, tmp_path, options=CoreMLOptions(integers={"s": (0, 100)}))
    feeds: dict[str, Array] = {"x": np.ones(2, np.float32), "s": np.array(3, np.int64)}
    assert int(evaluate(text, made, feeds)["e"]) == expected


@pytest.mark.parametrize("body", ["v2 = Add(v, v)", "w = Mul(v, most) v2 = Sub(w, one)"])
def test_a_loop_that_may_leave_int32_is_refused(body: str, tmp_path: Path) -> None:
    # Forty turns leave int32 from whatever they start with but 0.
    with pytest.raises(UnsupportedError, match="integers between"):
        lower(LOOP.replace("BODY", body), tmp_path, options=CoreMLOptions(integers={"s": (0, 1)}))


WHILE = """g (float[2] x, int64 n) => (int64 e, float[2] y)
    <bool c = {1}, int64 one = {1}, int64 zero = {0}> {
    e, y = Loop (, c, zero, x) <body = b (int64 i, bool d, int64 v, float[2] z)
        => (bool d2, int64 v2, float[2] z2)
        {v2 = Add(v, one) d2 = Less(v2, n) z2 = Add(z, x)}>
}"""


def test_a_counter_is_proven_by_the_condition() -> None:
    x = np.array([1, -2], np.float32)
    options = CoreMLOptions(integers={"n": (0, 1000)})
    feeds: list[dict[str, Array]] = [{"x": x, "n": np.array(n)} for n in (5, 0, 1)]
    check(HEADER + WHILE, *feeds, options=options)


def test_a_counter_without_an_end_is_refused(tmp_path: Path) -> None:
    endless = WHILE.replace("Less(v2, n)", "Greater(v2, n)")
    with pytest.raises(UnsupportedError, match="integers between"):
        lower(endless, tmp_path, options=CoreMLOptions(integers={"n": (0, 1000)}))


ROWS = ", ".join(f"{n}.0" for n in range(80))
TABLE = f"float[40,2] t = {{{ROWS}}}, int64 ax = {{1}}, int64 one = {{1}}, int64[1] axes = {{1}}"
PLACES = "c = CumSum(a, ax) d = Mul(c, a) e = Add(d, one) y = Gather(t, e)"
MASK = np.array([[0, 1, 1], [1, 1, 1]])


@pytest.mark.parametrize(
    ("inputs", "body", "bounds"),
    [
        ("int64[B,N] m", f"a = Identity(m) {PLACES}", {"m": [-9, 9]}),
        ("uint8[B,N] m", f"a = Cast<to = 7>(m) {PLACES}", {"m": [0, 9]}),
        ("int64[B,N] m, int64[B,P] p", f"a = Concat<axis = 1>(p, m) {PLACES}",
         {"m": [-9, 9], "p": [-9, 9]}),
        ("int64[B,N] m, int64[B] i", "s = ReduceSum<keepdims = 0>(m, axes) e = Add(s, i) "
         "y = Gather(t, e)", {"m": [-1000, 1000], "i": [-((1 << 30) - 1), (1 << 30) - 1]}),
    ],
)  # fmt: skip
def test_what_is_summed_over_open_axes_is_bounded_by_their_sizes(
    inputs: str, body: str, bounds: dict[str, list[int]], tmp_path: Path
) -> None:
    text = f"g ({inputs}) => (float[?,?,2] y) <{TABLE}> {{ {body} }}"
    text = text.replace("?,?,2", "B,2" if "ReduceSum" in body else "B,?,2")
    made = lower(text, tmp_path)
    assert json.loads(made.constraints[INTEGERS]) == bounds
    every = {"m": MASK, "p": MASK[:, :2], "i": np.array([5, 6])}
    feeds = {n: every[n].astype(np.uint8 if "uint8" in inputs else np.int64) for n in bounds}
    check(HEADER + text, feeds)
    with pytest.raises(RunError, match="is not between"):
        evaluate(text, made, feeds | {"m": feeds["m"] + bounds["m"][1]})


KINDS = {"int64": 7, "uint8": 2, "bool": 9}

FAR = np.array([-4e12, -0.5, 2.5, 4e12], np.float32)
BOUND = "l = Constant <value_float = -5.0> () h = Constant <value_float = 7.5> () "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{BOUND} p = Clip(x, l, h)", [-5, 0, 2, 7]),
        (f"{BOUND} r = Relu(x) p = Min(r, h)", [0, 0, 2, 7]),
        (f"{BOUND} r = Sigmoid(x) q = Mul(r, h) p = Ceil(q)", [0, 3, 7, 8]),
        (f"{BOUND} t = Tanh(x) q = Sub(t, l) p = Reshape <allowzero = 0> (q, s)", [4, 4, 5, 6]),
        (f"{BOUND} r = Clip(x, l, h) c = Concat <axis = 0> (r, r) p, q = Split <axis = 0, "
         "num_outputs = 2> (c)", [-5, 0, 2, 7]),
    ],
)  # fmt: skip
def test_floats_that_operators_bound_become_wide_integers(
    body: str, expected: list[int], tmp_path: Path
) -> None:
    text = f"g (float[4] x) => (int64[4] y) <int64[1] s = {{4}}> {{{body} y = Cast <to = 7> (p)}}"
    made = lower(text, tmp_path)
    np.testing.assert_array_equal(evaluate(text, made, {"x": FAR})["y"], expected)


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool"])
@pytest.mark.parametrize(
    "body", ["s = Shape(x) y = Expand(k, s)", "e = CastLike(z, k) s = Shape(x) y = Expand(e, s)"]
)
def test_what_is_spread_over_open_sizes_needs_no_declared_bounds(body: str, kind: str) -> None:
    # The zeros that it is added to are floats, of which a fill says what they are.
    text = (
        f"g (float[n,m] x) => ({kind}[n,m] y) <float[1] z = {{1.0}}, int64[1] o = {{1}}> "
        f"{{k = Cast<to={KINDS[kind]}>(o) {body}}}"
    )
    check(HEADER + text, *({"x": floats(*s)} for s in ((2, 3), (1, 4))))


@pytest.mark.parametrize("kind", [7, 12, 13])
@pytest.mark.parametrize(
    "body", ["p = Exp(x)", "t = Tanh(x) p = Add(t, x)", "r = Relu(x) p = Neg(r)", "p = Floor(x)"]
)
def test_floats_that_nothing_bounds_are_refused(body: str, kind: int) -> None:
    name = {7: "int64", 12: "uint32", 13: "uint64"}[kind]
    text = f"g (float[4] x) => ({name}[4] y) {{{body} y = Cast <to = {kind}> (p)}}"
    (problem,) = refusal(text)
    assert "nothing bounds" in problem.detail
    assert "clip the floats before" in problem.hint


def test_floats_that_reach_beyond_int32_are_refused() -> None:
    text = """g (float[4] x) => (int64[4] y) <float l = {0.0}, float h = {2147483648.0}>
        {p = Clip(x, l, h) y = Cast <to = 7> (p)}"""
    assert "may leave int32" in refusal(text)[0].detail


def test_integers_come_back_from_floats_within_their_bounds(tmp_path: Path) -> None:
    text = "g (int64[2] x) => (int64[2] y) {f = Cast <to = 1> (x) g = Mul(f, f) "
    text += "y = Cast <to = 7> (g)}"
    (problem,) = refusal(text)
    assert "declare what integer inputs hold" in problem.hint
    made = lower(text, tmp_path, options=CoreMLOptions(integers={"x": (-9, 9)}))
    np.testing.assert_array_equal(evaluate(text, made, {"x": i64(-9, 8)})["y"], [81, 64])


def test_narrow_floats_do_not_bound_what_overflows_in_them() -> None:
    text = """g (float16[4] x) => (int64[4] y) <float f = {60000.0}>
        {h = Cast <to = 10> (f) t = Tanh(x) p = Mul(t, h) q = Mul(p, h) y = Cast <to = 7> (q)}"""
    assert "nothing bounds" in refusal(text)[0].detail


def test_a_loop_forgets_what_bounds_the_start() -> None:
    text = """g (float[2] x) => (int64[2] y) <int64 n = {40}, bool c = {1}> {
        t = Tanh(x) z = Loop (n, c, t) <body = b (int64 i, bool d, float[2] v)
        => (bool d2, float[2] w) {d2 = Identity(d) w = Add(v, v)}> y = Cast <to = 7> (z)}"""
    assert "nothing bounds" in refusal(text)[0].detail
