"""Recurrent layers, as a loop over the steps: Core AI has no operation for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.ops.activation import function_of
from edgeinfer.convert.lower.coreai.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Shape, Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.verify.operators.activations import with_numbers

_DTYPES = FLOATS | INTEGERS

UNROLLED = 4
"""Steps up to which they are written out."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One direction of a recurrent layer.

    Attributes:
        recurrence: (G*H, H).
        bias: (G*H) of the recurrent side, or None.
        peephole: (3*H) or None.
        lengths: (B, 1) int64, or None where all sequences are whole.
        activations: as functions of the builder.
        clip: bound of what activations see; 0 for none.
    """

    recurrence: Tensor
    bias: Tensor | None
    peephole: Tensor | None
    lengths: Tensor | None
    activations: list[Callable[[Builder, Tensor], Tensor]]
    clip: float

    def act(self, g: Builder, which: int, x: Tensor) -> Tensor:
        """Apply an activation to what is clipped first."""
        if self.clip:
            x = g.clip(x, -self.clip, self.clip)
        return self.activations[which](g, x)

    def product(self, g: Builder, state: Tensor, rows: slice | None = None) -> Tensor:
        """The recurrent share of the gates."""
        weights, bias = self.recurrence, self.bias
        if rows is not None:
            weights = g.slice(weights, [rows.start, 0], [rows.stop, int(weights.shape[1] or 0)])
            bias = bias and g.slice(bias, [rows.start], [rows.stop])
        made = g.binary("batch_matmul", state, g.transpose(weights, [1, 0]))
        return made if bias is None else g.binary("add", made, bias)


Cell = Callable[[Builder, Layer, Tensor, list[Tensor]], list[Tensor]]
"""Gives the next states from the input's share of the gates and the states."""


