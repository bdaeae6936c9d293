# ruff: noqa: N803  (arguments have ONNX's names)
"""Recurrent layers: lstm where it computes the same, else steps written out or in a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ops.loops import buffer, piece_of, store, while_loop
from edgeinfer.convert.lower.coreml.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.verify.operators.activations import with_numbers

UNROLLED = 40
"""Steps up to which they are written out: the Neural Engine has no loops."""

_DTYPES = FLOATS | INTEGERS

_DEFAULTS = {"alpha": {"leakyrelu": 0.01, "elu": 1.0, "thresholdedrelu": 1.0, "hardsigmoid": 0.2}}


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One direction of a recurrent layer.

    Attributes:
        steps: (S, B, I).
        weights: (G*H, I).
        recurrence: (G*H, H).
        bias: (G*H) of the input side, (G*H) of the recurrent side.
        peephole: (3*H) or None.
        states: (B, H) each.
        lengths: (B) int32, or None where all sequences are whole.
        backwards: walks from the end.
        activations: as functions of the builder.
        clip: bound of what activations see; 0 for none.
    """

    steps: Tensor
    weights: Tensor
    recurrence: Tensor
    bias: tuple[Tensor | None, Tensor | None]
    peephole: Tensor | None
    states: list[Tensor]
    lengths: Tensor | None
    backwards: bool
    activations: list[Callable[[Tensor], Tensor]]
    clip: float

    @property
    def hidden(self) -> int:
        """Size of the state."""
        return int(self.recurrence.shape[1])


Cell = Callable[[Builder, Layer, Tensor, list[Tensor]], list[Tensor]]
"""Gives the next states from the input's share of the gates and the states."""


def run_layer(g: Builder, layer: Layer, cell: Cell) -> tuple[Tensor, list[Tensor]]:
    """Run one direction; returns all outputs (S, B, H) and the last states."""
    bias = layer.bias[0]
    gates = _product(g, layer.steps, layer.weights, bias)
    count = layer.steps.shape[0]

    def step(index: Tensor | int, states: list[Tensor], own: Tensor) -> list[Tensor]:
        after = cell(g, layer, own, states)
        if layer.lengths is None:
            return after
        place = index if isinstance(index, Tensor) else g.const(index, np.int32)
        live = g.insert_axes(g.binary("less", place, layer.lengths), [1])
        return [g.select(live, a, b) for a, b in zip(after, states, strict=True)]

    if isinstance(count, int) and count <= UNROLLED:
        return _written_out(g, layer, gates, count, step)
    return _looped(g, layer, gates, step)


def _written_out(
    g: Builder, layer: Layer, gates: Tensor, count: int, step: Any
) -> tuple[Tensor, list[Tensor]]:
    parts = g.split(gates, [1] * count, 0)
    states, outputs = list(layer.states), []
    order = range(count - 1, -1, -1) if layer.backwards else range(count)
    for index in order:
        states = step(index, states, g.drop_axes(parts[index], [0]))
        outputs.append(g.insert_axes(_shown(g, layer, index, states[0]), [0]))
    if layer.backwards:
        outputs.reverse()
    return g.concat(outputs, 0), states


def _shown(g: Builder, layer: Layer, index: Tensor | int, state: Tensor) -> Tensor:
    """Outputs behind the end of a sequence are zero."""
    if layer.lengths is None:
        return state
    place = index if isinstance(index, Tensor) else g.const(index, np.int32)
    live = g.insert_axes(g.binary("less", place, layer.lengths), [1])
    return g.select(live, state, g.const(0, state.dtype))


def _looped(g: Builder, layer: Layer, gates: Tensor, step: Any) -> tuple[Tensor, list[Tensor]]:
    count = g.extent(layer.steps, 0)
    limit = g.const(count, np.int32) if isinstance(count, int) else count
    room = buffer(g, count, [g.extent(layer.steps, 1), layer.hidden], layer.steps.dtype)
    counter = g.const(0, np.int32)

    def turn(now: list[Tensor]) -> list[Tensor]:
        index = now[0]
        place = index
        if layer.backwards:
            place = g.binary("sub", g.binary("sub", limit, 1), index)
        states = step(place, now[2:], piece_of(g, gates, place))
        kept = store(g, now[1], place, _shown(g, layer, place, states[0]))
        return [g.binary("add", index, 1), kept, *states]

    starts = [Tensor(s.dtype, s.shape, g.var(s)) for s in layer.states]
    counter.span = (0, (1 << 31) - 2)
    end = while_loop(g, [counter, room, *starts], lambda now: g.binary("less", now[0], limit), turn)
    return end[1], end[2:]


