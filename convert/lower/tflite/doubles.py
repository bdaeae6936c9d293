"""Arithmetic of float64, composed of the few kernels that take it.

LiteRT 2.3.0 adds and multiplies such numbers and takes the larger or the smaller one
(``STABLEHLO_*``, operands of one shape), converts them, reinterprets their bits and moves them. The
rest is composed here. Sums are added up in another order than elsewhere; quotients, roots,
exponentials and logarithms are within a few units of the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.graph import Shape, Tensor, broadcast
from edgeinfer.convert.lower.tflite.unsigned import COMPARISONS

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.builder import Builder

_FRACTION = 52
_BIAS = 1023
_ONE = _BIAS << _FRACTION
_SIGN = -(2**63)
_WHOLE = float(2**51)
"""From here on (and below minus this) there are no halves to round."""

_LN2 = (0.6931471803691238, 1.9082149292705877e-10)
"""The logarithm of two in two parts; the first has its last bits zero."""

_TERMS = 14
"""Of the series of the exponential function, for operands up to 0.35."""


def binary(g: Builder, code: str, a: Tensor, b: Tensor) -> Tensor:
    """A kernel of two operands of one shape, which they are broadcast to."""
    one, two = match(g, a, b)
    return g.emit(code, [one, two], one.shape if None not in one.shape else two.shape)


def match(g: Builder, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcast two operands to each other."""
    shape = broadcast(a.shape, b.shape)
    if a.shape == b.shape and None not in shape:
        return a, b
    a, b = _spread(g, a, shape), _spread(g, b, shape)
    if None not in shape:
        target = g.const(list(shape), np.int32)
    else:
        sizes = [g.emit("SHAPE", [t], (t.rank,), np.int32, out_type=_INT32) for t in (a, b)]
        target = broadcast_sizes(g, *sizes)
    wide = [
        t if t.shape == shape and None not in shape else g.emit("BROADCAST_TO", [t, target], shape)
        for t in (a, b)
    ]
    return wide[0], wide[1]


