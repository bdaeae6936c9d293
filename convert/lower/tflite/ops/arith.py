"""Arithmetic of two or more operands."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import (
    divide,
    divide_unsigned,
    power,
    remainder,
    select,
    without_minus_one,
)
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.widen import NUMBERS, widened


@OPS.lower("Div", dtypes=NUMBERS)
@widened
def div(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Quotient; of integers it is truncated."""
    if a.dtype == np.uint64:
        return divide_unsigned(g, a, b)
    if a.dtype.kind == "f":
        return g.binary("DIV", a, b)
    divisor, trap = without_minus_one(g, b)
    found = divide(g, a, divisor) if a.dtype == np.int64 else g.binary("DIV", a, divisor)
    return found if trap is None else select(g, trap, g.binary("SUB", 0, a), found)


@OPS.lower("Mod", dtypes=NUMBERS)
@widened
def mod(g: Builder, a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    """Remainder with the sign of the divisor, or of the dividend (``fmod``)."""
    if a.dtype == np.uint64:
        return g.binary("SUB", a, g.binary("MUL", divide_unsigned(g, a, b), b))
    if a.dtype == np.float64:
        raise Refusal("a remainder of float64: LiteRT has no kernel", "unsupported_dtype")
    if a.dtype.kind != "f":
        # By -1 and by 1 nothing is left.
        b, _ = without_minus_one(g, b)
    if fmod:
        return remainder(g, a, b)
    return g.binary("FLOOR_MOD", a, b)


@OPS.lower("Pow", dtypes=NUMBERS)
@widened
def pow_(g: Builder, x: Tensor, y: Tensor) -> Tensor:
    """Power; of integers by multiplication."""
    whole = x.dtype.kind in "iu"
    if y.data is not None and y.data.size == 1 and y.rank <= x.rank:
        known = _known_power(g, x, float(y.data.reshape(())[()]))
        if known is not None:
            return known
    if not whole:
        return g.binary("POW", x, g.cast(y, x.dtype))
    if y.data is not None and np.array_equal(y.data, np.round(y.data)):
        return power(g, x, g.const(y.data, x.dtype))
    if y.dtype.kind == "f":
        raise Refusal("integers to a power that is a float known only at run time")
    return power(g, x, g.cast(y, x.dtype))


def _known_power(g: Builder, x: Tensor, exponent: float) -> Tensor | None:
    if exponent == 1:
        return x
    if exponent == int(exponent) and 2 <= exponent <= (4 if x.dtype.kind == "f" else 64):
        return _by_squaring(g, x, int(exponent))
    if x.dtype.kind == "f":
        if exponent == 0.5:
            return g.unary("SQRT", x)
        if exponent == -1:
            return g.binary("DIV", 1, x)
        if exponent == -0.5:
            return g.binary("DIV", 1, g.unary("SQRT", x))
    return None


def _by_squaring(g: Builder, x: Tensor, exponent: int) -> Tensor:
    result: Tensor | None = None
    while True:
        if exponent & 1:
            result = x if result is None else g.binary("MUL", result, x)
        exponent >>= 1
        if not exponent:
            return x if result is None else result
        x = g.binary("MUL", x, x)
