"""LSTM and GRU over a fixed number of steps, gates and state in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Cpu, Expr, function, load, pieces, splat, store
from edgeinfer.kernels.defs.gemm import block, pack_columns
from edgeinfer.types import Array


@dataclass(frozen=True, slots=True)
class Cell:
    """Sizes of a recurrent layer of one direction.

    Attributes:
        kind: ``LSTM`` or ``GRU``.
        steps: of the sequence.
        batch: sequences.
        hidden: elements of the state.
        backwards: the last step comes first.
        before_reset: GRU: the product with the state comes before the reset gate.
    """

    kind: str
    steps: int
    batch: int
    hidden: int
    backwards: bool = False
    before_reset: bool = False

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return 4 if self.kind == "LSTM" else 3


def width_for(cpu: Cpu, hidden: int) -> int:
    """Columns of one block of the state's weights, one gate at a time."""
    return min(8 * cpu.lanes, -(-hidden // cpu.lanes) * cpu.lanes)


def pack_state(weights: Array, cell: Cell, cpu: Cpu) -> Array:
    """Lay the state's weights (gates * hidden, hidden) out as (gates, blocks, hidden, width)."""
    width = width_for(cpu, cell.hidden)
    gates = weights.reshape(cell.gates, cell.hidden, cell.hidden)
    return np.stack([pack_columns(np.ascontiguousarray(w.T), width) for w in gates])


def recurrent(cpu: Cpu, cell: Cell) -> tirx.PrimFunc:
    """Run a layer.

    Inputs: the input's products with both biases that may be added to them (steps, batch,
    gates * hidden), the packed state weights, the state's bias (gates * hidden, GRU's before_reset
    only reads its last third), the first state and, for LSTM, cell (batch, hidden). Outputs: all
    states (steps, batch, hidden), the last one and the last cell.
    """
    hidden, gates = cell.hidden, cell.gates
    width = width_for(cpu, hidden)
    blocks = -(-hidden // width)
    is_lstm = cell.kind == "LSTM"
    state = ((cell.batch, hidden), "float32")
    buffers = {
        "x": ((cell.steps, cell.batch, gates * hidden), "float32"),
        "r": ((gates, blocks, hidden, width), "float32"),
        "bias": ((gates * hidden,), "float32"),
        "h0": state,
        **({"c0": state} if is_lstm else {}),
        "out": ((cell.steps, cell.batch, hidden), "float32"),
        "h": state,
        **({"c": state} if is_lstm else {}),
    }

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        gate = T.alloc_buffer((gates, hidden), "float32")
        with T.serial(cell.batch) as n:
            _copy(named["h"], named["h0"], n, hidden, cpu)
            if is_lstm:
                _copy(named["c"], named["c0"], n, hidden, cpu)
            with T.serial(cell.steps) as s:
                step = cell.steps - 1 - s if cell.backwards else s
                write = _lstm_step if is_lstm else _gru_step
                write(cpu, cell, named, gate, step, n)

    return function(cell.kind.lower(), buffers, body)


def _copy(to: Buffer, source: Buffer, n: Expr, count: int, cpu: Cpu) -> None:
    for p in pieces(count, cpu.lanes):
        store(to, [n, p.start], load(source, [n, p.start], p.width), p.width)


def _products(
    cpu: Cpu,
    cell: Cell,
    named: dict[str, Buffer],
    which: range,
    left: Callable[[Expr], Expr],
    put: Callable[[int, Expr, int, Expr], None],
) -> None:
    """Multiply the state by the weights of some gates."""
    width = width_for(cpu, cell.hidden)
    for gate in which:
        for start in range(0, cell.hidden, width):
            count = min(width, cell.hidden - start)
            _one(cpu, cell, named["r"], gate, (start, count), left, put)


def _one(
    cpu: Cpu,
    cell: Cell,
    weights: Buffer,
    gate: int,
    columns: tuple[int, int],
    left: Callable[[Expr], Expr],
    put: Callable[[int, Expr, int, Expr], None],
) -> None:
    start, count = columns
    at = start // width_for(cpu, cell.hidden)
    block(
        1,
        pieces(count, cpu.lanes),
        cell.hidden,
        lambda i, k: left(k),
        lambda k, p: load(weights, [gate, at, k, p.start], p.width),
        lambda i, p, value: put(gate, start + p.start, p.width, value),
    )


def _lstm_step(
    cpu: Cpu, cell: Cell, named: dict[str, Buffer], gate: Buffer, step: Expr, n: Expr
) -> None:
    hidden = cell.hidden
    x, h, c, out = (named[k] for k in ("x", "h", "c", "out"))

    def put(which: int, column: Expr, width: int, value: Expr) -> None:
        total = value + load(x, [step, n, which * hidden + column], width)
        # Input, output and forget gate; the candidate comes last.
        done = math.tanh(total) if which == 3 else math.sigmoid(total)
        store(gate, [which, column], done, width)

    _products(cpu, cell, named, range(4), lambda k: T.BufferLoad(h, [n, k]), put)
    for p in pieces(hidden, cpu.lanes):
        i, o, f, g = (load(gate, [w, p.start], p.width) for w in range(4))
        store(c, [n, p.start], f * load(c, [n, p.start], p.width) + i * g, p.width)
        value = o * math.tanh(load(c, [n, p.start], p.width))
        store(h, [n, p.start], value, p.width)
        store(out, [step, n, p.start], load(h, [n, p.start], p.width), p.width)


def _gru_step(
    cpu: Cpu, cell: Cell, named: dict[str, Buffer], gate: Buffer, step: Expr, n: Expr
) -> None:
    hidden = cell.hidden
    x, h, out, bias = (named[k] for k in ("x", "h", "out", "bias"))

    def put(which: int, column: Expr, width: int, value: Expr) -> None:
        total = value + load(x, [step, n, which * hidden + column], width)
        store(gate, [which, column], math.sigmoid(total), width)

    # Update, then reset gate.
    _products(cpu, cell, named, range(2), lambda k: T.BufferLoad(h, [n, k]), put)

    def candidate(which: int, column: Expr, width: int, value: Expr) -> None:
        inner = load(x, [step, n, which * hidden + column], width)
        if cell.before_reset:
            state = value + load(bias, [which * hidden + column], width)
            value = load(gate, [1, column], width) * state
        store(gate, [2, column], math.tanh(inner + value), width)

    def left(k: Expr) -> Expr:
        plain = T.BufferLoad(h, [n, k])
        return plain if cell.before_reset else plain * T.BufferLoad(gate, [1, k])

    _products(cpu, cell, named, range(2, 3), left, candidate)
    for p in pieces(hidden, cpu.lanes):
        z, _, g = (load(gate, [w, p.start], p.width) for w in range(3))
        one = splat(T.float32(1), p.width)
        value = (one - z) * g + z * load(h, [n, p.start], p.width)
        store(h, [n, p.start], value, p.width)
        store(out, [step, n, p.start], load(h, [n, p.start], p.width), p.width)
