"""Bits of integers, by arithmetic: Core ML has no operators for them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import WHOLE, Tensor, limits
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("BitwiseNot", dtypes=INTEGERS)
def bitwise_not(g: Builder, X: Tensor) -> Tensor:
    """What is missing to all ones."""
    if X.dtype.kind == "u" and X.dtype.itemsize > 2:
        raise Refusal(f"all ones of {X.dtype} are beyond int32", "unsupported_dtype")
    ones = int(np.iinfo(X.dtype).max) if X.dtype.kind == "u" else -1
    return g.binary("sub", ones, X, limits(X.dtype))


@OPS.lower("BitwiseAnd", dtypes=INTEGERS)
def bitwise_and(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Products of bits."""
    return _by_bits(g, "and", A, B)


@OPS.lower("BitwiseOr", dtypes=INTEGERS)
def bitwise_or(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """``a + b - (a & b)``."""
    return _by_bits(g, "or", A, B)


@OPS.lower("BitwiseXor", dtypes=INTEGERS)
def bitwise_xor(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """``a + b - 2 * (a & b)``."""
    return _by_bits(g, "xor", A, B)


def _by_bits(g: Builder, kind: str, a: Tensor, b: Tensor) -> Tensor:
    """Add up what each pair of bits makes; the sign is one more bit, with a negative weight.

    Wider integers lie in int32, whose sign bit is that of all bits above.
    """
    signed = a.dtype.kind == "i"
    width = min(a.dtype.itemsize * 8, 32 if signed else 31)
    total: Tensor | None = None
    rest = [Tensor(np.dtype(np.int32), t.shape, g.physical(t)) for t in (a, b)]
    for bit in range(width):
        one, other = (g.binary("mod", t, 2) for t in rest)
        pair = g.binary("mul", one, other)
        if kind != "and":
            twice = pair if kind == "or" else g.binary("mul", pair, 2)
            pair = g.binary("sub", g.binary("add", one, other), twice)
        weight = -(1 << bit) if signed and bit == width - 1 else 1 << bit
        part = g.binary("mul", pair, weight)
        total = part if total is None else g.binary("add", total, part)
        rest = [g.binary("floor_div", t, 2) for t in rest]
    if total is None:
        raise ValueError("an integer has bits")
    return Tensor(a.dtype, total.shape, total.variable, span=limits(a.dtype))


@OPS.lower("BitShift", dtypes=INTEGERS)
def bit_shift(g: Builder, X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    """A product or quotient with a power of two; bits that leave the type are cut before.

    Positions that are no bits of the type, negative ones too, shift everything out.
    """
    by = g.cast(Y, np.int32)
    plain = Tensor(np.dtype(np.int32), X.shape, g.physical(X), span=X.bounds)
    if direction == "LEFT":
        return _left(g, X, plain, by)
    # As no value has more than 32 bits, the sign is all that is left of it after 31 positions.
    shifts = _held(g, by, 31)
    half = g.binary("floor_div", shifts, 2, (0, 15))
    rest = g.binary("sub", shifts, half, (0, 16))
    once = g.binary("floor_div", plain, _power(g, half))
    out = g.binary("floor_div", once, _power(g, rest))
    return Tensor(X.dtype, out.shape, out.variable, span=X.bounds)


def _left(g: Builder, x: Tensor, plain: Tensor, by: Tensor) -> Tensor:
    width = x.dtype.itemsize * 8
    if width <= 16:
        shifts = _held(g, by, width)
        kept = g.binary("mod", plain, _power(g, g.binary("sub", width, shifts, (0, width))))
        out = g.binary("mul", kept, _power(g, shifts))
        # The highest bit is the sign of signed integers.
        return g.fitted(Tensor(x.dtype, out.shape, out.variable, span=(0, (1 << width) - 1)))
    if x.dtype != np.int32:
        (low, high), most = x.bounds, 1 << min(max(by.bounds[1], 0), 64)
        out = g.binary("mul", plain, _power(g, _held(g, by, 30)))
        span = (min(low * most, low), max(high * most, high))
        return g.fitted(Tensor(x.dtype, out.shape, out.variable, span=span))
    shifts = _held(g, by, 31)
    # Of 2**31 there is no int32: the bit that becomes the sign is moved by itself.
    kept = _power(g, g.binary("minimum", g.binary("sub", 31, shifts), 30, (0, 30)))
    low_bits = g.binary("mul", g.binary("mod", plain, kept), _power(g, shifts))
    sign = g.binary("mod", g.binary("floor_div", plain, kept), 2)
    moved = g.binary("add", low_bits, g.binary("mul", sign, WHOLE[0]))
    none = g.binary("logical_or", g.binary("less", by, 0), g.binary("greater", by, 31))
    made = g.select(g.binary("equal", by, 0), plain, moved)
    return g.select(none, g.const(0, np.int32), made)


def _held(g: Builder, by: Tensor, most: int) -> Tensor:
    """Positions up to a number, which stands for negative ones too."""
    held = g.binary("minimum", by, most, (min(by.bounds[0], most), most))
    if by.bounds[0] >= 0:
        return held
    made = g.select(g.binary("less", by, 0), g.const(most, np.int32), held)
    made.span = (0, most)
    return made


def _power(g: Builder, exponents: Tensor) -> Tensor:
    """Two to the power of small integers."""
    powers = g.const(1 << np.arange(min(exponents.bounds[1], 30) + 1), np.int32)
    held = g.binary("minimum", exponents, 30) if exponents.bounds[1] > 30 else exponents
    return g.emit("gather", x=powers, indices=held, axis=0)


@OPS.lower("BitCast")
def bit_cast(g: Builder, input: Tensor, *, to: int) -> Tensor:
    """Another reading of the same integer, which is how small integers wrap."""
    dtype = np.dtype(ir.DataType(to).numpy())
    if input.dtype == np.bool_ and dtype.itemsize == 1:
        return g.cast(input, dtype)
    if dtype.kind not in "iu" or input.dtype.kind not in "iu":
        raise Refusal(
            f"bits of {input.dtype} as {dtype}: Core ML reads no bits, and arithmetic does not "
            "tell one NaN from another, nor minus zero from zero",
            "unsupported_dtype",
        )
    return g.fitted(Tensor(dtype, input.shape, g.physical(input), span=input.bounds))
