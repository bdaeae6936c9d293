"""Whole-number arithmetic that LiteRT has no kernels for, exact over the whole range.

LiteRT 2.3.0 has no division, no power and no absolute value of int64; what it has is a remainder
and casts. Its int32 power ends the run at a negative exponent.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.builder import Builder, broadcast
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.unsigned import TOP, halved, ordered, signed, unsigned

_ROUNDS = 3
"""A float32 quotient has 24 bits: three of them cover the 63 of an int64."""

_EXPONENT_BITS = 6


def select(g: Builder, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Take ``a`` where the condition holds, else ``b``."""
    return g.emit(
        "SELECT_V2", [condition, a, b], broadcast(condition.shape, a.shape, b.shape), a.dtype
    )


def absolute(g: Builder, x: Tensor) -> Tensor:
    """Magnitude, of any type that is computed in."""
    if x.dtype == np.uint64:
        return x
    if x.dtype == np.int64:
        return g.binary("MAXIMUM", x, g.unary("NEG", x))
    return g.unary("ABS", x)


def without_minus_one(g: Builder, divisor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Put 1 in the place of -1; return where that is, or None where it is nowhere.

    The least integer by -1 is one too many: LiteRT's quotient of int32 stops at the largest, and
    its remainder ends the process.
    """
    if divisor.data is not None and not np.any(divisor.data == -1):
        return divisor, None
    found = g.binary("EQUAL", divisor, -1)
    return select(g, found, g.const(1, divisor.dtype), divisor), found


def remainder(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Remainder of truncated division: it has the sign of ``a``; floats too, exactly."""
    if a.dtype.kind == "i":
        # The least integer has no magnitude.
        floored = g.binary("FLOOR_MOD", a, b)
        apart = g.binary("NOT_EQUAL", g.binary("LESS", a, 0), g.binary("LESS", b, 0))
        wrong = g.binary("LOGICAL_AND", apart, g.binary("NOT_EQUAL", floored, 0))
        return select(g, wrong, g.binary("SUB", floored, b), floored)
    part = g.binary("FLOOR_MOD", absolute(g, a), absolute(g, b))
    return select(g, g.binary("LESS", a, 0), g.unary("NEG", part), part)


def divide(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Truncated quotient of int64.

    What remains after the remainder is taken off is a multiple of ``b``. Each float32 estimate of
    the quotient leaves a smaller multiple, until one is exact.
    """
    rest = g.binary("SUB", a, remainder(g, a, b))
    divisor = g.cast(b, np.float32)
    total: Tensor | None = None
    for step in range(_ROUNDS):
        estimate = g.unary("ROUND", g.binary("DIV", g.cast(rest, np.float32), divisor))
        part = g.cast(estimate, np.int64)
        total = part if total is None else g.binary("ADD", total, part)
        if step + 1 < _ROUNDS:
            rest = g.binary("SUB", rest, g.binary("MUL", part, b))
    if total is None:
        raise ValueError("no rounds")
    return total


def divide_unsigned(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Quotient of uint64.

    Half of ``a`` is an int64, and so is ``b``, or else the quotient is 0 or 1.
    """
    divisor = signed(g, b)
    large = g.binary("LESS", divisor, 0)
    small = select(g, large, g.const(1, np.int64), divisor)
    half = divide(g, halved(g, signed(g, a)), small)
    twice = select(g, large, g.const(0, np.int64), g.binary("ADD", half, half))
    rest = g.binary("SUB", signed(g, a), g.binary("MUL", twice, divisor))
    more = g.binary("GREATER_EQUAL", g.binary("ADD", rest, TOP), ordered(g, b))
    return unsigned(g, g.binary("ADD", twice, g.cast(more, np.int64)))


def power(g: Builder, base: Tensor, exponent: Tensor) -> Tensor:
    """``base ** exponent``, modulo the width; below zero what truncation leaves of the fraction.

    From exponent 64 on only the powers of 0, 1 and -1 fit, and those depend on parity alone.
    """
    size = absolute(g, exponent)
    limit = 1 << _EXPONENT_BITS
    parity = g.binary("FLOOR_MOD", size, 2)
    small = select(g, g.binary("LESS", size, limit), size, g.binary("ADD", parity, limit - 2))
    one = g.const(1, base.dtype)
    result, factor = one, base
    for bit in range(_EXPONENT_BITS):
        low = g.binary("FLOOR_MOD", small, 2 << bit)
        has = g.binary("GREATER_EQUAL", low, 1 << bit)
        result = g.binary("MUL", result, select(g, has, factor, one))
        if bit + 1 < _EXPONENT_BITS:
            factor = g.binary("MUL", factor, factor)
    unit = g.binary("EQUAL", g.binary("MUL", base, base), 1)
    inverse = select(g, unit, result, g.const(0, base.dtype))
    return select(g, g.binary("LESS", exponent, 0), inverse, result)
