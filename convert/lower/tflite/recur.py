"""The cells of recurrent operators, and the three ways to run one over a sequence.

TFLite has one fused operator, for plain LSTMs. Everything else is written step by step: all steps
in a row where they are few and their number is known, a ``WHILE`` loop otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Shape, Tensor

UNROLL = 64
"""Steps up to which a sequence is written out: no loop's overhead, and XNNPACK takes it."""

UNROLL_BYTES = 4 << 20
"""Bytes of weights up to which it is: XNNPACK packs the weights of each step again."""

CHUNK = 8
"""Steps of one turn of a loop, which copies its results at each turn."""

CHUNK_BYTES = 2 << 20
"""Bytes of weights in one turn, likewise."""

Activation = Callable[[Builder, Tensor], Tensor]
State = tuple[Tensor, ...]
"""The hidden state, and the cell's after it."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One direction's weights.

    Attributes:
        kind: ``LSTM``, ``GRU`` or ``RNN``.
        r: (gates * hidden, hidden).
        rb: GRU only, the recurrent bias of the new state if it is reset with the product.
        peephole: LSTM only; weights of the input, output and forget gates, each (hidden,).
        activations: one, two or three.
        clip: bound of what goes into an activation; 0 for none.
        input_forget: LSTM only, the forget gate is one minus the input gate.
        linear_before_reset: GRU only, multiply by the weights first.
    """

    kind: str
    r: Tensor
    activations: tuple[Activation, ...]
    rb: Tensor | None = None
    peephole: tuple[Tensor, ...] = ()
    clip: float = 0.0
    input_forget: bool = False
    linear_before_reset: bool = False

    @property
    def hidden(self) -> int:
        """Number of units."""
        size = self.r.shape[-1]
        if size is None:
            raise Refusal("the number of units is not known", "dynamic_shape")
        return size

    @property
    def tensors(self) -> list[Tensor]:
        """All weights, in the order of ``with_tensors``."""
        return [self.r, *([] if self.rb is None else [self.rb]), *self.peephole]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Cell:
        """Return the same cell with weights of another graph."""
        r, *rest = tensors
        rb = None if self.rb is None else rest.pop(0)
        return replace(self, r=r, rb=rb, peephole=tuple(rest))

    def step(self, g: Builder, x: Tensor, state: State) -> State:
        """Return the state after one step.

        Args:
            g: the graph the step is written in.
            x: (batch, gates * hidden), the input's product with its weights and all biases.
            state: before.
        """
        if self.kind == "LSTM":
            return self._lstm(g, x, *state)
        if self.kind == "GRU":
            return self._gru(g, x, *state)
        (f,) = self.activations
        return (f(g, self._clipped(g, g.binary("ADD", x, product(g, state[0], self.r)))),)

    def _lstm(self, g: Builder, x: Tensor, h: Tensor, c: Tensor) -> State:
        f, cell, out = self.activations
        sums = g.binary("ADD", x, product(g, h, self.r))
        i, o, forget, new = g.split(sums, [self.hidden] * 4, 1)
        if self.peephole:
            i = g.binary("ADD", i, g.binary("MUL", c, self.peephole[0]))
        i = f(g, self._clipped(g, i))
        if self.input_forget:
            forget = g.binary("SUB", 1.0, i)
        else:
            if self.peephole:
                forget = g.binary("ADD", forget, g.binary("MUL", c, self.peephole[2]))
            forget = f(g, self._clipped(g, forget))
        new = cell(g, self._clipped(g, new))
        c = g.binary("ADD", g.binary("MUL", forget, c), g.binary("MUL", i, new))
        if self.peephole:
            o = g.binary("ADD", o, g.binary("MUL", c, self.peephole[1]))
        o = f(g, self._clipped(g, o))
        return g.binary("MUL", o, out(g, c)), c

    def _gru(self, g: Builder, x: Tensor, h: Tensor) -> State:
        f, new = self.activations
        n = self.hidden
        xz, xr, xh = g.split(x, [n] * 3, 1)
        if self.linear_before_reset:
            hz, hr, hh = g.split(product(g, h, self.r), [n] * 3, 1)
            if self.rb is not None:
                hh = g.binary("ADD", hh, self.rb)
        else:
            gates, last = _cut(g, self.r, n)
            hz, hr = g.split(product(g, h, gates), [n] * 2, 1)
        z = f(g, self._clipped(g, g.binary("ADD", xz, hz)))
        r = f(g, self._clipped(g, g.binary("ADD", xr, hr)))
        if self.linear_before_reset:
            total = g.binary("ADD", xh, g.binary("MUL", r, hh))
        else:
            total = g.binary("ADD", xh, product(g, g.binary("MUL", r, h), last))
        candidate = new(g, self._clipped(g, total))
        # Rather than (1 - z) * candidate + z * h: one operator less.
        change = g.binary("MUL", z, g.binary("SUB", h, candidate))
        return (g.binary("ADD", candidate, change),)

    def _clipped(self, g: Builder, x: Tensor) -> Tensor:
        if not self.clip:
            return x
        return g.binary("MINIMUM", g.binary("MAXIMUM", x, -self.clip), self.clip)


