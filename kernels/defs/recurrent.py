"""LSTM and GRU over a fixed number of steps, gates and state in one kernel.

What bounds a step is how fast its weights come out of the cache, so they are read once and in their
order: a block holds all gates of some elements of the state, whose sums never leave the registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    Piece,
    function,
    load,
    pieces,
    registers,
    splat,
    store,
)
from edgeinfer.records import dataclass
from edgeinfer.types import Array


@dataclass(frozen=True, slots=True)
class CellSizes:
    """Sizes of a recurrent layer of one direction.

    Attributes:
        kind: ``LSTM`` or ``GRU``.
        steps: Steps of the sequence.
        batch: sequences.
        hidden: elements of the state.
        backwards: the last step comes first.
        before_reset: GRU: the product with the state comes before the reset gate.
        inputs: elements of the input whose product is made here; 0, it is given.
    """

    kind: str
    steps: int
    batch: int
    hidden: int
    backwards: bool = False
    before_reset: bool = False
    inputs: int = 0

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return 4 if self.kind == "LSTM" else 3

    @property
    def is_one_pass(self) -> bool:
        """Whether no gate's product needs another gate."""
        return self.kind == "LSTM" or self.before_reset


def takes_inputs(steps: int, batch: int, kind: str, before_reset: bool) -> bool:
    """Whether a layer should multiply its inputs itself: the product of one row needs no kernel."""
    return (
        steps * batch == 1
        and CellSizes(kind, steps, batch, 1, before_reset=before_reset).is_one_pass
    )


