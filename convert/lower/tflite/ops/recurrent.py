"""LSTM, GRU and RNN; data is time first after a transpose where ONNX's ``layout`` is 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.recur import (
    Activation,
    Cell,
    State,
    Steps,
    activation,
    filled,
    product,
    run,
    unpacked,
)
from edgeinfer.convert.lower.tflite.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.verify.operators.activations import with_numbers
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.convert.lower.tflite.scope import Scope

_TANH = 4
"""The schema's number of the activation."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@dataclass(frozen=True, slots=True)
class _Settings:
    """The attributes that the three operators share."""

    kind: str
    alpha: Sequence[float] | None
    beta: Sequence[float] | None
    activations: Sequence[str] | None
    clip: float | None
    direction: str
    layout: int
    input_forget: int = 0
    linear_before_reset: int = 0

    @property
    def directions(self) -> int:
        """One or two."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The activations of each direction."""
        count = len(_DEFAULTS[self.kind])
        names = tuple(self.activations or _DEFAULTS[self.kind] * self.directions)
        if len(names) != count * self.directions:
            raise Refusal(f"has {len(names)} activations, needs {count * self.directions}")
        return [names[i * count : (i + 1) * count] for i in range(self.directions)]


@dataclass(frozen=True, slots=True, eq=False)
class _Operands:
    """The operands that the three operators share, time first."""

    x: Tensor
    w: Tensor
    r: Tensor
    b: Tensor | None
    lengths: Tensor | None
    states: tuple[Tensor | None, ...]
    peephole: Tensor | None = None


