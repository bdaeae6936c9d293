"""Normalisation, as the arithmetic it is."""

from __future__ import annotations

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS, in_single
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("LRN", dtypes=FLOATS)
@in_single
def lrn(g: Builder, x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    before = (size - 1) // 2
    around = [0] * x.rank, [0] * x.rank
    around[0][1], around[1][1] = before, size - 1 - before
    squares = g.pad(g.binary("mul", x, x), *around)
    channels = x.shape[1]
    if channels is None:
        raise Refusal("channels are only known to a run", "dynamic_shape")
    total = g.part(squares, 1, 0, channels)
    for shift in range(1, size):
        total = g.binary("add", total, g.part(squares, 1, shift, shift + channels))
    base = g.binary("add", g.binary("mul", total, alpha / size), bias)
    return g.binary("divide", x, g.binary("pow", base, beta))
