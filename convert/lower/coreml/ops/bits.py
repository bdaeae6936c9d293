# ruff: noqa: N803  (arguments have ONNX's names)
"""Bits of integers, by arithmetic: Core ML has no operators for them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor, limits
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("BitwiseNot", since=18, dtypes=INTEGERS)
def bitwise_not(g: Builder, X: Tensor) -> Tensor:
    """What is missing to all ones."""
    if X.dtype.kind == "u" and X.dtype.itemsize > 2:
        raise Refusal(f"all ones of {X.dtype} are beyond int32", "unsupported_dtype")
    ones = int(np.iinfo(X.dtype).max) if X.dtype.kind == "u" else -1
    return g.binary("sub", ones, X, limits(X.dtype))


@OPS.lower("BitwiseAnd", since=18, dtypes=INTEGERS)
def bitwise_and(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """Products of bits."""
    return _by_bits(g, "and", A, B)


@OPS.lower("BitwiseOr", since=18, dtypes=INTEGERS)
def bitwise_or(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """``a + b - (a & b)``."""
    return _by_bits(g, "or", A, B)


@OPS.lower("BitwiseXor", since=18, dtypes=INTEGERS)
def bitwise_xor(g: Builder, A: Tensor, B: Tensor) -> Tensor:
    """``a + b - 2 * (a & b)``."""
    return _by_bits(g, "xor", A, B)


def _by_bits(g: Builder, kind: str, a: Tensor, b: Tensor) -> Tensor:
    """Add up what each pair of bits makes; the sign is one more bit, with a negative weight."""
    width = a.dtype.itemsize * 8
    if width > 16 and (a.dtype.kind == "u" or width > 32):
        raise Refusal(f"bits of {a.dtype} are beyond int32", "unsupported_dtype")
    signed = a.dtype.kind == "i"
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


@OPS.lower("BitShift", since=11, dtypes=INTEGERS)
def bit_shift(g: Builder, X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    """A product or quotient with a power of two; bits that leave the type are cut before.

    Places that are no bits of the type, negative ones too, shift everything out.
    """
    width = X.dtype.itemsize * 8
    if width > 16:
        raise Refusal(f"bits of {X.dtype} are beyond int32", "unsupported_dtype")
    powers = g.const(1 << np.arange(width + 1), np.int32)
    by = g.cast(Y, np.int32)
    held = g.binary("minimum", by, width)
    if by.bounds[0] < 0:
        held = g.select(g.binary("less", by, 0), g.const(width, np.int32), held)
    plain = Tensor(np.dtype(np.int32), X.shape, g.physical(X))
    if direction == "RIGHT":
        out = g.binary("floor_div", plain, _power(g, powers, held))
    else:
        kept = g.binary("mod", plain, _power(g, powers, g.binary("sub", width, held)))
        out = g.binary("mul", kept, _power(g, powers, held))
        # The highest bit is the sign of signed integers.
        return g.fitted(Tensor(X.dtype, out.shape, out.variable, span=(0, (1 << width) - 1)))
    return Tensor(X.dtype, out.shape, out.variable, span=limits(X.dtype))


@OPS.lower("BitCast", since=26, dtypes=INTEGERS)
def bit_cast(g: Builder, input: Tensor, *, to: int) -> Tensor:
    """Another reading of the same small integer, which is how integers wrap."""
    dtype = np.dtype(ir.DataType(to).numpy())
    if dtype.kind not in "iu" or dtype.itemsize != input.dtype.itemsize or dtype.itemsize > 2:
        raise Refusal(f"{input.dtype} as {dtype}", "unsupported_dtype")
    return g.fitted(Tensor(dtype, input.shape, g.physical(input), span=input.bounds))


def _power(g: Builder, powers: Tensor, exponents: Tensor) -> Tensor:
    return g.emit("gather", x=powers, indices=exponents, axis=0)
