"""Recurrent layers, as a loop over the steps: Core AI has no operation for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.portable import Moved
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.tensor import Shape, Tensor
from edgeinfer.convert.lower.ops.recurrent import Direction

UNROLLED = 4
"""Steps up to which they are written out."""


def run(p: Moved, g: Builder, direction: Direction) -> tuple[Tensor, list[Tensor]]:
    """Run one direction; returns all outputs (S, B, H) and the last states."""
    gates, hidden = direction.gates(p), direction.cell.hidden
    states = [g.typed(s, (s.shape[0], hidden)) for s in direction.states]
    lengths, count = direction.lengths, gates.shape[0]
    ends = None if lengths is None else g.insert_axes(g.cast(lengths, np.int64), [1])

    def step(place: Tensor, own: Tensor, now: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        after = list(direction.cell.step(p, own, now))
        if ends is None:
            return after[0], after
        live = g.less(place, ends)
        shown = g.select(live, after[0], g.const(np.zeros((), own.dtype)))
        return shown, [g.select(live, a, b) for a, b in zip(after, now, strict=True)]

    if count is None or count > UNROLLED:
        return _looped(g, gates, hidden, states, step, direction.backwards)
    outputs: list[Tensor] = []
    for index in reversed(range(count)) if direction.backwards else range(count):
        own = g.drop_axes(g.part(gates, 0, index, index + 1), [0])
        shown, states = step(g.const(np.int64(index)), own, states)
        outputs.append(g.insert_axes(shown, [0]))
    return g.concat(outputs[::-1] if direction.backwards else outputs, 0), states


def _looped(
    g: Builder, gates: Tensor, hidden: int, states: list[Tensor], step: Any, backwards: bool
) -> tuple[Tensor, list[Tensor]]:
    length = g.extent(gates, 0)
    limit = g.const(np.int64(length)) if isinstance(length, int) else length
    batch = g.extent(gates, 1)
    empty = g.const(np.zeros((1, 1, 1), gates.dtype))
    room = g.expand(empty, [length, batch, hidden])
    shape = room.shape

    def turn(now: list[Tensor]) -> list[Tensor]:
        index, place = now[0], now[0]
        if backwards:
            place = g.binary("sub", g.binary("sub", limit, 1), index)
        own = g.take(gates, g.reshape(place, []), 0)
        shown, after = step(place, own, now[2:])
        at = g.reshape(place, [1, 1])
        kept = g.scatter(now[1], at, g.insert_axes(shown, [0]))
        after = [g.typed(a, s.shape) for a, s in zip(after, states, strict=True)]
        return [g.binary("add", index, 1), g.typed(kept, shape), *after]

    kinds: list[tuple[Any, Shape]] = [(np.int64, ()), (gates.dtype, shape)]
    kinds += [(s.dtype, s.shape) for s in states]
    starts = [g.const(np.int64(0)), room, *states]
    end = g.loop(starts, lambda now: g.less(now[0], limit), turn, kinds)
    return end[1], end[2:]
