"""LSTM, GRU and RNN: what they compute in a step; how steps are repeated is up to the format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core.portable import Elements, Moved, Value
from edgeinfer.convert.lower.core.table import moved
from edgeinfer.convert.lower.ops import activation
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.verify.operators.activations import with_numbers
from edgeinfer.records import dataclass

Function = Callable[[Elements, Value], Value]
State = tuple[Value, ...]
"""The hidden state, and the cell's after it."""

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _affine(e: Elements, x: Value, *, alpha: float, beta: float) -> Value:
    return e.add(e.mul(x, alpha), beta)


def _scaled_tanh(e: Elements, x: Value, *, alpha: float, beta: float) -> Value:
    return e.mul(e.tanh(e.mul(x, beta)), alpha)


_FUNCTIONS: dict[str, tuple[Callable[..., Value], dict[str, float]]] = {
    **{name: (lambda e, x, name=name: getattr(e, name)(x), {}) for name in ("relu", "tanh")},
    "sigmoid": (lambda e, x: e.sigmoid(x), {}),
    "softsign": (activation.softsign, {}),
    "softplus": (activation.softplus, {}),
    "leakyrelu": (activation.leaky_relu, {"alpha": 0.01}),
    "thresholdedrelu": (activation.thresholded_relu, {"alpha": 1.0}),
    "elu": (activation.elu, {"alpha": 1.0}),
    "hardsigmoid": (activation.hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "affine": (_affine, {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": (_scaled_tanh, {"alpha": 1.0, "beta": 1.0}),
}
"""Activations by ONNX's names, with the defaults of their numbers."""


def _function(name: str, alpha: float | None, beta: float | None) -> Function:
    if name.lower() not in _FUNCTIONS:
        raise Refusal(f"activation {name!r} is not known")
    body, defaults = _FUNCTIONS[name.lower()]
    given = {"alpha": alpha, "beta": beta}
    numbers = {k: v if given[k] is None else given[k] for k, v in defaults.items()}
    return partial(body, **numbers)


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One direction's step.

    Attributes:
        kind: ``LSTM``, ``GRU`` or ``RNN``.
        r: (gates * hidden, hidden).
        functions: Activations: one, two or three.
        rb: GRU only: the recurrent bias of the new state if it is reset with the product.
        peephole: LSTM only: weights of the input, output and forget gates, each (hidden,).
        clip: Bound of what goes into an activation; 0 for none.
        input_forget: LSTM only: the forget gate is one minus the input gate.
        linear_before_reset: GRU only: multiply by the weights first.
    """

    kind: str
    r: Value
    functions: tuple[Function, ...]
    rb: Value | None = None
    peephole: tuple[Value, ...] = ()
    clip: float = 0.0
    input_forget: bool = False
    linear_before_reset: bool = False

    @property
    def hidden(self) -> int:
        """Number of units."""
        return int(self.r.shape[-1])

    @property
    def tensors(self) -> list[Value]:
        """All weights, in the order of ``with_tensors``."""
        return [self.r, *([] if self.rb is None else [self.rb]), *self.peephole]

    def with_tensors(self, tensors: Sequence[Value]) -> Cell:
        """Return the same cell with weights of another graph."""
        r, *rest = tensors
        rb = None if self.rb is None else rest.pop(0)
        return replace(self, r=r, rb=rb, peephole=tuple(rest))

    def step(self, g: Moved, x: Value, state: Sequence[Value]) -> State:
        """Return the state after one step.

        Args:
            g: where the step is written.
            x: (batch, gates * hidden): the input's product with its weights, and biases.
            state: before.
        """
        if self.kind == "LSTM":
            return self._lstm(g, x, *state)
        if self.kind == "GRU":
            return self._gru(g, x, *state)
        return (self._act(g, 0, g.add(x, g.linear(state[0], self.r))),)

    def _act(self, g: Moved, which: int, x: Value) -> Value:
        clip, function = self.clip, self.functions[which]
        if not clip:
            return g.map(function, x)
        return g.map(lambda e, v: function(e, e.minimum(e.maximum(v, -clip), clip)), x)

    def _lstm(self, g: Moved, x: Value, h: Value, c: Value) -> State:
        gates = g.add(x, g.linear(h, self.r))
        i, o, forget, new = g.split(gates, [self.hidden] * 4, 1)
        if self.peephole:
            i = g.add(i, g.mul(c, self.peephole[0]))
            forget = g.add(forget, g.mul(c, self.peephole[2]))
        i = self._act(g, 0, i)
        forget = g.sub(1.0, i) if self.input_forget else self._act(g, 0, forget)
        c = g.add(g.mul(forget, c), g.mul(i, self._act(g, 1, new)))
        if self.peephole:
            o = g.add(o, g.mul(c, self.peephole[1]))
        # The clip is of what gates see, not of the cell.
        return g.mul(self._act(g, 0, o), g.map(self.functions[2], c)), c

    def _gru(self, g: Moved, x: Value, h: Value) -> State:
        n = self.hidden
        xz, xr, xh = g.split(x, [n] * 3, 1)
        if self.linear_before_reset:
            hz, hr, hh = g.split(g.linear(h, self.r), [n] * 3, 1)
            hh = hh if self.rb is None else g.add(hh, self.rb)
        else:
            gates, last = g.split(self.r, [2 * n, n], 0)
            hz, hr = g.split(g.linear(h, gates), [n] * 2, 1)
        z, r = self._act(g, 0, g.add(xz, hz)), self._act(g, 0, g.add(xr, hr))
        reset = g.mul(r, hh) if self.linear_before_reset else g.linear(g.mul(r, h), last)
        candidate = self._act(g, 1, g.add(xh, reset))
        # Rather than (1 - z) * candidate + z * h: one operator less.
        return (g.add(candidate, g.mul(z, g.sub(h, candidate))),)


@dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """One direction of a layer.

    Attributes:
        cell: Its step.
        x: (steps, batch, inputs).
        w: (gates * hidden, inputs).
        bias: (gates * hidden,): what can be added before the steps; None for zeros.
        states: (batch, hidden) each, before the first step.
        lengths: int32 (batch,); None where all sequences are whole.
        backwards: From the last step to the first.
        plain: Whether activations are the usual ones, with no clip and separate gates.
    """

    cell: Cell
    x: Value
    w: Value
    bias: Value | None
    states: tuple[Value, ...]
    lengths: Value | None
    backwards: bool
    plain: bool

    def gates(self, g: Moved) -> Value:
        """The input's products of all steps at once: (steps, batch, gates * hidden)."""
        return g.linear(self.x, self.w, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """The operands and attributes that the operators share; time comes first."""

    kind: str
    x: Value
    w: Value
    r: Value
    b: Value | None
    lengths: Value | None
    states: tuple[Value | None, ...]
    names: Sequence[str] | None
    alpha: Sequence[float] | None
    beta: Sequence[float] | None
    clip: float | None
    direction: str
    peephole: Value | None = None
    input_forget: bool = False
    linear_before_reset: bool = False

    def directions(self, g: Moved) -> list[Direction]:
        """Take the directions apart."""
        count, each = 2 if self.direction == "bidirectional" else 1, len(_DEFAULTS[self.kind])
        names = list(self.names or _DEFAULTS[self.kind] * count)
        if len(names) > each * count and set(names) == set(_DEFAULTS[self.kind]):
            # The schema's default of RNN names both directions.
            names = names[: each * count]
        if len(names) != each * count:
            raise Refusal(f"has {len(names)} activations, needs {each * count}")
        functions = iter([_function(*one) for one in with_numbers(names, self.alpha, self.beta)])
        return [
            self._direction(
                g, index, names[index * each : (index + 1) * each], tuple(islice(functions, each))
            )
            for index in range(count)
        ]

    def _direction(
        self, g: Moved, index: int, names: list[str], functions: tuple[Function, ...]
    ) -> Direction:
        row = partial(g.row, index=index)
        hidden = self.r.shape[-1]
        bias, rb = (None, None) if self.b is None else self._biases(g, row(self.b), hidden)
        peephole = () if self.peephole is None else g.split(row(self.peephole), [hidden] * 3, 0)
        cell = Cell(
            self.kind,
            row(self.r),
            functions,
            rb,
            tuple(peephole),
            float(self.clip or 0),
            self.input_forget,
            self.linear_before_reset,
        )
        sizes = [g.extent(self.x, 1), hidden]
        states = tuple(g.zeros(sizes, self.x.dtype) if s is None else row(s) for s in self.states)
        usual = [n.lower() for n in names] == [n.lower() for n in _DEFAULTS[self.kind]]
        return Direction(
            cell,
            self.x,
            row(self.w),
            bias,
            states,
            self.lengths,
            self.direction == "reverse" or index == 1,
            usual and not (self.clip or self.input_forget),
        )

    def _biases(self, g: Moved, b: Value, hidden: int) -> tuple[Value, Value | None]:
        """The biases that are added before the steps, and a GRU's last where that is not."""
        size, last = _GATES[self.kind] * hidden, None
        of_input, recurrent = g.split(b, [size, size], 0)
        if self.kind == "GRU" and self.linear_before_reset:
            first, last = g.split(recurrent, [2 * hidden, hidden], 0)
            zeros = g.const(np.zeros(hidden), first.dtype)
            recurrent = g.joined([first, zeros], 0)
        return g.folded(lambda e, one, other: e.add(one, other), of_input, recurrent), last


def _recurrent(g: Moved, layout: int, layer: _Layer) -> tuple[Value, ...]:
    if not isinstance(layer.r.shape[-1], int):
        raise Refusal("the number of units is not known", "dynamic_shape")
    if layout:
        states = tuple(s and g.transpose(s, [1, 0, 2]) for s in layer.states)
        layer = replace(layer, x=g.transpose(layer.x, [1, 0, 2]), states=states)
    steps, lengths = layer.x.shape[0], layer.lengths
    if isinstance(steps, int) and steps == 0:
        raise Refusal("a sequence without steps")
    if lengths is not None:
        is_whole = lengths.data is not None and isinstance(steps, int)
        is_whole = is_whole and bool((lengths.data == steps).all())
        layer = replace(layer, lengths=None if is_whole else g.cast(lengths, np.int32))
    directions = layer.directions(g)
    found = g.fused(directions)
    if found is None:
        runs = [g.run(direction) for direction in directions]
        columns = zip(*(states for _, states in runs), strict=True)
        found = (
            g.concat([g.expand_dims(y, 1) for y, _ in runs], 1),
            *(g.concat([g.expand_dims(s, 0) for s in states], 0) for states in columns),
        )
    if not layout:
        return found
    y, *after = found
    return g.transpose(y, [2, 0, 1, 3]), *(g.transpose(s, [1, 0, 2]) for s in after)


@moved("LSTM")
def lstm(
    g: Moved,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    initial_c: Value | None = None,
    p: Value | None = None,
    *,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    activations: Sequence[str] | None,
    clip: float | None,
    direction: str,
    input_forget: int,
    layout: int,
) -> tuple[Value, ...]:
    """Long short-term memory."""
    states = initial_h, initial_c
    numbers: tuple[Any, ...] = activations, activation_alpha, activation_beta, clip, direction
    layer = _Layer("LSTM", x, w, r, b, sequence_lens, states, *numbers)
    return _recurrent(g, layout, replace(layer, peephole=p, input_forget=bool(input_forget)))


@moved("GRU")
def gru(
    g: Moved,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    activations: Sequence[str] | None,
    clip: float | None,
    direction: str,
    layout: int,
    linear_before_reset: int,
) -> tuple[Value, ...]:
    """Gated recurrent unit."""
    numbers: tuple[Any, ...] = activations, activation_alpha, activation_beta, clip, direction
    layer = _Layer("GRU", x, w, r, b, sequence_lens, (initial_h,), *numbers)
    linear = bool(linear_before_reset)
    return _recurrent(g, layout, replace(layer, linear_before_reset=linear))


@moved("RNN")
def rnn(
    g: Moved,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    sequence_lens: Value | None = None,
    initial_h: Value | None = None,
    *,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    activations: Sequence[str],
    clip: float | None,
    direction: str,
    layout: int,
) -> tuple[Value, ...]:
    """Elman network."""
    numbers: tuple[Any, ...] = activations, activation_alpha, activation_beta, clip, direction
    return _recurrent(g, layout, _Layer("RNN", x, w, r, b, sequence_lens, (initial_h,), *numbers))
