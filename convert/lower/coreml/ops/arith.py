"""Arithmetic on two or more operands."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.emitter import OVERFLOW, Overflow
from edgeinfer.convert.lower.coreml.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import EXACT, WHOLE, Span, Tensor
from edgeinfer.convert.lower.registry import Refusal

_BITS = 31
"""The largest exponent with which a power of two might be in int32."""


def _corners(op: Any, a: Tensor, b: Tensor) -> Span | None:
    if not a.is_integer:
        return None
    found = [op(x, y) for x, y in product(a.bounds, b.bounds)]
    return min(found), max(found)


@OPS.lower("Add", dtypes=NUMBERS)
def add(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Add."""
    return g.binary("add", A, B, _corners(lambda a, b: a + b, A, B))


@OPS.lower("Sub", dtypes=NUMBERS)
def sub(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Sub; coremltools 9.0 negates a constant in place, for all that read it, to make it a bias."""
    if B.is_float and B.data is not None and A.data is None:
        return g.binary("add", A, g.const(-B.data, B.dtype))
    return g.binary("sub", A, B, _corners(lambda a, b: a - b, A, B))


@OPS.lower("Mul", dtypes=NUMBERS)
def mul(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Mul."""
    return g.binary("mul", A, B, _corners(lambda a, b: a * b, A, B))


@OPS.lower("Div", dtypes=NUMBERS)
def div(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """real_div; integers are rounded toward zero, where floor_div rounds down."""
    if A.is_float:
        return g.binary("real_div", A, B)
    return quotient(g, A, B)


def quotient(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Divide integers as ONNX does."""
    low, high = a.bounds
    limit = max(abs(low), abs(high))
    least = 1 if b.bounds[0] <= 0 <= b.bounds[1] else min(map(abs, b.bounds))
    if low >= 0 and b.bounds[0] >= 0:
        return g.binary("floor_div", a, b, (0, high // least))
    if a.dtype.itemsize > 4 and limit > WHOLE[1] and b.bounds[0] <= -1 <= b.bounds[1]:
        # The one quotient of int32 that is none.
        raise Overflow(
            f"{OVERFLOW} {-limit} and {limit} may leave int32, the widest that Core ML has",
            "unsupported_dtype",
        )
    # The least integer has no magnitude; a multiple of the divisor has a whole quotient.
    multiple = g.binary("sub", a, remainder(g, a, b), (low, high))
    return g.binary("floor_div", multiple, b, (-(limit // least), limit // least))


def remainder(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """What a quotient cut toward zero leaves of integers: it has the sign of ``a``."""
    most = max(map(abs, b.bounds)) - 1
    floored = g.binary("mod", a, b, (-most, most))
    apart = g.binary("logical_xor", g.binary("less", a, 0), g.binary("less", b, 0))
    wrong = g.binary("logical_and", apart, g.binary("not_equal", floored, 0))
    return g.select(wrong, g.binary("sub", floored, b, (-most, most)), floored)


@OPS.lower("Mod", dtypes=NUMBERS)
def mod(g: Builder, A: Tensor, B: Tensor, *, fmod: int) -> Tensor:
    """Mod, which has the divisor's sign; with ``fmod`` the sign is the dividend's."""
    if A.is_float:
        raise Refusal("the quotient of floats is rounded")
    low, high = B.bounds
    largest = max(abs(low), abs(high))
    if fmod:
        return remainder(g, A, B)
    span = (-largest, largest)
    if low > 0 or (A.bounds[0] >= 0 and low >= 0):
        # It has the divisor's sign.
        span = (0, max(high - 1, 0))
    return g.binary("mod", A, B, span)


@OPS.lower("Pow", dtypes=NUMBERS)
def pow(g: Builder, X: Tensor, Y: Tensor) -> Tensor:
    """pow; squares and cubes of integers by multiplication."""
    exponent = float(Y.data.reshape(-1)[0]) if Y.data is not None and Y.data.size == 1 else None
    if exponent in (1.0, 2.0, 3.0) and Y.rank <= X.rank and (X.is_integer or exponent == 2.0):
        out = X
        for _ in range(int(exponent or 0) - 1):
            out = g.binary("mul", out, X, _corners(lambda a, b: a * b, out, X))
        return g.same(X) if out is X else out
    if X.is_float:
        return g.binary("pow", X, g.cast(Y, X.dtype))
    if Y.is_integer:
        return _whole_power(g, X, Y)
    if Y.data is not None and np.array_equal(Y.data, np.round(Y.data)):
        return _whole_power(g, X, g.const(np.clip(Y.data, *WHOLE), np.int32))
    low, high = X.bounds
    if exponent is None or exponent < 0 or max(abs(low), abs(high)) ** exponent >= EXACT:
        raise Refusal(
            "powers of integers may leave what float32 holds exactly", "unsupported_dtype"
        )
    power = g.binary("pow", g.cast(X, np.float32), g.cast(Y, np.float32))
    most = int(max(abs(low), abs(high), 1) ** exponent)
    return g.cast(g.unary("round", power), X.dtype, (-most, most))


def _whole_power(g: Builder, x: Tensor, y: Tensor) -> Tensor:
    """Squares and products, by the bits of the exponent."""
    largest, most = max(map(abs, x.bounds)), max(map(abs, y.bounds))
    top = largest ** min(most, 64) if largest > 1 else 1
    base = Tensor(np.dtype(np.int32), x.shape, g.physical(x))
    exponent = g.cast(y, np.int32)
    rest = g.unary("abs", exponent) if y.bounds[0] < 0 else exponent
    if most > _BITS:
        # All but -1, 0 and 1, of which the last bit is enough, have left int32 by then.
        odd = g.binary("mod", rest, 2)
        capped = g.binary("add", odd, _BITS - 1)
        rest = g.select(g.binary("greater", rest, _BITS), capped, rest)
    shape = np.ones([1] * max(x.rank, y.rank), np.int32)
    made, square = g.const(shape, np.int32), base
    for _ in range(min(most, _BITS).bit_length()):
        taken = g.binary("equal", g.binary("mod", rest, 2), 1)
        made = g.select(taken, g.binary("mul", made, square), made)
        rest, square = g.binary("floor_div", rest, 2), g.binary("mul", square, square)
    if y.bounds[0] < 0:
        gone = g.binary("greater", g.unary("abs", base), 1)
        gone = g.binary("logical_and", gone, g.binary("less", exponent, 0))
        made = g.select(gone, g.const(shape * 0, np.int32), made)
    low = 0 if x.bounds[0] >= 0 else -top
    return g.fitted(Tensor(x.dtype, made.shape, g.physical(made), span=(low, top)))


@OPS.lower("Max", dtypes=NUMBERS)
def maximum(g: Builder, *data_0: Tensor) -> Tensor:
    """maximum, in pairs."""
    return _pairs(g, "maximum", data_0, max)


@OPS.lower("Min", dtypes=NUMBERS)
def minimum(g: Builder, *data_0: Tensor) -> Tensor:
    """minimum, in pairs."""
    return _pairs(g, "minimum", data_0, min)


def _pairs(g: Builder, op: str, operands: tuple[Tensor, ...], pick: Any) -> Tensor:
    out = operands[0]
    for other in operands[1:]:
        span = None
        if out.is_integer:
            (a, b), (c, d) = out.bounds, other.bounds
            span = (pick(a, c), pick(b, d))
        out = g.binary(op, out, other, span)
    return g.same(out) if len(operands) == 1 else out