def _cut(g: Builder, r: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """Part a GRU's recurrent weights: both gates, and the new state."""
    if r.data is not None:
        # Integers stay integers: each part with the scales of its own rows.
        for known in (g.scales, g.dynamic, g.apart):
            known += [p for s in known if s.size == 3 * hidden for p in np.split(s, [2 * hidden])]
        return g.const(r.data[: 2 * hidden]), g.const(r.data[2 * hidden :])
    gates, last = g.split(r, [2 * hidden, hidden], 0)
    return gates, last


def product(g: Builder, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply by transposed weights: the last axis of ``x`` with the last of ``w``."""
    shape = (*x.shape[:-1], w.shape[0])
    if w.data is None:
        made = g.emit("BATCH_MATMUL", [x, w], shape, adj_x=False, adj_y=True)
        return made if bias is None else g.binary("ADD", made, bias)
    return g.emit(
        "FULLY_CONNECTED",
        [x, w, bias],
        shape,
        fused_activation_function=0,
        weights_format=0,
        keep_num_dims=x.rank > 2,
        asymmetric_quantize_inputs=False,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What a cell runs over.

    Attributes:
        x: (steps, batch, gates * hidden), products of the input.
        lengths: int32 (batch,); None where all sequences are whole.
        reverse: from the last step to the first.
        offset: number of the first step in the whole sequence.
        begin: the same where only the run knows; added to ``offset``.
    """

    x: Tensor
    lengths: Tensor | None
    reverse: bool
    offset: int = 0
    begin: Tensor | None = None


def run(g: Builder, cell: Cell, over: Steps, start: State) -> tuple[Tensor, State]:
    """Run a cell over a sequence.

    Returns:
        (steps, batch, hidden), the hidden states in the order of the input's steps; and the state
        after the last one that was run.
    """
    steps = over.x.shape[0]
    size = math.prod(s or 0 for s in cell.r.shape) * cell.r.dtype.itemsize
    if steps is None:
        return _looped(g, cell, over, start, 1)
    if steps <= UNROLL and steps * size <= UNROLL_BYTES:
        return _unrolled(g, cell, over, start, steps)
    each = max(1, min(CHUNK, CHUNK_BYTES // size))
    rest = steps % each
    if not rest:
        return _looped(g, cell, over, start, each)
    lengths = [rest, steps - rest] if over.reverse else [steps - rest, rest]
    first, last = g.split(over.x, lengths, 0)
    parts = [replace(over, x=first), replace(over, x=last, offset=lengths[0])]
    if over.reverse:
        after, state = _looped(g, cell, parts[1], start, each)
        before, state = _unrolled(g, cell, parts[0], state, rest)
    else:
        before, state = _looped(g, cell, parts[0], start, each)
        after, state = _unrolled(g, cell, parts[1], state, rest)
    return g.concat([before, after], 0), state


def _unrolled(
    g: Builder, cell: Cell, over: Steps, state: State, steps: int
) -> tuple[Tensor, State]:
    """Write out every step."""
    inputs = unpacked(g, over.x, steps)
    results: dict[int, Tensor] = {}
    for index in reversed(range(steps)) if over.reverse else range(steps):
        new = cell.step(g, inputs[index], state)
        running = _running(g, over, index)
        results[index], state = _masked(g, running, new, state)
    made = [results[index] for index in range(steps)]
    if steps == 1:
        return g.insert_axis(made[0], 0), state
    shape = (steps, *made[0].shape)
    return g.emit("PACK", made, shape, values_count=steps, axis=0), state


def unpacked(g: Builder, x: Tensor, steps: int) -> list[Tensor]:
    """Take a tensor apart along its first axis.

    Of a single part nothing is copied, and XNNPACK has no UNPACK.
    """
    if steps == 1:
        return [g.drop_axis(x, 0)]
    parts = [g.tensor(x.shape[1:], x.dtype) for _ in range(steps)]
    g.add("UNPACK", [x], parts, num=steps, axis=0)
    return parts


def _running(g: Builder, over: Steps, index: int) -> Tensor | None:
    """(batch, 1), which sequences have this step; None where all have all."""
    if over.lengths is None:
        return None
    step: Tensor | int = index + over.offset
    if over.begin is not None:
        step = g.binary("ADD", over.begin, step) if step else over.begin
    return g.insert_axis(g.binary("GREATER", over.lengths, step), 1)


def _masked(g: Builder, running: Tensor | None, new: State, old: State) -> tuple[Tensor, State]:
    """Return the step's result and the state, where shorter sequences are over."""
    if running is None:
        return new[0], new
    kept = tuple(_select(g, running, a, b) for a, b in zip(new, old, strict=True))
    return _select(g, running, new[0], g.const(0.0, np.float32)), kept


def _select(g: Builder, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return g.emit("SELECT_V2", [condition, a, b], a.shape, a.dtype)


def _looped(g: Builder, cell: Cell, over: Steps, start: State, each: int) -> tuple[Tensor, State]:
    """Count up by ``each`` steps; results are written into a tensor that the loop carries."""
    steps, batch = g.extent(over.x, 0), g.extent(over.x, 1)
    shape = (over.x.shape[0], over.x.shape[1], cell.hidden)
    results = filled(g, [steps, batch, cell.hidden], shape)
    total = g.const(steps, np.int32) if isinstance(steps, int) else steps
    moving = [w for w in cell.tensors if w.data is None]
    fixed = [total, over.x, *([] if over.lengths is None else [over.lengths]), *moving]
    carried = [g.const(0, np.int32), results, *start, *fixed]
    name = g.fresh_name(cell.kind.lower())
    test, body = Builder(f"{name}_test", f"{name}_test/"), Builder(name, f"{name}/")
    for inner in (test, body):
        inner.inputs = [inner.tensor(t.shape, t.dtype) for t in carried]
    test.outputs = [test.binary("LESS", test.inputs[0], test.inputs[2 + len(start)])]
    body.outputs = _body(body, cell, over, len(start), each)
    outputs = [g.tensor(t.shape, t.dtype) for t in carried]
    op = g.add("WHILE", carried, outputs)
    op.bodies = {"cond_subgraph_index": test, "body_subgraph_index": body}
    return outputs[1], tuple(outputs[2 : 2 + len(start)])


def filled(g: Builder, sizes: Sequence[Extent], shape: Shape) -> Tensor:
    """Zeros of a shape that may only be known when the model runs."""
    known = [s for s in shape if s is not None]
    if len(known) == len(shape):
        return g.const(np.zeros(known, np.float32))
    return g.emit("FILL", [g.shape_vector(sizes), g.const(0.0, np.float32)], shape, np.float32)


def _body(body: Builder, cell: Cell, over: Steps, states: int, each: int) -> list[Tensor]:
    count, results, *rest = body.inputs
    state, fixed = tuple(rest[:states]), rest[states:]
    total, x, *others = fixed
    lengths = others.pop(0) if over.lengths is not None else None
    weights = [others.pop(0) if w.data is None else w for w in cell.tensors]
    begin = count
    if over.reverse:
        begin = body.binary("SUB", body.binary("SUB", total, each), count)
    zero = body.const(0, np.int32)
    where = body.emit("PACK", [begin, zero, zero], (3,), np.int32, values_count=3, axis=0)
    extent = body.const([each, -1, -1], np.int32)
    chunk = body.emit("SLICE", [x, where, extent], (each, *x.shape[1:]))
    part = Steps(chunk, lengths, over.reverse, over.offset, begin)
    result, new = _unrolled(body, cell.with_tensors(weights), part, state, each)
    written = body.emit("DYNAMIC_UPDATE_SLICE", [results, result, where], results.shape)
    return [body.binary("ADD", count, each), written, *new, *fixed]


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """Return an activation by ONNX's name.

    Raises:
        Refusal: ONNX has no such activation.
    """
    made = _ACTIVATIONS.get(name.lower())
    if made is None:
        raise Refusal(f"activation {name!r} is not known")
    return made(alpha, beta)


def _plain(code: str) -> Callable[[float | None, float | None], Activation]:
    return lambda _, __: lambda g, x: g.unary(code, x)


def _affine(alpha: float | None, beta: float | None) -> Activation:
    a, b = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
    return lambda g, x: g.binary("ADD", g.binary("MUL", x, a), b)


def _leaky(alpha: float | None, _: float | None) -> Activation:
    a = 0.01 if alpha is None else alpha
    return lambda g, x: g.unary("LEAKY_RELU", x, alpha=a)


def _thresholded(alpha: float | None, _: float | None) -> Activation:
    a = 1.0 if alpha is None else alpha
    return lambda g, x: g.emit(
        "SELECT_V2", [g.binary("GREATER", x, a), x, g.const(0.0, x.dtype)], x.shape, x.dtype
    )


def _scaled_tanh(alpha: float | None, beta: float | None) -> Activation:
    a, b = 1.0 if alpha is None else alpha, 1.0 if beta is None else beta
    return lambda g, x: g.binary("MUL", g.unary("TANH", g.binary("MUL", x, b)), a)


def _hard_sigmoid(alpha: float | None, beta: float | None) -> Activation:
    line = _affine(0.2 if alpha is None else alpha, 0.5 if beta is None else beta)
    return lambda g, x: g.binary("MINIMUM", g.binary("MAXIMUM", line(g, x), 0.0), 1.0)


def _elu(alpha: float | None, _: float | None) -> Activation:
    if alpha is None or math.isclose(alpha, 1.0):
        return lambda g, x: g.unary("ELU", x)

    def elu(g: Builder, x: Tensor) -> Tensor:
        below = g.binary("MUL", g.unary("ELU", g.binary("MINIMUM", x, 0.0)), alpha)
        return g.binary("ADD", g.unary("RELU", x), below)

    return elu


def _softsign(_: float | None, __: float | None) -> Activation:
    return lambda g, x: g.binary("DIV", x, g.binary("ADD", g.unary("ABS", x), 1.0))


def _softplus(_: float | None, __: float | None) -> Activation:
    def softplus(g: Builder, x: Tensor) -> Tensor:
        small = g.unary("EXP", g.unary("NEG", g.unary("ABS", x)))
        return g.binary("ADD", g.unary("RELU", x), g.unary("LOG", g.binary("ADD", small, 1.0)))

    return softplus


_ACTIVATIONS: dict[str, Callable[[float | None, float | None], Activation]] = {
    "relu": _plain("RELU"),
    "tanh": _plain("TANH"),
    "sigmoid": _plain("LOGISTIC"),
    "affine": _affine,
    "leakyrelu": _leaky,
    "thresholdedrelu": _thresholded,
    "scaledtanh": _scaled_tanh,
    "hardsigmoid": _hard_sigmoid,
    "elu": _elu,
    "softsign": _softsign,
    "softplus": _softplus,
}
