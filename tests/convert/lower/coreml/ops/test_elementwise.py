import tempfile
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.lower.coreml.options import CoreMLOptions
from edgeinfer.types import Array
from tests.convert.lower.coreml.run import check, evaluate, lower, refusal


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "uint16", "int32"])
def test_small_integers_wrap_as_their_type_does(op: str, kind: str) -> None:
    if op in ("Max", "Min") and kind in ("int16", "uint16"):
        pytest.skip("ONNX Runtime has no such kernel")
    if op in ("Add", "Sub", "Mul") and kind in ("int16", "uint16"):
        pytest.skip("ONNX Runtime has no such kernel")
    limits = np.iinfo(kind)
    rng = np.random.default_rng(0)
    high = min(limits.max, 40000)
    a, b = (rng.integers(max(limits.min, -high), high, 20).astype(kind) for _ in range(2))
    check(f"g ({kind}[20] a, {kind}[20] b) => ({kind}[20] y) {{y = {op}(a, b)}}", {"a": a, "b": b})


def test_integer_division_rounds_toward_zero(tmp_path: Path) -> None:
    a = np.array([7, -7, 7, -7, 0], np.int64)
    b = np.array([2, 2, -2, -2, 5], np.int64)
    text = "g (int64[5] a, int64[5] b) => (int64[5] y) {y = Div(a, b)}"
    check(text, {"a": a, "b": b}, options=CoreMLOptions(integers={"a": (-100, 100)}))
    # One quotient of int32 is none: inputs are held to those that have one.
    assert '"a": [-1073741823, 1073741823]' in lower(text, tmp_path).constraints["integers"]


def test_64_bit_integers_that_may_leave_32_need_bounds() -> None:
    text = "g (int64[3] a, int64[3] b) => (int64[3] y) {y = Mul(a, b)}"
    assert refusal(text)[0].reason == "unsupported_dtype"
    options = CoreMLOptions(integers={"a": (-9, 9), "b": (0, 1000)})
    feeds = {"a": np.array([3, -4, 5]), "b": np.array([100, 200, 300])}
    check(text, feeds, options=options)


def test_64_bit_constants_beyond_32_bits_are_refused() -> None:
    text = "g (int64[1] a) => (int64[1] y) <int64[1] c = {5000000000}> {y = Add(a, c)}"
    assert refusal(text)[0].reason == "unsupported_dtype"


@pytest.mark.sample(4)
@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@pytest.mark.parametrize("kind", ["uint8", "int8", "int16"])
def test_bits(op: str, kind: str) -> None:
    limits = np.iinfo(kind)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(limits.min, limits.max, 30).astype(kind) for _ in range(2))
    check(f"g ({kind}[30] a, {kind}[30] b) => ({kind}[30] y) {{y = {op}(a, b)}}", {"a": a, "b": b})


@pytest.mark.parametrize(("direction", "expected"), [("LEFT", [0, 0, 32]), ("RIGHT", [-1, 0, 0])])
def test_shifts_by_what_is_no_place_leave_nothing(
    direction: str, expected: list[int], tmp_path: Path
) -> None:
    text = (
        f'g (int8[3] a, int8[3] b) => (int8[3] y) {{y = BitShift<direction="{direction}">(a, b)}}'
    )
    feeds: dict[str, Array] = {
        "a": np.array([-8, 4, 4], np.int8),
        "b": np.array([-1, 9, 3], np.int8),
    }
    found = evaluate(text, lower(text, tmp_path), feeds)["y"]
    np.testing.assert_array_equal(found, np.array(expected, np.int8))


def _whole(kind: str, low: int, high: int, seed: int) -> Array:
    made = np.random.default_rng(seed).integers(low, high, 200).astype(kind)
    made[:4] = low, high - 1, 0, 1
    return made


SHIFTS = np.r_[np.arange(-3, 40), np.zeros(157)].astype(int)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_of_int32(direction: str) -> None:
    x, by = _whole("int32", -(2**31), 2**31, 0), np.random.default_rng(1).permutation(SHIFTS)
    outside = (by < 0) | (by > 31)
    if direction == "LEFT":
        wide = [0 if o else int(a) << int(b) for a, b, o in zip(x, by, outside, strict=True)]
        right = [(w + 2**31) % 2**32 - 2**31 for w in wide]
    else:
        right = [int(a) >> (31 if o else int(b)) for a, b, o in zip(x, by, outside, strict=True)]
    text = (
        '<ir_version: 10, opset_import: ["": 28]> g (int32[200] x, int32[200] s) => (int32[200] y)'
        f' {{y = BitShift<direction="{direction}">(x, s)}}'
    )
    _same(text, {"x": x, "s": by.astype(np.int32)}, right, CoreMLOptions())


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["int64", "uint32", "uint64"])
def test_bits_of_wider_integers_that_int32_holds(kind: str) -> None:
    low = -(2**31) if kind == "int64" else 0
    x, z = (_whole(kind, low, 2**31, seed) for seed in (0, 1))
    by, small = (np.abs(SHIFTS) % n for n in (64, 16))
    for call, second, right in (
        ("BitwiseAnd(x, z)", z, x & z),
        ("BitwiseOr(x, z)", z, x | z),
        ("BitwiseXor(x, z)", z, x ^ z),
        ('BitShift<direction="RIGHT">(x, z)', by, x.astype(object) >> by.astype(object)),
    ):
        text = (
            f'<ir_version: 10, opset_import: ["": 28]> g ({kind}[200] x, {kind}[200] z)'
            f" => ({kind}[200] y) {{y = {call}}}"
        )
        _same(text, {"x": x, "z": second.astype(kind)}, list(right), CoreMLOptions())
    text = (
        f'<ir_version: 10, opset_import: ["": 28]> g ({kind}[200] x, {kind}[200] z)'
        f' => ({kind}[200] y) {{y = BitShift<direction="LEFT">(x, z)}}'
    )
    held = CoreMLOptions(integers={"x": (max(low, -(2**15)), 2**15), "z": (0, 15)})
    x = (x // 2**16).astype(kind)
    right = [int(a) << int(b) for a, b in zip(x, small, strict=True)]
    _same(text, {"x": x, "z": small.astype(kind)}, right, held)


def test_powers_of_integers() -> None:
    x = np.random.default_rng(0).integers(-40, 40, 200).astype(np.int32)
    by = np.random.default_rng(1).integers(0, 32, 200).astype(np.int32)
    by[:6], x[:6] = (10**9, 10**9 + 1, -1, -2, -3, -3), (1, -1, 2, -3, 1, -1)
    right = [(int(a) ** int(b) + 2**31) % 2**32 - 2**31 for a, b in zip(x[6:], by[6:], strict=True)]
    text = "g (int32[200] x, int32[200] p) => (int32[200] y) {y = Pow(x, p)}"
    _same(text, {"x": x, "p": by}, [1, -1, 0, 0, 1, -1, *right], CoreMLOptions())
    held = CoreMLOptions(integers={"x": (-9, 9), "p": (0, 9)})
    text = "g (int64[3] x, int64[3] p) => (int64[3] y) {y = Pow(x, p)}"
    _same(text, {"x": np.array([-9, 9, 3]), "p": np.array([9, 8, 0])}, [-(9**9), 9**8, 1], held)
    (problem,) = refusal(text)
    assert "-9 to 9" in problem.hint


def _same(text: str, feeds: dict[str, Array], right: list[int], options: CoreMLOptions) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = evaluate(text, lower(text, Path(folder), options=options), feeds)["y"]
    assert found.tolist() == [int(n) for n in right]
