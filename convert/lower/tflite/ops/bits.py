"""Operators on the bits of integers.

LiteRT 2.3.0 has exclusive or and a shift to the right, of up to 32 bits; the others are composed.
Integers of 64 bits are looked at as pairs of 32 where the positions do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, broadcast
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import divide, power, select
from edgeinfer.convert.lower.tflite.registry import INTEGERS, OPS
from edgeinfer.convert.lower.tflite.unsigned import halved, signed, unsigned
from edgeinfer.convert.lower.tflite.widen import SMALL, widened

_WHOLE = INTEGERS | SMALL | {ir.DataType.UINT64}

F = TypeVar("F", bound=Callable[..., Tensor])


def _halved(lowering: F) -> F:
    """Decorate a lowering that works bit by bit to see 64 of them as two int32."""

    @wraps(lowering)
    def paired(g: Builder, a: Tensor, b: Tensor) -> Tensor:
        own = a.dtype
        if own.itemsize < 8:
            return lowering(g, a, b)
        made = lowering(g, _pairs(g, a), _pairs(g, b))
        return g.emit("BITCAST", [made], made.shape[:-1], own)

    return cast(F, paired)


def _pairs(g: Builder, x: Tensor) -> Tensor:
    if x.data is not None:
        return g.const(np.ascontiguousarray(x.data[..., np.newaxis]).view(np.int32))
    return g.emit("BITCAST", [x], (*x.shape, 2), np.dtype(np.int32))


@OPS.lower("BitShift", dtypes=_WHOLE)
def bit_shift(g: Builder, x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Positions that are no bits of the type, negative ones too, shift everything out."""
    if x.dtype == np.uint64:
        return _shift_unsigned(g, x, y, direction)
    width = x.dtype.itemsize * 8
    shifts = g.cast(y, np.int64 if x.dtype == np.int64 else np.int32)
    within = g.binary("LESS", shifts, width)
    if y.dtype.kind == "i":
        within = g.binary("LOGICAL_AND", within, g.binary("GREATER_EQUAL", shifts, 0))
    if direction == "RIGHT" and x.dtype.kind == "i":
        last = g.const(width - 1, shifts.dtype)
        return _shift_right(g, x, select(g, within, shifts, last))
    shifts = select(g, within, shifts, g.const(0, shifts.dtype))
    moved = _shift_right(g, x, shifts) if direction == "RIGHT" else _shift_left(g, x, shifts)
    return select(g, within, moved, g.const(0, x.dtype))


def _shift_unsigned(g: Builder, x: Tensor, y: Tensor, direction: str) -> Tensor:
    bits, shifts = signed(g, x), signed(g, y)
    if direction == "LEFT":
        return unsigned(g, bit_shift(g, bits, shifts, direction=direction))
    # One place by itself leaves a positive number, which has no sign to be copied.
    rest = bit_shift(g, halved(g, bits), g.binary("SUB", shifts, 1), direction=direction)
    return unsigned(g, select(g, g.binary("EQUAL", shifts, 0), bits, rest))


def _shift_right(g: Builder, x: Tensor, amount: Tensor) -> Tensor:
    if x.dtype != np.int64:
        own = g.cast(amount, x.dtype)
        return g.emit("RIGHT_SHIFT", [x, own], broadcast(x.shape, own.shape))
    # Of 2 ** 63 there is no int64.
    small = g.binary("MINIMUM", amount, 62)
    divisor = power(g, g.const(2, np.int64), small)
    whole = g.binary("SUB", x, g.binary("FLOOR_MOD", x, divisor))
    sign = g.binary("MAXIMUM", g.binary("MINIMUM", x, 0), -1)
    return select(g, g.binary("GREATER", amount, 62), sign, divide(g, whole, divisor))


def _shift_left(g: Builder, x: Tensor, amount: Tensor) -> Tensor:
    if x.dtype == np.int64:
        return g.binary("MUL", x, power(g, g.const(2, np.int64), amount))
    factor = g.binary("POW", 2, amount)
    # A cast of -2**31, which the power gives for 31, to uint32 is 2**31.
    wide = np.dtype(np.uint32 if x.dtype == np.uint32 else np.int32)
    product = g.binary("MUL", g.cast(x, wide), g.cast(factor, wide))
    return g.cast(product, x.dtype)


@OPS.lower("BitwiseXor", dtypes=_WHOLE)
@_halved
def bitwise_xor(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Exclusive or of the bits."""
    return g.emit("BITWISE_XOR", [a, b], broadcast(a.shape, b.shape))


@OPS.lower("BitwiseNot", dtypes=_WHOLE)
@widened
def bitwise_not(g: Builder, x: Tensor) -> Tensor:
    """Flip the bits."""
    if x.dtype == np.uint64:
        return unsigned(g, g.binary("SUB", -1, signed(g, x)))
    return g.binary("SUB", -1, x)


@OPS.lower("BitwiseAnd", dtypes=_WHOLE)
@_halved
def bitwise_and(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """And of the bits."""
    return _bit_by_bit(g, a, b, "MUL")


@OPS.lower("BitwiseOr", dtypes=_WHOLE)
@_halved
def bitwise_or(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Or of the bits."""
    return _bit_by_bit(g, a, b, "MAXIMUM")


def _bit_by_bit(g: Builder, a: Tensor, b: Tensor, code: str) -> Tensor:
    """Spread the bits along a new last axis, combine them, add them up again."""
    if max(a.rank, b.rank) > 5:
        raise Refusal("more than 5 axes", "unsupported_rank")
    width = a.dtype.itemsize * 8
    shifts = np.arange(width, dtype=np.int32)
    bits = []
    for x in (a, b):
        # The sum wraps around: the sign bit of int32 weighs -2**31.
        wide = g.cast(x, np.int32)
        spread = g.emit("EXPAND_DIMS", [wide, g.const(-1, np.int32)], (*x.shape, 1))
        shifted = g.emit("RIGHT_SHIFT", [spread, g.const(shifts)], (*x.shape, width))
        bits.append(g.binary("FLOOR_MOD", shifted, 2))
    weights = g.const(np.left_shift(np.int32(1), shifts))
    weighed = g.binary("MUL", g.binary(code, *bits), weights)
    return g.cast(g.reduce("SUM", weighed, [weighed.rank - 1], False), a.dtype)