def broadcast_sizes(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    """Join two shapes that a run knows; ``BROADCAST_TO`` refuses what does not fit.

    ``BROADCAST_ARGS`` would end the process over sizes that do not fit (LiteRT 2.3.0).
    """
    ranks = [t.shape[0] or 0 for t in (a, b)]
    a, b = (
        g.concat([g.const([1] * (max(ranks) - rank), np.int32), t], 0) if rank < max(ranks) else t
        for t, rank in zip((a, b), ranks, strict=True)
    )
    return g.emit("SELECT_V2", [g.binary("EQUAL", b, 1), a, b], b.shape, _INT32)


def _spread(g: Builder, x: Tensor, shape: Shape) -> Tensor:
    """Broadcast a small constant here."""
    known = [s for s in shape if s is not None]
    if x.data is None or len(known) < len(shape) or math.prod(known) > _SMALL:
        return x
    return g.const(np.broadcast_to(x.data, known))


_SMALL = 1024
"""Elements that a constant may grow to."""

_INT32 = np.dtype(np.int32)


def _add(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    return binary(g, "STABLEHLO_ADD", a, b)


def _mul(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    return binary(g, "STABLEHLO_MULTIPLY", a, b)


def _sub(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    return _add(g, a, _mul(g, b, _number(g, -1)))


def _number(g: Builder, value: float) -> Tensor:
    return g.const(value, np.float64)


def _is_nan(g: Builder, x: Tensor) -> Tensor:
    single = g.cast(x, np.float32)
    return g.binary("NOT_EQUAL", single, single)


def _select(g: Builder, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    shape = broadcast(condition.shape, a.shape, b.shape)
    return g.emit("SELECT_V2", [condition, a, b], shape, a.dtype)


def _bits(g: Builder, x: Tensor) -> Tensor:
    if x.data is not None:
        return g.const(x.data.view(np.int64))
    return g.emit("BITCAST", [x], x.shape, np.dtype(np.int64))


def _real(g: Builder, bits: Tensor) -> Tensor:
    return g.emit("BITCAST", [bits], bits.shape, np.dtype(np.float64))


def _extreme(code: str) -> Callable[[Builder, Tensor, Tensor], Tensor]:
    def larger(g: Builder, a: Tensor, b: Tensor) -> Tensor:
        # The kernel keeps a NaN that comes first, but not one that comes second.
        return _select(g, _is_nan(g, b), b, binary(g, code, a, b))

    return larger


def _compared(code: str) -> Callable[[Builder, Tensor, Tensor], Tensor]:
    """Bits of floats are in the order of their values, once negative ones are inverted."""

    def compare(g: Builder, a: Tensor, b: Tensor) -> Tensor:
        found = g.binary(code, _key(g, a), _key(g, b))
        no_number = g.binary("LOGICAL_OR", _is_nan(g, a), _is_nan(g, b))
        if code == "NOT_EQUAL":
            return g.binary("LOGICAL_OR", found, no_number)
        return g.binary("LOGICAL_AND", found, g.unary("LOGICAL_NOT", no_number))

    return compare


def _key(g: Builder, x: Tensor) -> Tensor:
    if x.data is not None:
        held = x.data.view(np.int64)
        return g.const(np.where(held < 0, _SIGN - np.minimum(held, 0), held))
    bits = _bits(g, x)
    mirrored = g.binary("SUB", g.const(_SIGN, np.int64), bits)
    return _select(g, g.binary("LESS", bits, 0), mirrored, bits)


def _div(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    if b.data is not None and np.isfinite(b.data).all() and _are_normal(b.data):
        return _mul(g, a, g.const(1 / b.data))
    top, up = _parts(g, a)
    bottom, down = _parts(g, b)
    usual = _scaled(g, _quotient(g, top, bottom), g.binary("SUB", up, down), 4)
    # Zeros, infinities and what is no number: float32 has them all. Its DIV has no infinity.
    inverse = g.binary("POW", _class_of(g, b), -1)
    odd = _mul(g, g.cast(_class_of(g, a), np.float64), g.cast(inverse, np.float64))
    return _select(g, g.binary("LOGICAL_OR", _is_odd(g, a), _is_odd(g, b)), odd, usual)


def _quotient(g: Builder, top: Tensor, bottom: Tensor) -> Tensor:
    """Of a divisor that is neither large nor small: a float32 estimate, and what it leaves."""
    inverse = g.cast(g.binary("DIV", 1, g.cast(bottom, np.float32)), np.float64)
    for _ in range(2):
        rest = _sub(g, _number(g, 1), _mul(g, bottom, inverse))
        inverse = _add(g, inverse, _mul(g, inverse, rest))
    quotient = _mul(g, top, inverse)
    rest = _sub(g, top, _mul(g, quotient, bottom))
    return _add(g, quotient, _mul(g, rest, inverse))


def _are_normal(data: Any) -> bool:
    exponents = np.frexp(data)[1]
    return bool(data.all()) and bool((np.abs(exponents) < _BIAS - 1).all())


def _is_odd(g: Builder, x: Tensor) -> Tensor:
    """Whether zero, infinite or no number."""
    size = _magnitude(g, x)
    zero = g.binary("EQUAL", size, 0)
    return g.binary("LOGICAL_OR", zero, g.binary("GREATER_EQUAL", size, 0x7FF << _FRACTION))


def _magnitude(g: Builder, x: Tensor) -> Tensor:
    """The bits without the sign."""
    bits = _bits(g, x)
    return _select(g, g.binary("LESS", bits, 0), g.binary("SUB", bits, _SIGN), bits)


def _class_of(g: Builder, x: Tensor) -> Tensor:
    """A float32 that is zero, infinite or no number where ``x`` is, and else has its sign."""
    return _select(
        g,
        _is_odd(g, x),
        g.cast(x, np.float32),
        g.cast(g.emit("SIGN", [x], x.shape), np.float32),
    )


def _parts(g: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa (magnitude from 1 to 2, with the sign) and exponent as int64."""
    small = g.binary("LESS", _magnitude(g, x), 1 << _FRACTION)
    x = _select(g, small, _mul(g, x, _number(g, 2.0**54)), x)
    size = _magnitude(g, x)
    fraction = g.binary("FLOOR_MOD", size, 1 << _FRACTION)
    # Eleven bits and zeros behind them: float32 holds them.
    exponent = g.binary("MUL", g.cast(g.binary("SUB", size, fraction), np.float32), 2.0**-_FRACTION)
    shift = _select(g, small, g.const(_BIAS + 54, np.int64), g.const(_BIAS, np.int64))
    mantissa = _real(g, g.binary("ADD", fraction, _ONE))
    signed = _select(
        g, g.binary("LESS", _bits(g, x), 0), _mul(g, mantissa, _number(g, -1)), mantissa
    )
    return signed, g.binary("SUB", g.cast(exponent, np.int64), shift)


def _scaled(g: Builder, x: Tensor, exponent: Tensor, steps: int = 2) -> Tensor:
    """``x * 2 ** exponent``, in steps none of which leaves the range before the result does."""
    left = g.cast(exponent, np.int32)
    for step in range(steps, 0, -1):
        part = left if step == 1 else g.binary("FLOOR_DIV", left, step)
        if step > 1:
            left = g.binary("SUB", left, part)
        power = g.binary("MUL", g.binary("ADD", g.cast(part, np.int64), _BIAS), 1 << _FRACTION)
        x = _mul(g, x, _real(g, power))
    return x


def _neg(g: Builder, x: Tensor) -> Tensor:
    return _mul(g, x, _number(g, -1))


def _abs(g: Builder, x: Tensor) -> Tensor:
    return _real(g, _magnitude(g, x))


def _square_root(g: Builder, x: Tensor) -> Tensor:
    mantissa, exponent = _parts(g, x)
    odd = g.binary("FLOOR_MOD", exponent, 2)
    mantissa = _mul(g, mantissa, g.cast(g.binary("ADD", odd, 1), np.float64))
    single = g.unary("SQRT", g.cast(mantissa, np.float32))
    slope = g.cast(g.binary("DIV", 0.5, single), np.float64)
    root = g.cast(single, np.float64)
    for _ in range(2):
        rest = _sub(g, mantissa, _mul(g, root, root))
        root = _add(g, root, _mul(g, rest, slope))
    half = g.binary("FLOOR_DIV", g.cast(g.binary("SUB", exponent, odd), np.int32), 2)
    found = _scaled(g, root, half)
    plain = g.cast(g.unary("SQRT", _class_of(g, x)), np.float64)
    negative = g.binary("LESS", _bits(g, x), 0)
    return _select(g, g.binary("LOGICAL_OR", _is_odd(g, x), negative), plain, found)


def _exp(g: Builder, x: Tensor) -> Tensor:
    near = _EXTREMES["MINIMUM"](g, _EXTREMES["MAXIMUM"](g, x, _number(g, -746)), _number(g, 710))
    count = g.unary("ROUND", g.cast(_mul(g, near, _number(g, 1 / math.log(2))), np.float32))
    whole = g.cast(count, np.float64)
    rest = near
    for part in _LN2:
        rest = _sub(g, rest, _mul(g, whole, _number(g, part)))
    value = _number(g, 1 / math.factorial(_TERMS))
    for n in range(_TERMS - 1, -1, -1):
        value = _add(g, _mul(g, value, rest), _number(g, 1 / math.factorial(n)))
    return _scaled(g, value, count)


def _log(g: Builder, x: Tensor) -> Tensor:
    mantissa, exponent = _parts(g, x)
    # From sqrt(1/2) to sqrt(2), so that nothing cancels near one.
    high = g.binary("GREATER", g.cast(mantissa, np.float32), math.sqrt(2))
    mantissa = _select(g, high, _mul(g, mantissa, _number(g, 0.5)), mantissa)
    exponent = g.binary("ADD", exponent, g.cast(high, np.int64))
    over = _sub(g, mantissa, _number(g, 1))
    ratio = _quotient(g, over, _add(g, mantissa, _number(g, 1)))
    square = _mul(g, ratio, ratio)
    value = _number(g, 1 / 25)
    for n in range(23, 0, -2):
        value = _add(g, _mul(g, value, square), _number(g, 1 / n))
    near = _mul(g, _mul(g, ratio, _number(g, 2)), value)
    whole = g.cast(exponent, np.float64)
    found = _add(g, near, _mul(g, whole, _number(g, _LN2[1])))
    found = _add(g, _mul(g, whole, _number(g, _LN2[0])), found)
    kind = _class_of(g, x)
    # Of infinity and of NaN XNNPACK's is 88.
    kind = _select(g, g.binary("LESS", kind, np.inf), g.unary("LOG", kind), kind)
    plain = g.cast(kind, np.float64)
    negative = g.binary("LESS", _bits(g, x), 0)
    return _select(g, g.binary("LOGICAL_OR", _is_odd(g, x), negative), plain, found)


def _rounded(g: Builder, x: Tensor) -> Tensor:
    """To the nearest whole number, halves to even: there are no fractions next to 1.5 * 2**52."""
    shift = _number(g, 3 * _WHOLE)
    moved = _sub(g, _add(g, x, shift), shift)
    limit = g.const(np.float64(_WHOLE).view(np.int64))
    return _select(g, g.binary("LESS", _magnitude(g, x), limit), moved, x)


def _floor(g: Builder, x: Tensor) -> Tensor:
    near = _rounded(g, x)
    over = g.binary("GREATER", near, x)
    return _select(g, over, _add(g, near, _number(g, -1)), near)


def _ceil(g: Builder, x: Tensor) -> Tensor:
    return _neg(g, _floor(g, _neg(g, x)))


_EXTREMES = {
    "MAXIMUM": _extreme("STABLEHLO_MAXIMUM"),
    "MINIMUM": _extreme("STABLEHLO_MINIMUM"),
}
BINARY: dict[str, Callable[[Builder, Tensor, Tensor], Tensor]] = {
    "ADD": _add,
    "SUB": _sub,
    "MUL": _mul,
    "DIV": _div,
    **_EXTREMES,
    **{code: _compared(code) for code in COMPARISONS},
}
UNARY: dict[str, Callable[[Builder, Tensor], Tensor]] = {
    "NEG": _neg,
    "ABS": _abs,
    "SQRT": _square_root,
    "EXP": _exp,
    "LOG": _log,
    "ROUND": _rounded,
    "FLOOR": _floor,
    "CEIL": _ceil,
}
FOLDS = {"SUM": "ADD", "MEAN": "ADD", "REDUCE_PROD": "MUL"} | {
    "REDUCE_MAX": "MAXIMUM",
    "REDUCE_MIN": "MINIMUM",
}


def reduced(g: Builder, code: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Fold halves onto each other, axis by axis."""
    count = 1
    for axis in axes:
        size = x.shape[axis]
        if size is None:
            raise Refusal(f"{code} of float64 over a dynamic size", "dynamic_shape")
        count *= size
        x = _folded(g, FOLDS[code], x, axis, size)
    if code == "MEAN":
        x = _mul(g, x, _number(g, 1 / count))
    if keepdims:
        return x
    for axis in sorted(axes, reverse=True):
        x = g.drop_axis(x, axis)
    return x


def _folded(g: Builder, code: str, x: Tensor, axis: int, size: int) -> Tensor:
    while size > 1:
        half = size // 2
        low, high = _part(g, x, axis, 0, half), _part(g, x, axis, half, 2 * half)
        joined = BINARY[code](g, low, high)
        if size % 2:
            last = _part(g, x, axis, size - 1, size)
            if half == 1:
                joined = BINARY[code](g, joined, last)
            else:
                x, size = _joined(g, [joined, last], axis), half + 1
                continue
        x, size = joined, half
    return x


def _joined(g: Builder, parts: Sequence[Tensor], axis: int) -> Tensor:
    return _real(g, g.concat([_bits(g, p) for p in parts], axis))


def _part(g: Builder, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    begin = [start if i == axis else 0 for i in range(x.rank)]
    size = [stop - start if i == axis else -1 for i in range(x.rank)]
    shape = [stop - start if i == axis else s for i, s in enumerate(x.shape)]
    bounds = [g.const(v, np.int32) for v in (begin, size)]
    return g.emit("SLICE", [x, *bounds], shape)
