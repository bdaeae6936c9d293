"""Matrix product in register blocks, with whatever follows it element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    Piece,
    function,
    load,
    loop,
    pieces,
    registers,
    splat,
    store,
)
from edgeinfer.kernels.defs.fold import folded
from edgeinfer.records import dataclass
from edgeinfer.types import Array

PARALLEL_ABOVE = 2_000_000
"""Multiplications from which a second thread is worth its start (about 5 µs on two cores)."""

Finish = Callable[[Expr, Expr, Expr, int], Expr]
"""Takes a sum, its row, its column and the vector's width; returns what is stored."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of sums that stays in registers: rows, and vectors of columns."""

    rows: int
    columns: int


def tile_for(cpu: KernelCpu, rows: int) -> Tile:
    """Choose the block: each vector of the right side serves all rows, each element all vectors."""
    if rows == 1:
        # One row alone: many independent sums hide the latency of the multiply-add.
        return Tile(1, 8 * cpu.lanes)
    across = 4 if cpu.registers >= 32 else 2
    tall = 6
    if rows < tall:
        return Tile(rows, max(1, min(8, (cpu.registers - 4) // rows)) * cpu.lanes)
    # Even blocks: 7 rows are better as 4 and 3 than as 6 and 1.
    blocks = -(-rows // tall)
    return Tile(-(-rows // blocks), across * cpu.lanes)


def panel_width(cpu: KernelCpu, rows: int, columns: int) -> int:
    """Columns of one block of the right side as ``pack_columns`` lays it out."""
    return min(tile_for(cpu, rows).columns, -(-columns // cpu.lanes) * cpu.lanes)


def pack_columns(b: Array, width: int) -> Array:
    """Lay a (K, N) matrix out as (blocks, K, width), zeros at the end."""
    k, n = b.shape
    blocks = -(-n // width)
    padded = np.zeros((k, blocks * width), b.dtype)
    padded[:, :n] = b
    return np.ascontiguousarray(padded.reshape(k, blocks, width).transpose(1, 0, 2))


def pack_rows(a: Array, height: int) -> Array:
    """Lay an (M, K) matrix out as (blocks, K, height), zeros at the end."""
    return pack_columns(np.ascontiguousarray(a.T), height)


def block(
    rows: int,
    parts: Sequence[Piece],
    depth: int,
    left: Callable[[int, Expr], Expr],
    right: Callable[[Expr, Piece], Expr],
    put: Callable[[int, Piece, Expr], None],
) -> None:
    """Write the loops of one register block: ``sum over k of left(i, k) * right(k, columns)``.

    Where the block has few sums, each is added up in several strands: one alone would wait for its
    last multiply-add every time.
    """
    width = sum(p.width for p in parts)
    strands = _strands(rows * len(parts), depth)
    sums = [[registers(width) for _ in range(rows)] for _ in range(strands)]
    cells = [(i, p) for i in range(rows) for p in parts]
    for strand in sums:
        for i, p in cells:
            store(strand[i], [p.start], splat(T.float32(0), p.width), p.width)

    def add(k: Expr, strand: list[Buffer]) -> None:
        columns = {p.start: right(k, p) for p in parts}
        for i, p in cells:
            value = (
                load(strand[i], [p.start], p.width) + splat(left(i, k), p.width) * columns[p.start]
            )
            store(strand[i], [p.start], value, p.width)

    whole = depth // strands
    with T.serial(whole) as k:
        for index, strand in enumerate(sums):
            add(k * strands + index if strands > 1 else k, strand)
    for rest in range(depth % strands):
        add(T.int32(whole * strands + rest), sums[rest])
    for i, p in cells:
        value = load(sums[0][i], [p.start], p.width)
        for strand in sums[1:]:
            value = value + load(strand[i], [p.start], p.width)
        put(i, p, value)


def _strands(sums: int, depth: int) -> int:
    """How often each sum of a block is there."""
    found = 1
    while found * sums < 8 and depth >= 16 * found:
        found *= 2
    return found


def _add(a: Expr, b: Expr) -> Expr:
    return a + b


def _multiplied(a: Buffer, b: Buffer, row: Expr, column: int, at: Expr, width: int) -> Expr:
    return load(a, [0, row, at], width) * load(b, [column, at], width)


def is_narrow(cpu: KernelCpu, sizes: tuple[int, int, int, int]) -> bool:
    """Whether columns are too few for vectors along them; then these run along the sum."""
    _, _, k, n = sizes
    return 4 * n <= cpu.lanes and k >= 2 * cpu.lanes


def narrow(
    cpu: KernelCpu,
    sizes: tuple[int, int, int, int],
    *,
    extra: dict[str, tuple[Sequence[int], str]],
    finish: Callable[..., Finish],
) -> tirx.PrimFunc:
    """Multiply (M, K) by a matrix of few columns, which comes as (N, K); as ``matmul`` else."""
    batch, m, k, n = sizes
    m *= batch

    def body(a: Buffer, b: Buffer, *rest: Buffer) -> None:
        *others, out = rest
        end = finish(*others)
        with loop(m, m * k * n >= PARALLEL_ABOVE) as row:
            for column in range(n):
                total = folded(cpu, k, 0.0, _add, partial(_multiplied, a, b, row, column))
                store(out, [0, row, column], end(total, row, T.int32(column), 1), 1)

    buffers = {"a": ((1, m, k), "float32"), "b": ((n, k), "float32"), **extra}
    return function("narrow", {**buffers, "out": ((1, m, n), "float32")}, body)


def matmul(
    cpu: KernelCpu,
    sizes: tuple[int, int, int, int],
    *,
    packed: bool,
    shared: bool,
    extra: dict[str, tuple[Sequence[int], str]],
    finish: Callable[..., Finish],
) -> tirx.PrimFunc:
    """Multiply (batch, M, K) by (batch, K, N).

    Args:
        cpu: for the block.
        sizes: batch, M, K, N.
        packed: the right side is laid out by ``pack_columns``, as wide as ``panel_width`` says.
        shared: the right side is the same for the whole batch.
        extra: further inputs, which ``finish`` gets as buffers.
        finish: called with those buffers; what it returns makes each stored value.
    """
    batch, m, k, n = sizes
    if (shared and not packed and batch > 1) or (packed and batch > 1):
        m, batch = batch * m, 1
    tile = tile_for(cpu, m)
    width = panel_width(cpu, m, n) if packed else min(tile.columns, n)
    blocks = -(-n // width)
    right: Sequence[int] = (blocks, k, width) if packed else (batch, k, n)
    parallel = batch * m * k * n >= PARALLEL_ABOVE

    def body(a: Buffer, b: Buffer, *rest: Buffer) -> None:
        *others, out = rest
        end = finish(*others)

        def column_block(nb: Expr, batch_index: Expr, parts: list[Piece]) -> None:
            def row_block(first: Expr, rows: int) -> None:
                block(
                    rows,
                    parts,
                    k,
                    lambda i, at: T.BufferLoad(a, [batch_index, first + i, at]),
                    lambda at, p: load(
                        b,
                        [nb, at, p.start] if packed else [batch_index, at, nb * width + p.start],
                        p.width,
                    ),
                    lambda i, p, value: store(
                        out,
                        [batch_index, first + i, nb * width + p.start],
                        end(value, batch_index * m + first + i, nb * width + p.start, p.width),
                        p.width,
                    ),
                )

            if m // tile.rows:
                with T.serial(m // tile.rows) as mb:
                    row_block(mb * tile.rows, tile.rows)
            if m % tile.rows:
                row_block(m - m % tile.rows, m % tile.rows)

        full = n // width
        with loop(batch, parallel and batch >= 4) as at:
            if full:
                with loop(full, parallel and batch < 4) as nb:
                    column_block(nb, at, pieces(width, cpu.lanes))
            if n % width:
                column_block(full, at, pieces(n % width, cpu.lanes))

    shape = (batch, m, n)
    buffers = {"a": ((batch, m, k), "float32"), "b": (right, "float32"), **extra}
    return function("matmul", {**buffers, "out": (shape, "float32")}, body)
