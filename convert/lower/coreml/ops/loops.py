"""Loops of ML Programs, for what a run repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.tensor import Tensor

Step = Callable[[list[Tensor]], list[Tensor]]


def while_loop(
    g: Builder, starts: Sequence[Tensor], condition: Callable[[list[Tensor]], Tensor], body: Step
) -> list[Tensor]:
    """Repeat a body while a condition holds.

    Args:
        g: builder.
        starts: what the loop carries; types and shapes stay the same.
        condition: Function of the carried values that gives a truth value without axes.
        body: gives the carried values of the next turn.
    """
    spans = [t.span for t in starts]

    def wrapped(variables: Sequence[Any]) -> list[Tensor]:
        return [
            Tensor(t.dtype, tuple(t.shape), v, span=s)
            for t, v, s in zip(starts, variables, spans, strict=True)
        ]

    def goes_on(*variables: Any) -> Any:
        with g.inside():
            return g.var(condition(wrapped(variables)))

    def turn(*variables: Any) -> list[Any]:
        with g.inside():
            return [g.fresh(t) for t in body(wrapped(variables))]

    opened = []
    for start in starts:
        variable = g.fresh(start)
        # coremltools would hold a value that the first turn keeps to be the same in all turns.
        variable._sym_val = None
        opened.append(Tensor(start.dtype, start.shape, variable))
    made = g.call("while_loop", {"_cond": goes_on, "_body": turn, "loop_vars": opened})
    made = made if isinstance(made, (list, tuple)) else [made]
    return [
        Tensor(t.dtype, g.wrap(v, t.dtype).shape, v, span=s)
        for t, v, s in zip(starts, made, spans, strict=True)
    ]


def buffer(g: Builder, count: Extent, piece: Sequence[Any], dtype: np.dtype[Any]) -> Tensor:
    """Make room for the results of all turns."""
    kind = np.int32 if dtype.kind in "iub" else dtype.type
    shape = g.vector([count, *piece])
    made = g.emit("fill", kind, shape=shape, value=kind(0))
    made.span = (0, 0) if made.is_integer else None
    return made


def store(g: Builder, pieces: Tensor, index: Tensor, piece: Tensor) -> Tensor:
    """Put the piece of one turn in its place."""
    one = g.insert_axes(piece, [0])
    value = g.cast(one, np.int32) if one.dtype == np.bool_ else one
    where = g.reshape(index, [1])
    return g.emit(
        "scatter", pieces.dtype, data=pieces, indices=where, updates=value, axis=0, mode="update"
    )


def piece_of(g: Builder, x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
    """Take what one turn reads of a sequence."""
    source = g.cast(x, np.int32) if x.dtype == np.bool_ else x
    where = g.reshape(index, [1])
    out = g.emit("gather", x=source, indices=where, axis=axis, span=source.span)
    return g.cast(g.drop_axes(out, [axis]), x.dtype)
