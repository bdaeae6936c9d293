"""Operators on bits, against NumPy."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tests.convert.lower.tflite.single import agree
from tests.convert.lower.tflite.together import rows

NARROW = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32]
BINARY = {"And": np.bitwise_and, "Or": np.bitwise_or, "Xor": np.bitwise_xor}


def spread(dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max, 0, 1, limits.max // 3, limits.max // 5 + 7], dtype)


@rows("dtype", NARROW)
@rows("op", sorted(BINARY))
def test_two_operands(op: str, dtype: Any) -> None:
    a = spread(dtype)
    b = a[::-1].reshape(6, 1).copy()
    agree(f"Bitwise{op}", a, b, want={"y0": BINARY[op](a, b)})


@rows("dtype", [*NARROW, np.int64])
def test_not(dtype: Any) -> None:
    agree("BitwiseNot", spread(dtype), want={"y0": ~spread(dtype)})


@rows("dtype", [np.uint8, np.uint16, np.uint32])
@rows("direction", ["LEFT", "RIGHT"])
def test_shift(dtype: Any, direction: str) -> None:
    x = spread(dtype)
    width = x.dtype.itemsize * 8
    y = np.array([1, width - 1, 3, 0, 2, width], dtype)
    move = operator.lshift if direction == "LEFT" else operator.rshift
    want = [move(int(v), int(n)) % 2**width for v, n in zip(x, y, strict=True)]
    agree("BitShift", x, y, direction=direction, want={"y0": np.array(want, dtype)})


@rows("dtype", [np.int64, np.uint64])
@rows("op", BINARY)
def test_64_bits(op: str, dtype: Any) -> None:
    x, y = spread(dtype), spread(dtype)[::-1].copy()
    agree(f"Bitwise{op}", x, y, want={"y0": BINARY[op](x, y)})
    agree(f"Bitwise{op}", x.reshape(2, 3), y[:1], want={"y0": BINARY[op](x.reshape(2, 3), y[:1])})


def test_not_of_64_bits() -> None:
    x = spread(np.uint64)
    agree("BitwiseNot", x, want={"y0": ~x})


@rows("direction", ["LEFT", "RIGHT"])
def test_shifts_of_uint64(direction: str) -> None:
    x = np.repeat(spread(np.uint64), 6)
    y = np.tile(np.array([0, 1, 31, 32, 62, 63], np.uint64), 6)
    shift = np.left_shift if direction == "LEFT" else np.right_shift
    agree("BitShift", x, y, direction=direction, want={"y0": shift(x, y)})
