"""Elements put at positions, where several may meet at one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, function


def elements(
    shape: Sequence[Expr], places: Sequence[Expr], dtype: str, axis: int, reduction: str
) -> tirx.PrimFunc:
    """Put each new element at its position, or combine it with what is there, in their order.

    The kernel takes ``x`` (shape), ``at`` (int64, positions along the axis, none outside) and
    ``new`` of the same sizes, of which no other axis is longer than ``x``'s, and gives ``y``
    (shape). Of ``max`` and ``min`` NaN stays.
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
            value = T.BufferLoad(new, index)
            if reduction in ("max", "min"):
                old = T.BufferLoad(y, target)
                better = value > old if reduction == "max" else value < old
                if dtype.startswith("float"):
                    better = tirx.Or(better, math.is_nan(value))
                with T.If(better), T.Then():
                    T.buffer_store(y, value, target)
            elif reduction == "none":
                T.buffer_store(y, value, target)
            else:
                old = T.BufferLoad(y, target)
                T.buffer_store(y, old + value if reduction == "add" else old * value, target)

    return function(f"scatter_{reduction}", buffers, body)