@OPS.lower("LSTM", since=22, dtypes=FLOATS | INTEGERS)
def lstm(
    g: Scope,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
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
    """UNIDIRECTIONAL_SEQUENCE_LSTM for an open number of steps, else step by step."""
    made = _Settings(
        "LSTM",
        activation_alpha,
        activation_beta,
        activations,
        clip,
        direction,
        layout,
        input_forget=input_forget,
    )
    return _recurrent(g, made, _Operands(x, w, r, b, sequence_lens, (initial_h, initial_c), p))


@OPS.lower("GRU", since=22, dtypes=FLOATS | INTEGERS)
def gru(
    g: Scope,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
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
    """Step by step."""
    made = _Settings(
        "GRU",
        activation_alpha,
        activation_beta,
        activations,
        clip,
        direction,
        layout,
        linear_before_reset=linear_before_reset,
    )
    return _recurrent(g, made, _Operands(x, w, r, b, sequence_lens, (initial_h,)))


@OPS.lower("RNN", since=22, dtypes=FLOATS | INTEGERS)
def rnn(
    g: Scope,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """Step by step."""
    # The schema's default has two names whatever the direction.
    names = None if activations == ("Tanh", "Tanh") else activations
    made = _Settings("RNN", activation_alpha, activation_beta, names, clip, direction, layout)
    return _recurrent(g, made, _Operands(x, w, r, b, sequence_lens, (initial_h,)))


def _recurrent(g: Scope, made: _Settings, given: _Operands) -> tuple[Tensor, ...]:
    if made.layout:
        states = tuple(s and g.transpose(s, [1, 0, 2]) for s in given.states)
        x = g.transpose(given.x, [1, 0, 2])
        given = _Operands(x, given.w, given.r, given.b, given.lengths, states, given.peephole)
    if given.x.shape[0] == 0:
        raise Refusal("a sequence without steps")
    lengths = given.lengths
    if lengths is not None and lengths.data is not None and given.x.shape[0] is not None:
        lengths = None if (lengths.data == given.x.shape[0]).all() else lengths
    functions = _functions(made)
    results: list[Tensor] = []
    states_after: list[State] = []
    for index, names in enumerate(made.names):
        reverse = made.direction == "reverse" or index == 1
        if lengths is None and _is_fused(g, made, given, names):
            y, state = _fused(g, given, index, reverse)
        else:
            cell = _cell(g, made, given, index, functions[index])
            over = Steps(_projected(g, made, given, index), lengths, reverse)
            start = tuple(_start(g, made, given, s, index) for s in given.states)
            y, state = run(g, cell, over, start)
        results.append(g.insert_axis(y, 1))
        states_after.append(state)
    y = g.concat(results, 1)
    columns = zip(*states_after, strict=True)
    after = [g.concat([g.insert_axis(s, 0) for s in states], 0) for states in columns]
    if made.layout:
        return g.transpose(y, [2, 0, 1, 3]), *(g.transpose(s, [1, 0, 2]) for s in after)
    return y, *after


def _functions(made: _Settings) -> list[tuple[Activation, ...]]:
    """Make the activations of each direction."""
    names = [name for row in made.names for name in row]
    functions = (activation(*each) for each in with_numbers(names, made.alpha, made.beta))
    return [tuple(islice(functions, len(row))) for row in made.names]


def _of_direction(g: Builder, made: _Settings, x: Tensor, index: int) -> Tensor:
    """Take one direction of weights or states, along axis 0, whose size only they may know.

    Not by a slice and a reshape: LiteRT 2.3 with XNNPACK gave a WHILE, of an open number of steps,
    a first state that the shape of another tensor had been written over, in 0.3 to 1 % of its
    interpreters. XNNPACK does not take UNPACK.
    """
    if x.data is not None:
        return g.const(x.data[index])
    if made.directions == 1:
        return g.drop_axis(x, 0)
    return unpacked(g, x, made.directions)[index]


def _halves(g: Builder, b: Tensor) -> tuple[Tensor, Tensor]:
    """Part a bias: of the input's weights, of the recurrent ones."""
    if b.data is not None:
        first, second = np.split(b.data, 2)
        return g.const(first), g.const(second)
    size = b.shape[0]
    if size is None:
        raise Refusal("the bias has no known size", "dynamic_shape")
    first_part, second_part = g.split(b, [size // 2] * 2, 0)
    return first_part, second_part


def _sum(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    if a.data is not None and b.data is not None:
        return g.const(a.data + b.data)
    return g.binary("ADD", a, b)


def _keeps_bias(made: _Settings) -> bool:
    """Whether a GRU's last recurrent bias stays with the recurrent product."""
    return made.kind == "GRU" and bool(made.linear_before_reset)


def _projected(g: Builder, made: _Settings, given: _Operands, index: int) -> Tensor:
    """The input's products of all steps at once, with every bias that can be added to them."""
    bias = None
    if given.b is not None:
        of_input, recurrent = _halves(g, _of_direction(g, made, given.b, index))
        if _keeps_bias(made):
            gates, last = _last_third(g, recurrent)
            recurrent = _join(g, gates, g.const(np.zeros(last.shape[0] or 0), np.float32))
        bias = _sum(g, of_input, recurrent)
    return product(g, given.x, _of_direction(g, made, given.w, index), bias)


def _last_third(g: Builder, b: Tensor) -> tuple[Tensor, Tensor]:
    size = (b.shape[0] or 0) // 3
    if b.data is not None:
        return g.const(b.data[: 2 * size]), g.const(b.data[2 * size :])
    gates, last = g.split(b, [2 * size, size], 0)
    return gates, last


def _join(g: Builder, a: Tensor, b: Tensor) -> Tensor:
    if a.data is not None and b.data is not None:
        return g.const(np.concatenate([a.data, b.data]))
    return g.concat([a, b], 0)


def _cell(
    g: Builder, made: _Settings, given: _Operands, index: int, functions: tuple[Activation, ...]
) -> Cell:
    rb = None
    if given.b is not None and _keeps_bias(made):
        rb = _last_third(g, _halves(g, _of_direction(g, made, given.b, index))[1])[1]
    r = _of_direction(g, made, given.r, index)
    peephole: tuple[Tensor, ...] = ()
    if given.peephole is not None:
        p = _of_direction(g, made, given.peephole, index)
        size = r.shape[-1] or 0
        parts = g.split(p, [size] * 3, 0) if p.data is None else np.split(p.data, 3)
        peephole = tuple(part if isinstance(part, Tensor) else g.const(part) for part in parts)
    return Cell(
        made.kind,
        r,
        functions,
        rb=rb,
        peephole=peephole,
        clip=made.clip or 0.0,
        input_forget=bool(made.input_forget),
        linear_before_reset=bool(made.linear_before_reset),
    )


def _start(
    g: Builder, made: _Settings, given: _Operands, state: Tensor | None, index: int
) -> Tensor:
    if state is not None:
        return _of_direction(g, made, state, index)
    batch, hidden = g.extent(given.x, 1), given.r.shape[-1] or 0
    return filled(g, [batch, hidden], (given.x.shape[1], hidden))


def _is_fused(g: Scope, made: _Settings, given: _Operands, names: tuple[str, ...]) -> bool:
    """Whether the fused operator computes the same, and no slower.

    It starts from zeros, keeps its state to itself and holds it in a tensor of fixed size. XNNPACK
    does not take it: where the number of steps is known, writing them out takes 0.3 to 1 times as
    long (x86-64; 16 to 512 units, 50 to 1000 steps, batch 1 and 8).
    """
    lowered = tuple(n.lower() for n in names)
    weights = (given.w, given.r, *(t for t in (given.b, given.peephole) if t is not None))
    return (
        made.kind == "LSTM"
        and given.x.shape[0] is None
        and lowered == ("sigmoid", "tanh", "tanh")
        and not (made.clip or made.input_forget)
        and all(t.data is not None for t in weights)
        and all(_is_zero(s) for s in given.states)
        and given.x.shape[1] is not None
        and not _is_read(g, 2)
    )


def _is_zero(state: Tensor | None) -> bool:
    return state is None or (state.data is not None and not state.data.any())


def _is_read(g: Scope, index: int) -> bool:
    node = g.driver.node
    if node is None or index >= len(node.outputs):
        return False
    value = node.outputs[index]
    return bool(value.uses()) or value.is_graph_output()


def _fused(g: Builder, given: _Operands, index: int, reverse: bool) -> tuple[Tensor, State]:
    w, r = given.w.value[index], given.r.value[index]
    hidden = r.shape[-1]
    b = np.zeros(8 * hidden, np.float32) if given.b is None else given.b.value[index]
    x = _reversed(g, given.x) if reverse else given.x
    steps, batch = given.x.shape[:2]
    state = [g.tensor((batch, hidden), np.float32) for _ in range(2)]
    for tensor in state:
        tensor.is_variable = True
    operands: list[Tensor | None] = [x]
    operands += [g.const(part) for part in _gates(w)]
    operands += [g.const(part) for part in _gates(r)]
    operands += _peephole(g, given, index)
    operands += [g.const(part) for part in _gates(b[: 4 * hidden] + b[4 * hidden :])]
    operands += [None, None, *state, None, None, None, None]
    y = g.emit(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        operands,
        (steps, batch, hidden),
        fused_activation_function=_TANH,
        time_major=True,
        cell_clip=0.0,
        proj_clip=0.0,
        asymmetric_quantize_inputs=False,
        diagonal_recurrent_tensors=False,
    )
    last = g.drop_axis(g.slice(y, [-1, 0, 0], [None, None, None], [1, 1, 1]), 0)
    # Nobody reads the cell's state; any tensor of its shape stands for it.
    return _reversed(g, y) if reverse else y, (last, last)


def _gates(weights: Array) -> list[Array]:
    """From ONNX's order i, o, f, c to TFLite's i, f, c, o."""
    i, o, f, c = np.split(weights, 4)
    return [i, f, c, o]


def _peephole(g: Builder, given: _Operands, index: int) -> list[Tensor | None]:
    """From ONNX's order i, o, f to TFLite's i, f, o."""
    if given.peephole is None:
        return [None, None, None]
    i, o, f = np.split(given.peephole.value[index], 3)
    return [g.const(part) for part in (i, f, o)]


def _reversed(g: Builder, x: Tensor) -> Tensor:
    return g.emit("REVERSE_V2", [x, g.const([0], np.int32)], x.shape)
