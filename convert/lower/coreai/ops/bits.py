"""Bits of integers."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import INTEGERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor


@OPS.lower("BitShift", dtypes=INTEGERS)
def bit_shift(g: Builder, X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    """A product or quotient with a power of two; positions beyond the type shift everything out."""
    width = X.dtype.itemsize * 8
    gone = g.binary("or", g.less(Y, 0), g.binary("greater", Y, width - 1))
    by = g.select(gone, g.const(np.zeros((), Y.dtype)), Y)
    top = width - 1 if X.dtype.kind == "u" else width - 2
    powers = g.const(np.array([1 << min(k, top) for k in range(width)], X.dtype))
    factor = g.take(powers, g.cast(by, np.int32), 0)
    if direction == "LEFT":
        made = g.binary("mul", X, factor)
        if X.dtype.kind == "i":
            # The sign's own power is no number of the type: it is twice the one before.
            last = g.binary("equal", by, width - 1)
            made = g.select(last, g.binary("mul", made, 2), made)
        return g.select(gone, g.const(np.zeros((), X.dtype)), made)
    if X.dtype.kind == "u":
        made = g.binary("divide", X, factor)
        return g.select(gone, g.const(np.zeros((), X.dtype)), made)
    rest = g.binary("modulo", X, factor)
    rest = g.select(g.less(rest, 0), g.binary("add", rest, factor), rest)
    made = g.binary("divide", g.binary("sub", X, rest), factor)
    sign = g.select(g.less(X, 0), g.const(X.dtype.type(-1)), g.const(np.zeros((), X.dtype)))
    made = g.select(g.binary("equal", by, width - 1), sign, made)
    return g.select(gone, sign, made)