def _gates(g: Builder, x: Tensor, count: int) -> list[Tensor]:
    size = int(x.shape[-1] or 0)
    return g.split(x, [size // count] * count, x.rank - 1)


def _run(
    g: Builder, gates: Tensor, layer: Layer, states: list[Tensor], cell: Cell, backwards: bool
) -> tuple[Tensor, list[Tensor]]:
    """Run one direction over gates (S, B, G*H); returns (S, B, H) and the last states."""
    count = gates.shape[0]
    hidden = int(layer.recurrence.shape[1] or 0)

    def step(place: Tensor, own: Tensor, now: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        after = cell(g, layer, own, now)
        if layer.lengths is None:
            return after, after[0]
        live = g.less(place, layer.lengths)
        shown = g.select(live, after[0], g.const(np.zeros((), own.dtype)))
        return [g.select(live, a, b) for a, b in zip(after, now, strict=True)], shown

    if count is not None and count <= UNROLLED:
        shown: list[Tensor] = []
        order = range(count)[::-1] if backwards else range(count)
        for index in order:
            own = g.drop_axes(g.part(gates, 0, index, index + 1), [0])
            states, out = step(g.const(np.int64(index)), own, states)
            shown.append(g.insert_axes(out, [0]))
        return g.concat(shown[::-1] if backwards else shown, 0), states
    return _looped(g, gates, hidden, states, step, backwards)


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
        after, shown = step(place, own, now[2:])
        at = g.reshape(place, [1, 1])
        kept = g.scatter(now[1], at, g.insert_axes(shown, [0]))
        after = [g.typed(a, s.shape) for a, s in zip(after, states, strict=True)]
        return [g.binary("add", index, 1), g.typed(kept, shape), *after]

    kinds: list[tuple[Any, Shape]] = [(np.int64, ()), (gates.dtype, shape)]
    kinds += [(s.dtype, s.shape) for s in states]
    starts = [g.const(np.int64(0)), room, *states]
    end = g.loop(starts, lambda now: g.less(now[0], limit), turn, kinds)
    return end[1], end[2:]


def _lstm(g: Builder, layer: Layer, own: Tensor, states: list[Tensor]) -> list[Tensor]:
    h, c = states
    i, o, f, z = _gates(g, g.binary("add", own, layer.product(g, h)), 4)
    peep = _gates(g, layer.peephole, 3) if layer.peephole is not None else None
    if peep is not None:
        i = g.binary("add", i, g.binary("mul", peep[0], c))
        f = g.binary("add", f, g.binary("mul", peep[2], c))
    i, f, z = layer.act(g, 0, i), layer.act(g, 0, f), layer.act(g, 1, z)
    c = g.binary("add", g.binary("mul", f, c), g.binary("mul", i, z))
    if peep is not None:
        o = g.binary("add", o, g.binary("mul", peep[1], c))
    o = layer.act(g, 0, o)
    # The clip is of what gates see, not of the cell.
    return [g.binary("mul", o, layer.activations[2](g, c)), c]


def _gru(linear: bool) -> Cell:
    def cell(g: Builder, layer: Layer, own: Tensor, states: list[Tensor]) -> list[Tensor]:
        (h,) = states
        size = int(layer.recurrence.shape[1] or 0)
        x_z, x_r, x_h = _gates(g, own, 3)
        h_z, h_r = _gates(g, layer.product(g, h, slice(0, 2 * size)), 2)
        z = layer.act(g, 0, g.binary("add", x_z, h_z))
        r = layer.act(g, 0, g.binary("add", x_r, h_r))
        last = slice(2 * size, 3 * size)
        if linear:
            share = g.binary("mul", r, layer.product(g, h, last))
        else:
            share = layer.product(g, g.binary("mul", r, h), last)
        fresh = layer.act(g, 1, g.binary("add", x_h, share))
        # z * h + (1 - z) * fresh, in the order ONNX writes it
        stay = g.binary("mul", z, h)
        return [g.binary("add", g.binary("mul", g.binary("sub", 1, z), fresh), stay)]

    return cell


def _rnn(g: Builder, layer: Layer, own: Tensor, states: list[Tensor]) -> list[Tensor]:
    (h,) = states
    return [layer.act(g, 0, g.binary("add", own, layer.product(g, h)))]


@dataclass(frozen=True, slots=True)
class _Plan:
    cell: Cell
    gates: int
    states: int
    defaults: tuple[str, ...]
    activations: Sequence[str] | None
    alpha: Sequence[float] | None
    beta: Sequence[float] | None
    clip: float | None
    direction: str
    layout: int


def _layer(
    g: Builder, plan: _Plan, X: Tensor, W: Tensor, R: Tensor, B: Tensor | None,
    lengths: Tensor | None, states: list[Tensor | None], peephole: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[plan.direction]
    hidden = int(R.shape[-1] or 0)
    if plan.layout:
        X = g.transpose(X, [1, 0, 2])
        states = [s and g.transpose(s, [1, 0, 2]) for s in states]
    ends = g.insert_axes(g.cast(lengths, np.int64), [1]) if lengths is not None else None
    outs, lasts = [], []
    for way, backwards in enumerate(ways):
        pick = _picker(g, way)
        own_bias, other = None, None
        if B is not None:
            row = pick(B)
            half = plan.gates * hidden
            own_bias, other = g.slice(row, [0], [half]), g.slice(row, [half], [2 * half])
        gates = g.binary("batch_matmul", X, g.transpose(pick(W), [1, 0]))
        if own_bias is not None:
            gates = g.binary("add", gates, own_bias)
        layer = Layer(
            pick(R),
            other,
            None if peephole is None else pick(peephole),
            ends,
            _functions(plan, way),
            plan.clip or 0.0,
        )
        start = [
            g.expand(g.const(np.zeros((1, 1), X.dtype)), [g.extent(X, 1), hidden])
            if s is None
            else g.typed(pick(s), (s.shape[1], hidden))
            for s in states
        ]
        out, last = _run(g, gates, layer, start, plan.cell, backwards)
        outs.append(g.insert_axes(out, [1]))
        lasts.append([g.insert_axes(s, [0]) for s in last])
    Y = g.concat(outs, 1)
    ended = [g.concat([way[i] for way in lasts], 0) for i in range(plan.states)]
    if plan.layout:
        Y = g.transpose(Y, [2, 0, 1, 3])
        ended = [g.transpose(s, [1, 0, 2]) for s in ended]
    return Y, *ended


def _picker(g: Builder, way: int) -> Callable[[Tensor], Tensor]:
    return lambda t: g.drop_axes(g.part(t, 0, way, way + 1), [0])


def _functions(plan: _Plan, way: int) -> list[Callable[[Builder, Tensor], Tensor]]:
    each = len(plan.defaults)
    names = list(plan.activations or plan.defaults * 2)
    numbered = with_numbers(names, plan.alpha, plan.beta)
    return [function_of(*one) for one in numbered[way * each : (way + 1) * each]]


def _refuse_forget(input_forget: int) -> None:
    if input_forget:
        raise Refusal("input_forget=1")


@OPS.lower("LSTM", since=14, dtypes=_DTYPES)
def lstm(
    g: Builder,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    _refuse_forget(input_forget)
    defaults = ("Sigmoid", "Tanh", "Tanh")
    plan = _Plan(
        _lstm, 4, 2, defaults, activations, activation_alpha, activation_beta, clip, direction,
        layout,
    )  # fmt: skip
    return _layer(g, plan, X, W, R, B, sequence_lens, [initial_h, initial_c], P)


@OPS.lower("GRU", since=14, dtypes=_DTYPES)
def gru(
    g: Builder,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    plan = _Plan(
        _gru(bool(linear_before_reset)), 3, 1, ("Sigmoid", "Tanh"), activations, activation_alpha,
        activation_beta, clip, direction, layout,
    )  # fmt: skip
    return _layer(g, plan, X, W, R, B, sequence_lens, [initial_h], None)


@OPS.lower("RNN", since=14, dtypes=_DTYPES)
def rnn(
    g: Builder,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    plan = _Plan(
        _rnn, 1, 1, ("Tanh",), activations, activation_alpha, activation_beta, clip, direction,
        layout,
    )  # fmt: skip
    return _layer(g, plan, X, W, R, B, sequence_lens, [initial_h], None)
