"""Integers beyond 2^24 on OpenVINO: ids, time stamps, negatives and the ends of the type."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.openvino.backend import OpenVinoBackend
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.lower.openvino.whole_numbers import narrowed
from edgeinfer.convert.passes import input_specs, output_specs
from edgeinfer.errors import RunError
from edgeinfer.types import Array
from tests.convert.lower.running import lower, model, run_openvino

pytest.importorskip("openvino")

ENDS = np.iinfo(np.int32)
LEFT = np.array(
    [1790000031, 5, -1790000031, 16777217, ENDS.max, ENDS.min, -7, 33554433, 123456789, 0], np.int32
)
RIGHT = np.array(
    [1790000001, 5, -1790000001, 16777216, ENDS.max - 1, ENDS.min + 1, 2, -3, 1000, -9], np.int32
)


NARROW = {"int8": 3, "uint8": 2, "int16": 5, "uint16": 4}
"""With their numbers in ONNX."""


def _truncated(a: Array, b: Array) -> Array:
    exact = [
        abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a, b, strict=True)
    ]
    return np.array(exact, a.dtype)


def _computed(text: str, folder: Path, *feeds: Array) -> Array:
    return run_openvino(lower(model(text), folder, "openvino").files[0], *feeds)[0]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("op", "right"),
    [
        ("Equal(a, b)", np.equal),
        ("Less(a, b)", np.less),
        ("LessOrEqual(a, b)", np.less_equal),
        ("Greater(a, b)", np.greater),
        ("GreaterOrEqual(a, b)", np.greater_equal),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_comparisons_tell_neighbours_apart(op: str, right: Any, dtype: str, tmp_path: Path) -> None:
    text = f"g ({dtype}[10] a, {dtype}[10] b) => (bool[10] y) {{ y = {op} }}"
    for a, b in ((LEFT, RIGHT), (RIGHT, LEFT), (LEFT, LEFT)):
        found = _computed(text, tmp_path, a.astype(dtype), b.astype(dtype))
        np.testing.assert_array_equal(found, right(a, b))


@pytest.mark.parametrize(
    ("op", "right"),
    [
        ("Div(a, b)", _truncated),
        ("Mod(a, b)", np.mod),
        ("Mod<fmod = 1>(a, b)", np.fmod),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_quotients_and_remainders_are_exact(
    op: str, right: Any, dtype: str, tmp_path: Path
) -> None:
    text = f"g ({dtype}[n] a, {dtype}[n] b) => ({dtype}[n] y) {{ y = {op} }}"
    a, b = (v.ravel() for v in np.meshgrid(LEFT, RIGHT))
    a, b = (v[~((a == ENDS.min) & (b == -1))].astype(dtype) for v in (a, b))
    np.testing.assert_array_equal(_computed(text, tmp_path, a, b), right(a, b))


@pytest.mark.parametrize(
    ("op", "right"),
    [
        ("ReduceMax(x, axes)", lambda x: x.max(1, keepdims=True)),
        ("ReduceMin<keepdims = 0>(x, axes)", lambda x: x.min(1)),
        ("ReduceSum<keepdims = 0>(x, axes)", lambda x: x.sum(1, dtype=x.dtype)),
        ("ReduceL1(x, axes)", lambda x: np.abs(x).sum(1, keepdims=True, dtype=x.dtype)),
        ("ReduceMean<keepdims = 0>(x, axes)", lambda x: np.trunc(x.sum(1) / 3).astype(np.int32)),
        ("ReduceSumSquare(m, axes)", lambda x: ((x % 9001) ** 2).sum(1, keepdims=True)),
        ("Relu(x)", lambda x: np.maximum(x, 0)),
        ("PRelu(x, k2)", lambda x: np.where(x < 0, x * 2, x)),
        ("Pow(m, k2)", lambda x: (x % 9001) ** 2),
        ("Cast<to = 9>(x)", lambda x: x != 0),
    ],
)
def test_reductions_and_activations_are_exact(op: str, right: Any, tmp_path: Path) -> None:
    known = "int64[1] axes = {1}, int32 k = {9001}, int32 k2 = {2}"
    text = f"g (int32[4, 3] x) => (int32[?] y) <{known}> {{ m = Mod(x, k) y = {op} }}".replace(
        "int32[?]", "T[N]"
    )
    rng = np.random.default_rng(0)
    x = (rng.integers(0, 40, (4, 3)) + 500_000_000).astype(np.int32) * np.int32(-1)
    x[:2] *= np.int32(-1)
    want = right(x)
    shape = ", ".join(map(str, want.shape))
    kind = "bool" if want.dtype == np.bool_ else "int32"
    found = _computed(text.replace("T[N]", f"{kind}[{shape}]"), tmp_path, x)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_bytes_wrap_around(op: str, dtype: str, tmp_path: Path) -> None:
    ends = np.iinfo(dtype)
    a = np.array([ends.max, ends.min, 100, 3, ends.max], dtype)
    b = np.array([1, 2, 100, 5, ends.max], dtype)
    right = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op](a, b)
    text = f"g ({dtype}[5] a, {dtype}[5] b) => ({dtype}[5] y) {{ y = {op}(a, b) }}"
    np.testing.assert_array_equal(_computed(text, tmp_path, a, b), right)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_what_is_shifted_out_is_gone(dtype: str, tmp_path: Path) -> None:
    ends = np.iinfo(dtype)
    x = np.array([ends.max, ends.max - 5, ends.max // 4, 7], dtype)
    amounts = np.array([1, 7, 3, 0], dtype)
    text = f"""g ({dtype}[4] x, {dtype}[4] k) => ({dtype}[4] y, {dtype}[4] z) {{
        y = BitShift<direction = "LEFT">(x, k) z = BitShift<direction = "RIGHT">(x, k) }}"""
    of = lower(model(text), tmp_path, "openvino").files[0]
    if dtype == "uint32":
        x //= 2
    left, right = run_openvino(of, x, amounts)
    np.testing.assert_array_equal(left, x << amounts)
    np.testing.assert_array_equal(right, x >> amounts)


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("y = ReduceProd<keepdims = 0>(x)", np.prod),
        (
            'y = ScatterElements<reduction = "mul">(x, i, x)',
            lambda x: np.concatenate([x[:1] * np.prod(x), x[1:]]),
        ),
        ("y = ReduceMean<keepdims = 0>(x)", lambda x: x.sum() // 6),
    ],
)
def test_products_and_means_of_64_bits_are_exact_or_refused(
    body: str, right: Any, tmp_path: Path
) -> None:
    shape = "6" if "Scatter" in body else ""
    places = "int64[6] i = {0, 0, 0, 0, 0, 0}"
    text = f"g (int64[6] x) => (int64[{shape}] y) <{places}> {{ {body} }}"
    session = _session(text.replace("[]", ""), tmp_path)
    few = np.array([3, 4, 5, 6, 7, 8])
    np.testing.assert_array_equal(session.run({"x": few})["y"], right(few))
    with pytest.raises(RunError, match="computes 64-bit integers in 32 bits"):
        session.run({"x": np.full(6, 1_790_000_031)})


_LESS = "<double t = {1790000000.5}> { s = Sub(d, t) y = Cast<to = 1>(s) }"


@pytest.mark.parametrize("dtype", ["double", "int64", "int32"])
def test_time_stamps_of_64_bits_are_no_floats(dtype: str, tmp_path: Path) -> None:
    cast = "d = Identity(x)" if dtype == "double" else "d = Cast<to = 11>(x)"
    text = f"g ({dtype}[2] x) => (float[2] y) {_LESS.replace('{ s', '{ ' + cast + ' s')}"
    session = _session(text, tmp_path)
    kind = np.dtype("float64" if dtype == "double" else dtype)
    small = session.run({"x": np.array([5, -7], kind)})["y"]
    np.testing.assert_allclose(small, np.array([5, -7]) - 1790000000.5, rtol=1e-6)
    with pytest.raises(RunError, match="in 32 bits"):
        session.run({"x": np.array([1790000031, 0], kind)})


def test_doubles_that_are_rounded_at_once_may_be_large(tmp_path: Path) -> None:
    session = _session("g (double[2] x) => (float[2] y) { y = Cast<to = 1>(x) }", tmp_path)
    x = np.array([1790000031.25, 0.1])
    np.testing.assert_array_equal(session.run({"x": x})["y"], x.astype(np.float32))


def test_products_of_matrices_are_exact_or_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 30000, s).astype(np.int32) for s in ((2, 4, 5), (5, 3)))
    text = "g (int32[2, 4, 5] a, int32[5, 3] b) => (int32[2, 4, 3] y) { y = MatMul(a, b) }"
    np.testing.assert_array_equal(_computed(text, tmp_path, a, b), a @ b)
    text = text.replace("[2, 4, 5]", "[2, m, 5]").replace("[2, 4, 3]", "[2, m, 3]")
    np.testing.assert_array_equal(_computed(text, tmp_path, a, b), a @ b)
    large = "g (int32[99, 900] a, int32[900, 99] b) => (int32[99, 99] y) { y = MatMul(a, b) }"
    found = target_for("openvino_ir").check(model(large), profiles.load("openvino"), LowerOptions())
    assert [(p.op, p.reason) for p in found] == [("MatMul", "unsupported_dtype")]


@pytest.mark.parametrize(
    "body",
    [
        "k = Constant<value = int64 {7}>() y = Equal(a, k)",
        "s = Cast<to = 3>(a) t = Cast<to = 7>(s) y = Less(t, a)",
    ],
)
def test_what_float32_holds_is_left_alone(body: str) -> None:
    from edgeinfer.convert.lower.openvino.whole_numbers import compared

    text = f"g (int64[4] a) => (bool[4] y) {{ {body} }}"
    assert not any(compared(n) for n in model(text).graph if n.op_type in ("Equal", "Less"))


def test_a_product_of_time_stamps_narrows_what_the_input_may_hold(tmp_path: Path) -> None:
    of = model("g (int64[2] t) => (int64[2] y) <int64 k = {1000}> { y = Mul(t, k) }")
    made = lower(of, tmp_path, "openvino")
    artifact = Artifact(made.format, made.files[0], input_specs(of), output_specs(of))
    executable = OpenVinoBackend().load(artifact, LoadOptions())
    right = executable.run({"t": np.array([1_000_000, -5])})["y"]
    np.testing.assert_array_equal(right, [1_000_000_000, -5000])
    assert "integers" in made.constraints
    with pytest.raises(RunError, match="1790000001 is not between"):
        executable.run({"t": np.array([1_790_000_001, 0])})


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_shifts_by_amounts_of_a_run_are_exact(dtype: str, tmp_path: Path) -> None:
    text = f"""g ({dtype}[n] a, {dtype}[n] b) => ({dtype}[n] y) {{
        y = BitShift<direction = "RIGHT">(a, b) }}"""
    values = np.array([ENDS.max, ENDS.max - 1, 16777217, 33554433, 1790000031, 65536, 65535, 0])
    a, b = (v.ravel().astype(dtype) for v in np.meshgrid(values, np.arange(32)))
    np.testing.assert_array_equal(_computed(text, tmp_path, a, b), a >> b)


IDS = np.array([1790000001, 1790000031, 3, 16777217], np.int32)


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("y = Clip(x, k)", np.maximum(IDS, 1790000003)),
        ("y = Clip(x, , k)", np.minimum(IDS, 1790000003)),
        ("y = Clip(x, five, k)", np.clip(IDS, 5, 1790000003)),
        ("a = Max(x, five) y = Min(a, k)", np.clip(IDS, 5, 1790000003)),
        ("b = Greater(x, k) y = Where(b, x, k)", np.maximum(IDS, 1790000003)),
        ("b = Equal(x, x) y = Where(b, x, k)", IDS),
        ("b = Less(x, five) c = Not(b) y = Where(c, k, x)", np.where(IDS < 5, IDS, 1790000003)),
    ],
)
@pytest.mark.parametrize("size", ["4", "N"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_clips_and_choices_keep_all_digits(
    body: str, right: Array, size: str, dtype: str, tmp_path: Path
) -> None:
    known = f"{dtype} k = {{1790000003}}, {dtype} five = {{5}}"
    text = f"g ({dtype}[{size}] x) => ({dtype}[{size}] y) <{known}> {{ {body} }}"
    np.testing.assert_array_equal(_computed(text, tmp_path, IDS.astype(dtype)), right)


def _session(text: str, folder: Path) -> Any:
    source = model(text)
    made = lower(source, folder, "openvino")
    specs = input_specs(source), output_specs(source)
    return OpenVinoBackend().load(Artifact(made.format, made.files[0], *specs), LoadOptions())


@pytest.mark.parametrize("op", ["ReduceSum<keepdims=0>(x)", "CumSum(x, z)"])
def test_sums_over_open_axes_are_exact_or_refused(op: str, tmp_path: Path) -> None:
    shape = "" if op.startswith("Reduce") else "[N]"
    text = f"g (int64[N] x) => (int64{shape} y) <int64 z = {{0}}> {{ y = {op} }}"
    session = _session(text, tmp_path)
    few = np.array([16777217, 16777219, 5], np.int64)
    right = few.sum() if op.startswith("Reduce") else few.cumsum()
    np.testing.assert_array_equal(session.run({"x": few})["y"], right)
    ones = np.ones(100_000, np.int64)
    assert session.run({"x": ones})["y"].max() == 100_000
    for wide in (IDS.astype(np.int64), np.full(100_000, 50_000, np.int64)):
        with pytest.raises(RunError, match="computes 64-bit integers in 32 bits"):
            session.run({"x": wide})


def test_floats_that_are_cast_are_exact_or_refused(tmp_path: Path) -> None:
    text = """g (float[N] x) => (int64[N] y) <int64[1] k = {1000}> {
        f = Floor(x) c = Cast<to = 7>(f) y = Mul(c, k) }"""
    session = _session(text, tmp_path)
    x = np.array([1.5, -17921.5, 1000000.0], np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.floor(x).astype(np.int64) * 1000)
    with pytest.raises(RunError, match="computes 64-bit integers in 32 bits"):
        session.run({"x": np.array([3e6], np.float32)})


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("size", ["5", "N"])
def test_floats_beyond_narrow_integers_wrap_around(dtype: str, size: str, tmp_path: Path) -> None:
    text = f"""g (float[{size}] x) => ({dtype}[{size}] y) <float two = {{2}}> {{
        h = Mul(x, two) y = Cast<to = {NARROW[dtype]}>(h) }}"""
    x = np.array([100, -64, -0.75, 20000, 40000], np.float32)
    wanted = (x * 2).astype(np.int64).astype(dtype)
    np.testing.assert_array_equal(_computed(text, tmp_path, x), wanted)


def test_floats_that_stay_are_cast_at_once() -> None:
    text = """g (float[n] x) => (uint8[n] y) <float zero = {0}, float top = {255}> {
        h = Clip(x, zero, top) y = Cast<to = 2>(h) }"""
    (cast,) = [n for n in model(text).graph if n.op_type == "Cast"]
    assert narrowed(cast) == ""
