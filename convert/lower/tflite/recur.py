"""The ways to run a recurrent step over a sequence.

TFLite has one fused operator, for plain LSTMs. Everything else is written step by step: all steps
in a row where they are few and their number is known, a ``WHILE`` loop otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgeinfer.convert.lower.core.portable import Moved
from edgeinfer.convert.lower.ops.recurrent import Cell, Direction
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Shape, Tensor
from edgeinfer.records import dataclass
from edgeinfer.types import Array

UNROLL = 64
"""Steps up to which a sequence is written out: no loop's overhead, and XNNPACK takes it."""

UNROLL_BYTES = 4 << 20
"""Bytes of weights up to which it is: XNNPACK packs the weights of each step again."""

CHUNK = 8
"""Steps of one turn of a loop, which copies its results at each turn."""

CHUNK_BYTES = 2 << 20
"""Bytes of weights in one turn, likewise."""

_TANH = 4
"""The schema's number of the activation."""

State = tuple[Tensor, ...]
Portable = Callable[[Builder], Moved]
"""Makes what a step is written with, of a graph or of a loop's body."""


def run(p: Portable, g: Builder, direction: Direction, *, reads_cell: bool) -> tuple[Tensor, State]:
    """Run a direction of a layer.

    Args:
        p: makes what a step is written with.
        g: graph.
        direction: Direction of a recurrent layer.
        reads_cell: whether the last state of an LSTM's cell is read.
    """
    if _is_fused(direction, reads_cell):
        return _fused(g, direction)
    over = RecurrentSteps(direction.gates(p(g)), direction.lengths, direction.backwards)
    return repeated(p, g, direction.cell, over, direction.states)


def _is_fused(direction: Direction, reads_cell: bool) -> bool:
    """Whether the fused operator computes the same, and no slower.

    It starts from zeros, keeps its state to itself and holds it in a tensor of fixed size. XNNPACK
    does not take it: where the number of steps is known, writing them out takes 0.3 to 1 times as
    long (x86-64; 16 to 512 units, 50 to 1000 steps, batch 1 and 8).
    """
    cell = direction.cell
    weights = (direction.w, *cell.tensors, *([] if direction.bias is None else [direction.bias]))
    return (
        cell.kind == "LSTM"
        and direction.plain
        and direction.lengths is None
        and direction.x.shape[0] is None
        and direction.x.shape[1] is not None
        and all(t.data is not None for t in weights)
        and all(s.data is not None and not s.data.any() for s in direction.states)
        and not reads_cell
    )


def _fused(g: Builder, direction: Direction) -> tuple[Tensor, State]:
    cell, x = direction.cell, direction.x
    steps, batch = x.shape[:2]
    x = _reversed(g, x) if direction.backwards else x
    state = [g.tensor((batch, cell.hidden), np.float32) for _ in range(2)]
    for tensor in state:
        tensor.is_variable = True
    bias = direction.bias
    known = np.zeros(4 * cell.hidden, np.float32) if bias is None else bias.value
    operands: list[Tensor | None] = [x]
    operands += [g.const(part) for part in _gates(direction.w.value)]
    operands += [g.const(part) for part in _gates(cell.r.value)]
    # From ONNX's order i, o, f to TFLite's i, f, o.
    operands += [cell.peephole[i] for i in (0, 2, 1)] if cell.peephole else [None, None, None]
    operands += [g.const(part) for part in _gates(known)]
    operands += [None, None, *state, None, None, None, None]
    y = g.emit(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        operands,
        (steps, batch, cell.hidden),
        fused_activation_function=_TANH,
        time_major=True,
        cell_clip=0.0,
        proj_clip=0.0,
        asymmetric_quantize_inputs=False,
        diagonal_recurrent_tensors=False,
    )
    last = g.drop_axis(g.slice(y, [-1, 0, 0], [None, None, None], [1, 1, 1]), 0)
    # Nobody reads the cell's state; any tensor of its shape stands for it.
    return _reversed(g, y) if direction.backwards else y, (last, last)


def _gates(weights: Array) -> list[Array]:
    """From ONNX's order i, o, f, c to TFLite's i, f, c, o."""
    i, o, f, c = np.split(weights, 4)
    return [i, f, c, o]


def _reversed(g: Builder, x: Tensor) -> Tensor:
    return g.emit("REVERSE_V2", [x, g.const([0], np.int32)], x.shape)


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
class RecurrentSteps:
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


def repeated(
    p: Portable, g: Builder, cell: Cell, over: RecurrentSteps, start: State
) -> tuple[Tensor, State]:
    """Run a cell over a sequence.

    Returns:
        (steps, batch, hidden), the hidden states in the order of the input's steps; and the state
        after the last one that was run.
    """
    steps = over.x.shape[0]
    size = math.prod(s or 0 for s in cell.r.shape) * cell.r.dtype.itemsize
    if steps is None:
        return _looped(p, g, cell, over, start, 1)
    if steps <= UNROLL and steps * size <= UNROLL_BYTES:
        return _unrolled(p, g, cell, over, start, steps)
    each = max(1, min(CHUNK, CHUNK_BYTES // size))
    rest = steps % each
    if not rest:
        return _looped(p, g, cell, over, start, each)
    lengths = [rest, steps - rest] if over.reverse else [steps - rest, rest]
    first, last = g.split(over.x, lengths, 0)
    parts = [replace(over, x=first), replace(over, x=last, offset=lengths[0])]
    if over.reverse:
        after, state = _looped(p, g, cell, parts[1], start, each)
        before, state = _unrolled(p, g, cell, parts[0], state, rest)
    else:
        before, state = _looped(p, g, cell, parts[0], start, each)
        after, state = _unrolled(p, g, cell, parts[1], state, rest)
    return g.concat([before, after], 0), state


def _unrolled(
    p: Portable, g: Builder, cell: Cell, over: RecurrentSteps, state: State, steps: int
) -> tuple[Tensor, State]:
    """Write out every step."""
    inputs = unpacked(g, over.x, steps)
    results: dict[int, Tensor] = {}
    for index in reversed(range(steps)) if over.reverse else range(steps):
        new = cell.step(p(g), inputs[index], state)
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


def _running(g: Builder, over: RecurrentSteps, index: int) -> Tensor | None:
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


def _looped(
    p: Portable, g: Builder, cell: Cell, over: RecurrentSteps, start: State, each: int
) -> tuple[Tensor, State]:
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
    body.outputs = _body(p, body, cell, over, len(start), each)
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


def _body(
    p: Portable, body: Builder, cell: Cell, over: RecurrentSteps, states: int, each: int
) -> list[Tensor]:
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
    part = RecurrentSteps(chunk, lengths, over.reverse, over.offset, begin)
    result, new = _unrolled(p, body, cell.with_tensors(weights), part, state, each)
    written = body.emit("DYNAMIC_UPDATE_SLICE", [results, result, where], results.shape)
    return [body.binary("ADD", count, each), written, *new, *fixed]
