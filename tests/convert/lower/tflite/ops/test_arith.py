"""Arithmetic, against ONNX Runtime and exact integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedError
from tests.convert.lower.tflite.run import lower, ops
from tests.convert.lower.tflite.single import agree, f32, single
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
SHAPES = [
    ((2, 3, 4, 5), (4, 1)),
    ((), (3,)),
    ((2, 3, 1, 2, 5), (3, 4, 1, 5)),
    ((1, 2, 1, 3, 1, 2), (2, 1, 2, 1, 3, 1)),
    ((0, 3), (1, 3)),
]


def whole(shape: tuple[int, ...], dtype: Any, low: int = 1, high: int = 9) -> Any:
    return np.asarray(RNG.integers(low, high, shape)).astype(dtype)


@rows("dtype", [np.float32, np.int32, np.int64])
@rows("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Pow"])
def test_broadcasts(op: str, dtype: Any) -> None:
    for a, b in SHAPES:
        extra: dict[str, Any] = {"fmod": 1} if op == "Mod" and dtype == np.float32 else {}
        agree(op, whole(a, dtype), whole(b, dtype), like="reference", **extra)


@rows("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32])
@rows("op", ["Add", "Sub", "Mul", "Div", "Max"])
def test_small_integers_wrap_around(op: str, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.max, limits.min, 7, 100], dtype)
    b = np.array([3, 5, 2, 7], dtype)
    numpy: dict[str, Any] = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Max": np.maximum,
    }
    numpy["Div"] = lambda a, b: np.trunc(a.astype(np.float64) / b).astype(dtype)
    agree(op, a, b, want={"y0": numpy[op](a, b)})


def truncated(a: Any, b: Any) -> Any:
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return np.array([abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs])


def test_int64_division_is_exact_and_truncates() -> None:
    top = np.iinfo(np.int64).max
    a = np.array([7, -7, 7, -7, 0, top, -top - 1, top, top - 1, 2**62 + 1, -(2**53) - 1, 6], "i8")
    b = np.array([2, 2, -2, -2, 5, 3, 3, 1, top, -7, 10, 2**40], "i8")
    agree("Div", a, b, want={"y0": truncated(a, b)})
    many = RNG.integers(-top, top, 500)
    over = np.concatenate([RNG.integers(1, 1000, 250), RNG.integers(1, top, 250)])
    agree("Div", many, over, want={"y0": truncated(many, over)}, both=False)


@rows("dtype", [np.int32, np.int64, np.int8])
@rows("fmod", [0, 1])
def test_remainders_of_integers(dtype: Any, fmod: int) -> None:
    a = np.array([-4, 7, 5, 4, -7, 8, 0], dtype)
    b = np.array([2, -3, 8, -2, 3, 5, -9], dtype)
    agree("Mod", a, b, fmod=fmod)


def test_remainders_of_floats() -> None:
    a, b = f32(-4.3, 7.2, 5.0, 1e7, -7.2), f32(2.1, -3.4, 8.0, 0.3, 3.4)
    agree("Mod", a, b, fmod=1)


@rows("exponent", [0, 0.5, 1, 2, 3, 4, -1, -0.5, 2.5, -2])
def test_powers_by_a_constant(exponent: float) -> None:
    x = np.abs(RNG.normal(size=(3, 4))).astype(np.float32) + 0.1
    agree("Pow", x, np.array(exponent, np.float32), constants=(1,))


def test_square_is_a_product() -> None:
    data = lower(single("Pow", [f32(1, 2), f32(2)[0]], constants=(1,)))
    assert ops(data) == ["MUL"]


def test_power_keeps_the_shape_of_its_exponent() -> None:
    agree("Pow", f32(1, 2), f32([[2.0]]), constants=(1,))


@rows("dtype", [np.int32, np.int64])
def test_integer_powers(dtype: Any) -> None:
    base = np.array([-2, -2, 3, 0, 0, 1, -1, -1, 2, 2, -1, 7], dtype)
    power = np.array([3, 4, 0, 5, 0, 99, 98, 99, -1, 30, -3, 2], dtype)
    want = np.array([-8, 16, 1, 0, 1, 1, 1, -1, 0, 2**30, -1, 49], dtype)
    agree("Pow", base, power, want={"y0": want})
    agree("Pow", base, np.array(5, dtype), constants=(1,), want={"y0": base**5})


def test_integers_to_known_whole_floats() -> None:
    x = np.array([1, 2, 30], np.int32)
    agree("Pow", x, f32(4, 5, 6), constants=(1,), want={"y0": np.array([1, 32, 30**6], np.int32)})


def test_float_to_an_integer_power() -> None:
    agree("Pow", f32(1.5, -2, 3), np.array([2, 3, -1], np.int64))
    agree("Pow", f32(1.5, -2, 3), np.array([2, 3, 1], np.int32))


def test_integer_to_a_computed_float_power_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="known only at run time"):
        lower(single("Pow", [np.array([4], np.int32), f32(0.5)]))


@rows("op", ["Max", "Min", "Sum", "Mean"])
@rows("count", [1, 2, 3])
def test_any_number_of_operands(op: str, count: int) -> None:
    parts = [RNG.normal(size=s).astype(np.float32) for s in ((2, 3), (3,), (2, 1))[:count]]
    agree(op, *parts)


@rows("dtype", [np.float32, np.int32, np.int64, np.int8])
@rows("op", ["Abs", "Neg", "Sign"])
def test_signs(op: str, dtype: Any) -> None:
    x = np.array([-3, 0, 5, -100, 1], dtype)
    agree(op, x, like="reference")


@rows("dtype", [np.float32, np.int32, np.int64])
@rows("exclusive", [0, 1])
@rows("reverse", [0, 1])
def test_running_sums(dtype: Any, exclusive: int, reverse: int) -> None:
    x = whole((2, 3, 4), dtype, -5, 5)
    for axis, constants in ((0, (1,)), (-1, (1,)), (1, ())):
        place = np.array(axis, np.int32)
        agree("CumSum", x, place, constants=constants, exclusive=exclusive, reverse=reverse)


def test_reciprocal() -> None:
    agree("Reciprocal", f32(0.3, -4, 1e-20, 1e20))


@rows("size", [1, 2, 3])
def test_determinants(size: int) -> None:
    agree("Det", RNG.normal(size=(4, size, size)).astype(np.float32), both=False)
