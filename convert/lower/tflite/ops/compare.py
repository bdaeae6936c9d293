"""Comparisons, logic and choice."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import select
from edgeinfer.convert.lower.tflite.registry import ANY, OPS


@OPS.lower("Trilu", since=14, dtypes=ANY)
def trilu(g: Builder, input: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    """The upper or lower triangle; zero elsewhere."""
    keep = _triangle(g, input, k, bool(upper))
    return select(g, keep, input, g.const(0, input.dtype))


def _triangle(g: Builder, x: Tensor, k: Tensor | None, upper: bool) -> Tensor:
    """A mask of the upper (from diagonal ``k`` on) or lower (up to it) triangle."""
    rows, columns = x.shape[-2:]
    shift = 0 if k is None else k
    if isinstance(shift, Tensor) and shift.data is not None:
        shift = int(shift.data.reshape(())[()])
    if rows is not None and columns is not None and isinstance(shift, int):
        above = np.triu(np.ones((rows, columns), np.bool_), shift if upper else shift + 1)
        return g.const(above if upper else ~above)
    row = steps(g, x, x.rank - 2)
    row = g.emit("EXPAND_DIMS", [row, g.const(-1, np.int32)], (rows, 1))
    column = steps(g, x, x.rank - 1)
    if isinstance(shift, Tensor):
        shift = g.reshape(g.cast(shift, np.int32), [])
    edge = g.binary("ADD", row, shift)
    return g.binary("GREATER_EQUAL" if upper else "LESS_EQUAL", column, edge)


def steps(g: Builder, x: Tensor, axis: int) -> Tensor:
    """``0, 1, ...`` as int32 along an axis of a tensor."""
    size = g.extent(x, axis)
    if isinstance(size, int):
        return g.const(np.arange(size), np.int32)
    limits = [g.const(0, np.int32), size, g.const(1, np.int32)]
    return g.emit("RANGE", limits, (None,))