def width_for(cpu: KernelCpu, cell: CellSizes) -> int:
    """Elements of the state in one block."""
    sums = 2 if cpu.registers <= 16 or cell.gates == 4 else 4
    return min(sums * cpu.lanes, -(-cell.hidden // cpu.lanes) * cpu.lanes)


def pack_state(weights: Array, cell: CellSizes, cpu: KernelCpu) -> Array:
    """Lay weights out as (blocks, columns, gates, width).

    Args:
        weights: (gates * hidden, hidden); where the cell takes inputs, their columns come first.
        cell: the layer.
        cpu: for the width.
    """
    width = width_for(cpu, cell)
    blocks = -(-cell.hidden // width)
    depth = weights.shape[1]
    padded = np.zeros((cell.gates, blocks * width, depth), weights.dtype)
    padded[:, : cell.hidden] = weights.reshape(cell.gates, cell.hidden, depth)
    split = padded.reshape(cell.gates, blocks, width, depth)
    return np.ascontiguousarray(split.transpose(1, 3, 0, 2))


def recurrent(cpu: KernelCpu, cell: CellSizes) -> tirx.PrimFunc:
    """Run a layer.

    Inputs: the input's products with both biases that may be added to them (steps, batch,
    gates * hidden), or, where the cell takes inputs, these (steps, batch, inputs) and the biases
    (gates * hidden); the packed weights; the state's bias (gates * hidden; of GRU's before_reset
    the last third is read, of others none); the first state and, for LSTM, cell (batch, hidden).
    Outputs: all states (steps, batch, hidden), the last one and the last cell.
    """
    hidden, gates = cell.hidden, cell.gates
    width = width_for(cpu, cell)
    blocks = -(-hidden // width)
    state = ((cell.batch, hidden), "float32")
    cells = {"c0": state} if cell.kind == "LSTM" else {}
    sizes = cell.inputs or gates * hidden
    buffers = {
        "x": ((cell.steps, cell.batch, sizes), "float32"),
        **({"inner": ((gates * hidden,), "float32")} if cell.inputs else {}),
        "r": ((blocks, cell.inputs + hidden, gates, width), "float32"),
        "bias": ((gates * hidden,), "float32"),
        "h0": state,
        **cells,
        "out": ((cell.steps, cell.batch, hidden), "float32"),
        "h": state,
        **({"c": state} if cells else {}),
    }

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        # Two states in turns: a block is written while others still read the last one.
        turns = T.alloc_buffer((2, hidden), "float32") if cell.steps > 1 else None
        gated = None if cell.is_one_pass else T.alloc_buffer((2, hidden), "float32")
        with T.serial(cell.batch) as n:
            if turns is None:
                _step(_Step(cpu, cell, named, T.int32(0), n, gated))
                return
            _copy(turns, [0], named["h0"], [n], hidden, cpu)
            if cells:
                _copy(named["c"], [n], named["c0"], [n], hidden, cpu)
            with T.serial(cell.steps) as s:
                step = cell.steps - 1 - s if cell.backwards else s
                _step(_Step(cpu, cell, named, step, n, gated, turns, tirx.bitwise_and(s, 1)))
            last = 0 if cell.backwards else cell.steps - 1
            _copy(named["h"], [n], named["out"], [last, n], hidden, cpu)

    return function(cell.kind.lower(), buffers, body)


def _copy(
    to: Buffer,
    where: Sequence[Expr],
    source: Buffer,
    at: Sequence[Expr],
    count: int,
    cpu: KernelCpu,
) -> None:
    for p in pieces(count, cpu.lanes):
        store(to, [*where, p.start], load(source, [*at, p.start], p.width), p.width)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of one sequence, and where its state lies before and after."""

    cpu: KernelCpu
    cell: CellSizes
    named: dict[str, Buffer]
    step: Expr
    n: Expr
    gated: Buffer | None
    turns: Buffer | None = None
    now: Expr = 0

    def given(self, gate: int, column: Expr, width: int) -> Expr:
        """Return what does not depend on the state."""
        place = gate * self.cell.hidden + column
        if self.cell.inputs:
            return load(self.named["inner"], [place], width)
        return load(self.named["x"], [self.step, self.n, place], width)

    def state(self, column: Expr, width: int) -> Expr:
        """Return the state before the step."""
        if self.turns is None:
            return load(self.named["h0"], [self.n, column], width)
        return load(self.turns, [self.now, column], width)

    def memory(self, column: Expr, width: int) -> Expr:
        """Return LSTM's cell before the step."""
        return load(self.named["c0" if self.turns is None else "c"], [self.n, column], width)

    def put(self, column: Expr, value: Expr, width: int) -> None:
        """Store the state after the step."""
        out = self.named["out"]
        store(out, [self.step, self.n, column], value, width)
        again = load(out, [self.step, self.n, column], width)
        if self.turns is None:
            store(self.named["h"], [self.n, column], again, width)
        else:
            store(self.turns, [1 - self.now, column], again, width)


def _step(at: _Step) -> None:
    if at.cell.kind == "LSTM":
        _sweep(at, lambda block, parts: _lstm(at, block, parts))
    elif at.cell.before_reset:
        _sweep(at, lambda block, parts: _gru(at, block, parts))
    else:
        _sweep(at, lambda block, parts: _gru_gates(at, block, parts))
        _sweep(at, lambda block, parts: _gru_candidate(at, block, parts))


def _sweep(at: _Step, write: Callable[[Expr, list[Piece]], None]) -> None:
    width = width_for(at.cpu, at.cell)
    full, rest = divmod(at.cell.hidden, width)
    if full:
        with T.serial(full) as block:
            write(block, pieces(width, at.cpu.lanes))
    if rest:
        write(T.int32(full), pieces(rest, at.cpu.lanes))


def _sums(
    at: _Step,
    block: Expr,
    parts: list[Piece],
    first: Sequence[Callable[[Piece], Expr]],
    products: Sequence[tuple[int, int, Callable[[Expr], Expr], dict[int, int]]],
) -> _Sums:
    """Write the loops of one block.

    Args:
        at: the step.
        block: Block of the weights.
        parts: Parts of the block.
        first: what each sum starts with.
        products: the weights' first column, how many, what they are multiplied by, and for each
            gate the sum it belongs to.
    """
    weights = at.named["r"]
    width = sum(p.width for p in parts)
    sums = registers(len(first) * width)
    for i, start in enumerate(first):
        for p in parts:
            store(sums, [i * width + p.start], start(p), p.width)
    for begin, count, left, gates in products:
        with T.serial(count) as k:
            for gate, i in gates.items():
                for p in parts:
                    place = [i * width + p.start]
                    column = load(weights, [block, begin + k, gate, p.start], p.width)
                    value = load(sums, place, p.width) + splat(left(k), p.width) * column
                    store(sums, place, value, p.width)
    return _Sums(sums, width)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of a block, in registers."""

    buffer: Buffer
    width: int

    def __call__(self, i: int, p: Piece) -> Expr:
        return load(self.buffer, [i * self.width + p.start], p.width)

    def apply(self, i: int, p: Piece, function: Callable[[Expr], Expr]) -> Expr:
        """Put a function's result in a sum's place: deep expressions are slow to compile."""
        store(self.buffer, [i * self.width + p.start], function(self(i, p)), p.width)
        return self(i, p)


def _column(at: _Step, block: Expr, p: Piece) -> Expr:
    return block * width_for(at.cpu, at.cell) + p.start


def _products(
    at: _Step, inputs: dict[int, int], states: dict[int, int]
) -> list[tuple[int, int, Callable[[Expr], Expr], dict[int, int]]]:
    found = []
    count = at.cell.inputs
    if count:
        x = at.named["x"]
        found.append((0, count, lambda k: T.BufferLoad(x, [at.step, at.n, k]), inputs))
    return [*found, (count, at.cell.hidden, lambda k: at.state(k, 1), states)]


def _lstm(at: _Step, block: Expr, parts: list[Piece]) -> None:
    # Input, output and forget gate; the candidate comes last.
    gates = {gate: gate for gate in range(4)}
    first = [
        lambda p, gate=gate: at.given(gate, _column(at, block, p), p.width) for gate in range(4)
    ]
    total = _sums(at, block, parts, first, _products(at, gates, gates))
    for p in parts:
        column = _column(at, block, p)
        i, o, f = (total.apply(gate, p, math.gate_sigmoid) for gate in range(3))
        memory = f * at.memory(column, p.width) + i * total.apply(3, p, math.gate_tanh)
        kept = at.named["c"]
        store(kept, [at.n, column], memory, p.width)
        at.put(column, o * math.gate_tanh(load(kept, [at.n, column], p.width)), p.width)


def _gru(at: _Step, block: Expr, parts: list[Piece]) -> None:
    """All of a step whose reset gate comes behind the product."""
    # Update gate, reset gate, the candidate's share of the state and, in a sum of its own, of the
    # input.
    bias = at.named["bias"]

    def column(p: Piece) -> Expr:
        return _column(at, block, p)

    first = [
        lambda p: at.given(0, column(p), p.width),
        lambda p: at.given(1, column(p), p.width),
        lambda p: load(bias, [2 * at.cell.hidden + column(p)], p.width),
    ]
    if at.cell.inputs:
        first.append(lambda p: at.given(2, column(p), p.width))
    products = _products(at, {0: 0, 1: 1, 2: 3}, {0: 0, 1: 1, 2: 2})
    total = _sums(at, block, parts, first, products)
    for p in parts:
        inner = total(3, p) if at.cell.inputs else at.given(2, column(p), p.width)
        reset = total.apply(1, p, math.gate_sigmoid)
        candidate = total.apply(2, p, partial(_candidate, inner, reset))
        _mix(at, column(p), total.apply(0, p, math.gate_sigmoid), candidate, p.width)


def _candidate(inner: Expr, reset: Expr, state: Expr) -> Expr:
    return math.gate_tanh(inner + reset * state)


def _mix(at: _Step, column: Expr, update: Expr, candidate: Expr, width: int) -> None:
    before = at.state(column, width)
    at.put(column, candidate + update * (before - candidate), width)


def _gru_gates(at: _Step, block: Expr, parts: list[Piece]) -> None:
    """Update gate, and the state behind its reset gate."""
    first = [
        lambda p, gate=gate: at.given(gate, _column(at, block, p), p.width) for gate in range(2)
    ]
    total = _sums(at, block, parts, first, _products(at, {0: 0, 1: 1}, {0: 0, 1: 1}))
    for p in parts:
        column = _column(at, block, p)
        store(at.gated, [0, column], total.apply(0, p, math.gate_sigmoid), p.width)
        reset = total.apply(1, p, math.gate_sigmoid) * at.state(column, p.width)
        store(at.gated, [1, column], reset, p.width)


def _gru_candidate(at: _Step, block: Expr, parts: list[Piece]) -> None:
    gated = at.gated
    first = [lambda p: at.given(2, _column(at, block, p), p.width)]
    product = (0, at.cell.hidden, lambda k: T.BufferLoad(gated, [1, k]), {2: 0})
    total = _sums(at, block, parts, first, [product])
    for p in parts:
        column = _column(at, block, p)
        candidate = total.apply(0, p, math.gate_tanh)
        _mix(at, column, load(gated, [0, column], p.width), candidate, p.width)
