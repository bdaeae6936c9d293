"""Recurrent layers: lstm where it computes the same, else steps written out or in a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.portable import Moved
from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ops.loops import buffer, piece_of, store, while_loop
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.ops.recurrent import Direction

UNROLLED = 40
"""Steps up to which they are written out: the Neural Engine has no loops."""

Step = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, list[Tensor]]]
"""Gives an output and the next states from the step's number, gates and states."""


def run(p: Moved, g: Builder, direction: Direction) -> tuple[Tensor, list[Tensor]]:
    """Run one direction; returns all outputs (S, B, H) and the last states."""
    gates, count = direction.gates(p), direction.x.shape[0]
    if isinstance(count, int) and count <= UNROLLED:
        return _written_out(g, direction, gates, count, _step(p, g, direction))
    return _looped(g, direction, gates, _step(p, g, direction))


def _step(p: Moved, g: Builder, direction: Direction) -> Step:
    def step(place: Tensor, own: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        after = list(direction.cell.step(p, own, states))
        if direction.lengths is None:
            return after[0], after
        # Outputs after the end of a sequence are zero.
        live = g.insert_axes(g.binary("less", place, direction.lengths), [1])
        shown = g.select(live, after[0], g.const(0, own.dtype))
        return shown, [g.select(live, a, b) for a, b in zip(after, states, strict=True)]

    return step


def _written_out(
    g: Builder, direction: Direction, gates: Tensor, count: int, step: Step
) -> tuple[Tensor, list[Tensor]]:
    parts = g.split(gates, [1] * count, 0)
    states, outputs = list(direction.states), []
    for index in reversed(range(count)) if direction.backwards else range(count):
        own = g.drop_axes(parts[index], [0])
        shown, states = step(g.const(index, np.int32), own, states)
        outputs.append(g.insert_axes(shown, [0]))
    return g.concat(outputs[::-1] if direction.backwards else outputs, 0), states


def _looped(
    g: Builder, direction: Direction, gates: Tensor, step: Step
) -> tuple[Tensor, list[Tensor]]:
    x, count = direction.x, g.extent(direction.x, 0)
    limit = g.const(count, np.int32) if isinstance(count, int) else count
    room = buffer(g, count, [g.extent(x, 1), direction.cell.hidden], x.dtype)
    counter = g.const(0, np.int32)

    def turn(now: list[Tensor]) -> list[Tensor]:
        index = place = now[0]
        if direction.backwards:
            place = g.binary("sub", g.binary("sub", limit, 1), index)
        shown, states = step(place, piece_of(g, gates, place), now[2:])
        return [g.binary("add", index, 1), store(g, now[1], place, shown), *states]

    starts = [Tensor(s.dtype, s.shape, g.var(s)) for s in direction.states]
    counter.span = (0, (1 << 31) - 2)
    end = while_loop(g, [counter, room, *starts], lambda now: g.binary("less", now[0], limit), turn)
    return end[1], end[2:]


def linear(g: Builder, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Linear by known weights, else matmul and a sum."""
    if weights.data is not None and (bias is None or bias.data is not None) and x.rank in (2, 3):
        return g.emit("linear", x=x, weight=weights, bias=bias)
    out = g.emit("matmul", x=x, y=weights, transpose_y=True)
    return out if bias is None else g.binary("add", out, bias)


def fused(p: Moved, g: Builder, directions: Sequence[Direction]) -> tuple[Tensor, ...] | None:
    """Lstm for known weights and the usual activations: (S, D, B, H), then (D, B, H) twice."""
    if not all(_is_usual(d) for d in directions):
        return None
    ahead = directions[0]
    if len(directions) == 2:
        return _both(g, *directions)
    x = g.emit("reverse", x=ahead.x, axes=[0]) if ahead.backwards else ahead.x
    y, h, c = _lstm(g, x, ahead.states, "forward", _operands(g, ahead))
    y = g.emit("reverse", x=y, axes=[0]) if ahead.backwards else y
    return g.insert_axes(y, [1]), g.insert_axes(h, [0]), g.insert_axes(c, [0])


def _is_usual(direction: Direction) -> bool:
    bias = [] if direction.bias is None else [direction.bias]
    weights = (direction.w, *direction.cell.tensors, *bias)
    usual = direction.cell.kind == "LSTM" and direction.plain and direction.lengths is None
    return usual and all(t.data is not None for t in weights)


def _both(g: Builder, ahead: Direction, back: Direction) -> tuple[Tensor, ...]:
    """Both directions by one lstm, which has their values in a row."""
    starts = [g.concat([a, b], 1) for a, b in zip(ahead.states, back.states, strict=True)]
    behind = {f"{name}_back": value for name, value in _operands(g, back).items()}
    found = _lstm(g, ahead.x, starts, "bidirectional", _operands(g, ahead) | behind)
    y, h, c = (_apart(g, value, ahead.cell.hidden) for value in found)
    return y, h, c


def _apart(g: Builder, x: Tensor, hidden: int) -> Tensor:
    """(..., B, 2 * H) as (..., 2, B, H)."""
    place = x.rank - 2
    if sum(not isinstance(size, int) for size in x.shape) > 1:
        halves = g.split(x, [hidden, hidden], x.rank - 1)
        return g.concat([g.insert_axes(half, [place]) for half in halves], place)
    order = [*range(place), place + 1, place, place + 2]
    return g.transpose(g.reshape(x, [*g.extents(x)[:-1], 2, hidden]), order)


def _lstm(
    g: Builder, x: Tensor, states: Sequence[Tensor], direction: str, operands: dict[str, Any]
) -> list[Tensor]:
    return g.emit_all(
        "lstm",
        [x.dtype] * 3,
        x=x,
        initial_h=states[0],
        initial_c=states[1],
        output_sequence=True,
        direction=direction,
        **operands,
    )


def _operands(g: Builder, direction: Direction) -> dict[str, Any]:
    """Weights of a direction: lstm takes the gates in the order i, f, o, z."""
    cell, order = direction.cell, (0, 2, 1, 3)
    i, o, f = cell.peephole or (None, None, None)
    bias = direction.bias
    return {
        "weight_ih": _ordered(g, direction.w, order),
        "weight_hh": _ordered(g, cell.r, order),
        "bias": None if bias is None else _ordered(g, bias, order),
        "peephole": None if i is None else g.concat([i, f, o], 0),
    }


def _ordered(g: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    parts = np.split(np.asarray(x.data), len(order), axis=0)
    return g.const(np.concatenate([parts[i] for i in order]), x.dtype)