def _product(g: Builder, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    if weights.data is not None and (bias is None or bias.data is not None) and x.rank in (2, 3):
        return g.emit("linear", x=x, weight=weights, bias=bias)
    out = g.emit("matmul", x=x, y=weights, transpose_y=True)
    return out if bias is None else g.binary("add", out, bias)


def _gates(g: Builder, x: Tensor, count: int) -> list[Tensor]:
    size = int(x.shape[-1])
    return g.split(x, [size // count] * count, x.rank - 1)


def _clipped(g: Builder, layer: Layer, x: Tensor) -> Tensor:
    return g.unary("clip", x, alpha=-layer.clip, beta=layer.clip) if layer.clip else x


def _rnn_cell(g: Builder, layer: Layer, own: Tensor, states: list[Tensor]) -> list[Tensor]:
    back = _product(g, states[0], layer.recurrence, layer.bias[1])
    return [layer.activations[0](_clipped(g, layer, g.binary("add", own, back)))]


def _gru_cell(before: bool) -> Cell:
    """``before``: the recurrent product of the candidate is taken before the reset gate."""

    def cell(g: Builder, layer: Layer, own: Tensor, states: list[Tensor]) -> list[Tensor]:
        h, size = states[0], layer.hidden
        squash, bend = layer.activations
        z_x, r_x, h_x = _gates(g, own, 3)
        if before:
            z_h, r_h, h_h = _gates(g, _product(g, h, layer.recurrence, layer.bias[1]), 3)
        else:
            both = g.slice(layer.recurrence, [0, 0], [2 * size, None])
            first = _cut_bias(g, layer.bias[1], 2 * size)[0]
            z_h, r_h = _gates(g, _product(g, h, both, first), 2)
        z = squash(_clipped(g, layer, g.binary("add", z_x, z_h)))
        r = squash(_clipped(g, layer, g.binary("add", r_x, r_h)))
        if before:
            back = g.binary("mul", r, h_h)
        else:
            rest = g.slice(layer.recurrence, [2 * size, 0], [None, None])
            last = _cut_bias(g, layer.bias[1], 2 * size)[1]
            back = _product(g, g.binary("mul", r, h), rest, last)
        fresh = bend(_clipped(g, layer, g.binary("add", h_x, back)))
        # (1 - z) * fresh + z * h
        kept = g.binary("mul", z, g.binary("sub", h, fresh))
        return [g.binary("add", fresh, kept)]

    return cell


def _cut_bias(g: Builder, bias: Tensor | None, at: int) -> tuple[Tensor | None, Tensor | None]:
    if bias is None:
        return None, None
    return g.slice(bias, [0], [at]), g.slice(bias, [at], [None])


def _lstm_cell(couple: bool) -> Cell:
    """``couple``: the forget gate is what the input gate leaves."""

    def cell(g: Builder, layer: Layer, own: Tensor, states: list[Tensor]) -> list[Tensor]:
        h, c = states
        squash, bend, show = layer.activations
        back = _product(g, h, layer.recurrence, layer.bias[1])
        i, o, f, fresh = _gates(g, g.binary("add", own, back), 4)
        peeps = [None] * 3 if layer.peephole is None else _gates(g, layer.peephole, 3)
        i = squash(_clipped(g, layer, _peeped(g, i, c, peeps[0])))
        if couple:
            f = g.binary("sub", 1.0, i)
        else:
            f = squash(_clipped(g, layer, _peeped(g, f, c, peeps[2])))
        fresh = bend(_clipped(g, layer, fresh))
        c = g.binary("add", g.binary("mul", f, c), g.binary("mul", i, fresh))
        o = squash(_clipped(g, layer, _peeped(g, o, c, peeps[1])))
        return [g.binary("mul", o, show(c)), c]

    return cell


def _peeped(g: Builder, gate: Tensor, cell: Tensor, peep: Tensor | None) -> Tensor:
    return gate if peep is None else g.binary("add", gate, g.binary("mul", cell, peep))


def _activation(
    g: Builder, name: str, alpha: float | None, beta: float | None
) -> Callable[[Tensor], Tensor]:
    kind = name.lower()
    a = _DEFAULTS["alpha"].get(kind, 1.0) if alpha is None else float(alpha)
    b = (0.5 if kind == "hardsigmoid" else 0.0) if beta is None else float(beta)
    options: dict[str, tuple[str, dict[str, float]]] = {
        "sigmoid": ("sigmoid", {}),
        "tanh": ("tanh", {}),
        "relu": ("relu", {}),
        "softsign": ("softsign", {}),
        "softplus": ("softplus", {}),
        "leakyrelu": ("leaky_relu", {"alpha": a}),
        "elu": ("elu", {"alpha": a}),
        "hardsigmoid": ("sigmoid_hard", {"alpha": a, "beta": b}),
        "scaledtanh": ("scaled_tanh", {"alpha": a, "beta": 1.0 if beta is None else b}),
    }
    if kind == "affine":
        return lambda x: g.binary("add", g.binary("mul", x, a), b)
    if kind not in options:
        raise Refusal(f"activation {name!r}")
    op, numbers = options[kind]
    return lambda x: g.unary(op, x, **numbers)


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """The operands and attributes of a recurrent node."""

    x: Tensor
    w: Tensor
    r: Tensor
    b: Tensor | None
    lengths: Tensor | None
    states: list[Tensor | None]
    peephole: Tensor | None
    direction: str
    activations: Sequence[str]
    alpha: Sequence[float]
    beta: Sequence[float]
    clip: float
    layout: int


def _layers(g: Builder, node: _Node, defaults: Sequence[str]) -> list[Layer]:
    x = g.transpose(node.x, [1, 0, 2]) if node.layout else node.x
    count = 2 if node.direction == "bidirectional" else 1
    names = list(node.activations) or list(defaults) * count
    if len(names) > len(defaults) * count and set(names) == set(defaults):
        # ONNX's own default names both directions.
        names = names[: len(defaults) * count]
    if len(names) != len(defaults) * count:
        raise Refusal(f"{len(names)} activations for {count} directions")
    lengths = _lengths(g, node.lengths, x)
    layers = []
    numbered = with_numbers(names, node.alpha, node.beta)
    for index in range(count):
        own = numbered[index * len(defaults) : (index + 1) * len(defaults)]
        functions = [_activation(g, *each) for each in own]
        hidden = int(node.r.shape[2])
        layers.append(
            Layer(
                x,
                _part(g, node.w, index),
                _part(g, node.r, index),
                _halves(g, node.b, index),
                None if node.peephole is None else _part(g, node.peephole, index),
                [_start(g, s, index, x, hidden, node.layout) for s in node.states],
                lengths,
                node.direction == "reverse" or index == 1,
                functions,
                float(node.clip),
            )
        )
    return layers


def _lengths(g: Builder, lengths: Tensor | None, x: Tensor) -> Tensor | None:
    if lengths is None:
        return None
    if lengths.data is not None and (lengths.data == x.shape[0]).all():
        return None
    return g.cast(lengths, np.int32)


def _part(g: Builder, x: Tensor, index: int) -> Tensor:
    if x.shape[0] == 1:
        return g.drop_axes(x, [0])
    begin = [index] + [0] * (x.rank - 1)
    end: list[int | None] = [index + 1] + [None] * (x.rank - 1)
    return g.drop_axes(g.slice(x, begin, end), [0])


def _halves(g: Builder, bias: Tensor | None, index: int) -> tuple[Tensor | None, Tensor | None]:
    if bias is None:
        return None, None
    own = _part(g, bias, index)
    half = int(own.shape[0]) // 2
    return g.slice(own, [0], [half]), g.slice(own, [half], [None])


def _start(
    g: Builder, state: Tensor | None, index: int, x: Tensor, hidden: int, layout: int
) -> Tensor:
    if state is not None:
        turned = g.transpose(state, [1, 0, 2]) if layout else state
        return _part(g, turned, index)
    batch = g.extent(x, 1)
    if isinstance(batch, int):
        return g.const(np.zeros((batch, hidden)), x.dtype)
    return g.emit("fill", x.dtype, shape=g.vector([batch, hidden]), value=x.dtype.type(0))


def _results(
    g: Builder, node: _Node, parts: list[tuple[Tensor, list[Tensor]]]
) -> tuple[Tensor, ...]:
    """Put the directions together: (S, D, B, H) and (D, B, H) each."""
    whole = g.concat([g.insert_axes(y, [1]) for y, _ in parts], 1)
    count = len(parts[0][1])
    last = [g.concat([g.insert_axes(s[k], [0]) for _, s in parts], 0) for k in range(count)]
    if node.layout:
        whole = g.transpose(whole, [2, 0, 1, 3])
        last = [g.transpose(state, [1, 0, 2]) for state in last]
    return (whole, *last)


def _run(g: Builder, node: _Node, defaults: Sequence[str], cell: Cell) -> tuple[Tensor, ...]:
    parts = [run_layer(g, layer, cell) for layer in _layers(g, node, defaults)]
    return _results(g, node, parts)


@OPS.lower("RNN", since=22, dtypes=_DTYPES)
def rnn(
    g: Builder,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """Steps."""
    node = _Node(
        *(X, W, R, B, sequence_lens, [initial_h], None, direction, activations or ()),
        *(activation_alpha or (), activation_beta or (), clip or 0.0, layout),
    )
    return _run(g, node, ("Tanh",), _rnn_cell)


@OPS.lower("GRU", since=22, dtypes=_DTYPES)
def gru(
    g: Builder,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    """Steps: Core ML's gru has one bias, where ONNX's candidate has two."""
    node = _Node(
        *(X, W, R, B, sequence_lens, [initial_h], None, direction, activations or ()),
        *(activation_alpha or (), activation_beta or (), clip or 0.0, layout),
    )
    return _run(g, node, ("Sigmoid", "Tanh"), _gru_cell(bool(linear_before_reset)))


@OPS.lower("LSTM", since=22, dtypes=_DTYPES)
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
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """Lstm for known weights and the usual activations, else steps."""
    node = _Node(
        *(X, W, R, B, sequence_lens, [initial_h, initial_c], P, direction, activations or ()),
        *(activation_alpha or (), activation_beta or (), clip or 0.0, layout),
    )
    layers = _layers(g, node, ("Sigmoid", "Tanh", "Tanh"))
    names = [a.lower() for a in activations or ()]
    usual = not names or names == ["sigmoid", "tanh", "tanh"] * len(layers)
    known = all(t is None or t.data is not None for t in (W, R, B, P))
    if usual and known and not (clip or input_forget) and layers[0].lengths is None:
        if len(layers) == 2:
            return _both(g, node, *layers)
        return _results(g, node, [_whole(g, layers[0])])
    parts = [run_layer(g, layer, _lstm_cell(bool(input_forget))) for layer in layers]
    return _results(g, node, parts)


def _whole(g: Builder, layer: Layer) -> tuple[Tensor, list[Tensor]]:
    """One direction by lstm."""
    x = layer.steps
    if layer.backwards:
        x = g.emit("reverse", x=x, axes=[0])
    y, h, c = _lstm(g, x, layer.states, "forward", _operands(g, layer))
    if layer.backwards:
        y = g.emit("reverse", x=y, axes=[0])
    return y, [h, c]


def _both(g: Builder, node: _Node, ahead: Layer, back: Layer) -> tuple[Tensor, ...]:
    """Both directions by one lstm, which has their values side by side."""
    starts = [
        _start(g, None, 0, ahead.steps, 2 * ahead.hidden, 0)
        if given is None
        else g.concat([a, b], 1)
        for given, a, b in zip(node.states, ahead.states, back.states, strict=True)
    ]
    behind = {f"{name}_back": value for name, value in _operands(g, back).items()}
    found = _lstm(g, ahead.steps, starts, "bidirectional", _operands(g, ahead) | behind)
    y, h, c = (_apart(g, value, ahead.hidden) for value in found)
    if not node.layout:
        return y, h, c
    return g.transpose(y, [2, 0, 1, 3]), g.transpose(h, [1, 0, 2]), g.transpose(c, [1, 0, 2])


def _apart(g: Builder, x: Tensor, hidden: int) -> Tensor:
    """(..., B, 2 * H) as (..., 2, B, H)."""
    place = x.rank - 2
    if sum(not isinstance(size, int) for size in x.shape) > 1:
        halves = g.split(x, [hidden, hidden], x.rank - 1)
        return g.concat([g.insert_axes(half, [place]) for half in halves], place)
    order = [*range(place), place + 1, place, place + 2]
    return g.transpose(g.reshape(x, [*g.extents(x)[:-1], 2, hidden]), order)


def _lstm(
    g: Builder, x: Tensor, states: list[Tensor], direction: str, operands: dict[str, Any]
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


def _operands(g: Builder, layer: Layer) -> dict[str, Any]:
    """Weights of a direction: lstm takes the gates in the order i, f, o, z."""
    order = (0, 2, 1, 3)
    bias = None
    if layer.bias[0] is not None and layer.bias[1] is not None:
        bias = _ordered(g, _sum(g, layer.bias[0], layer.bias[1]), order)
    return {
        "weight_ih": _ordered(g, layer.weights, order),
        "weight_hh": _ordered(g, layer.recurrence, order),
        "bias": bias,
        "peephole": None if layer.peephole is None else _ordered(g, layer.peephole, (0, 2, 1)),
    }


def _sum(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    if a.data is None or b.data is None:
        raise Refusal("weights known only at run time", "requires_constant")
    return g.const(a.data + b.data, a.dtype)


def _ordered(g: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    if x.data is None:
        raise Refusal("weights known only at run time", "requires_constant")
    parts = np.split(x.data, len(order), axis=0)
    return g.const(np.concatenate([parts[i] for i in order]), x.dtype)
