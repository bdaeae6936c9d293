"""Elements put at positions, where several may meet at one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, function


def extremes(
    shape: Sequence[Expr], places: Sequence[Expr], dtype: str, axis: int, *, largest: bool
) -> tirx.PrimFunc:
    """Keep the largest or smallest of an element and of all that is put there; NaN stays.

    The kernel takes ``x`` (shape), ``at`` (int64, positions along the axis, none outside) and
    ``new`` of the same sizes, and gives ``y`` (shape).
    """
    buffers = {
        "x": (tuple(shape), dtype),
        "at": (tuple(places), "int64"),
        "new": (tuple(places), dtype),
        "y": (tuple(shape), dtype),
    }

    def body(x: Buffer, at: Buffer, new: Buffer, y: Buffer) -> None:
        with ExitStack() as loops:
            index = [loops.enter_context(T.serial(size)) for size in shape]
            T.buffer_store(y, T.BufferLoad(x, index), index)
        with ExitStack() as loops:
            index = [loops.enter_context(T.serial(size)) for size in places]
            target = [*index]
            target[axis] = T.BufferLoad(at, index)
            old, value = T.BufferLoad(y, target), T.BufferLoad(new, index)
            better = value > old if largest else value < old
            with T.If(tirx.Or(better, math.is_nan(value))), T.Then():
                T.buffer_store(y, value, target)

    return function("extremes", buffers, body)
