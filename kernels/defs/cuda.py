"""Products and windows on a CUDA GPU: tiles in registers, and threads that share one sum.

A block of threads makes a tile of the result. Of its threads some lie along the rows, some along
the columns, and some along what is summed: their parts meet in shared memory. Filters are read from
the cache, several at once, as the same address for a whole warp; pixels as neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, load, store
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Sum:
    """A function that sums products, in its parts.

    Attributes:
        params: its buffers, the result last.
        kept: sizes of the result; rows and columns are the last two.
        summed: sizes of what is summed.
        variables: Variables of ``kept``, then of ``summed``, in the factors.
        column: the factor that has the columns.
        row: the factor that has the rows, an element of a buffer.
        value: the buffer in which the sum stands in ``end``.
        end: what is written of a sum; None if that is the sum.
        end_variables: End variables of ``kept``, in ``end``.
    """

    params: Sequence[Any]
    kept: tuple[int, ...]
    summed: tuple[int, ...]
    variables: Sequence[Any]
    column: Expr
    row: Any
    value: Buffer
    end: Expr | None
    end_variables: Sequence[Any]


@dataclass(frozen=True, slots=True)
class CudaTile:
    """How the work is cut.

    Attributes:
        rows: Rows of one thread's tile.
        wide: columns of one thread's tile.
        down: threads along the rows.
        across: threads along the columns.
        deep: threads along what is summed.
        step: Step of what is summed, how much is written out as one.
    """

    rows: int
    wide: int
    down: int
    across: int
    deep: int
    step: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.down * self.across * self.deep

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a block's tile."""
        return self.down * self.rows, self.across * self.wide

    def problem(self, made: Sum) -> str:
        """Say why a product cannot be cut so; empty if it can."""
        rows, columns = made.kept[-2:]
        if min(self.rows, self.wide, self.down, self.across, self.deep, self.step) < 1:
            return "a number below one"
        if self.threads > 1024:
            return f"{self.threads} threads"
        if rows % self.rows or columns % self.wide:
            return "the tile of a thread does not divide the result"
        if made.summed[0] % (self.deep * self.step):
            return "threads and steps do not divide the sum"
        if self.deep > 1 and self.deep * prod(self.size) * 4 > 48 * 1024:
            return "too much shared memory"
        if self.rows * self.wide > 128:
            return "too many registers"
        return ""


def product(made: Sum, tile: CudaTile) -> tirx.PrimFunc:
    """Write the kernel.

    Raises:
        ValueError: the product cannot be cut so.
    """
    if problem := tile.problem(made):
        raise ValueError(f"the plan does not fit the kernel: {problem}")
    return _function(made, lambda given, out: _Product(made, tile, given, out).write())


@dataclass(frozen=True, slots=True)
class Strip:
    """How windows over each channel are cut: rows and columns of a thread, threads of a block."""

    rows: int
    wide: int
    threads: int


def window(made: Sum, strip: Strip) -> tirx.PrimFunc:
    """Write sums of products in which each result has a channel of its own.

    Raises:
        ValueError: it cannot be cut so.
    """
    height, width = made.kept[-2:]
    fits = strip.rows > 0 and strip.wide > 0 and not height % strip.rows and not width % strip.wide
    if not fits or not 1 <= strip.threads <= 1024 or strip.rows * strip.wide > 128:
        raise ValueError("the plan does not fit the kernel: strips do not divide the result")
    return _function(made, lambda given, out: _Window(made, strip, given, out).write())


def _function(made: Sum, write: Callable[[Mapping[int, Any], Buffer], None]) -> tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        buffers = [
            T.arg(str(p.name), T.Buffer(tuple(int(s) for s in p.shape), str(p.dtype)))
            for p in made.params
        ]
        write({hash(p): b for p, b in zip(made.params, buffers, strict=True)}, buffers[-1])
    return builder.get()


class _Writer:
    """What both kernels need."""

    def __init__(self, made: Sum, given: Mapping[int, Any], out: Buffer) -> None:
        self.made, self.given, self.out = made, given, out

    def end(self, value: Expr, index: Sequence[Expr], into: Buffer, at: Sequence[Expr]) -> None:
        """Write what is made of the sum at an index of the result."""
        made = self.made
        if made.end is not None:
            known = T.bind(value)
            end = tvm_ffi.structural_map(
                made.end,
                (tvm.ir.TensorLoad, lambda e: known if e.source.same_as(made.value) else e),
            )
            value = self.placed(end, made.end_variables, index)
        T.buffer_store(into, value, list(at))

    def placed(self, expr: Expr, variables: Sequence[Any], index: Sequence[Expr]) -> Expr:
        """An expression at a place, over the kernel's own buffers."""
        # Expressions compare by value, so variables are distinguished by their identity.
        at = {
            hash(v): tirx.const(i, v.ty.dtype) if isinstance(i, int) else i
            for v, i in zip(variables, index, strict=True)
        }
        known = {**self.given, **at}
        return tvm_ffi.structural_map(expr, (tvm.ir.Var, lambda v: known.get(hash(v), v)))


class _Window(_Writer):
    def __init__(self, made: Sum, strip: Strip, given: Mapping[int, Any], out: Buffer) -> None:
        super().__init__(made, given, out)
        self.strip = strip

    def write(self) -> None:
        """Write blocks, threads and what one thread does."""
        made, strip = self.made, self.strip
        *outer, height, width = made.kept
        strips = (*outer, height // strip.rows, width // strip.wide)
        total = prod(strips)
        with (
            T.launch_thread("blockIdx.x", -(-total // strip.threads)) as block,
            T.launch_thread("threadIdx.x", strip.threads) as thread,
        ):
            item = block * strip.threads + thread
            *place, y, x = _indices(item, strips)
            first = [*place, y * strip.rows, x * strip.wide]
            _guarded([item < total] if total % strip.threads else [], lambda: self._strip(first))

    def _strip(self, first: list[Expr]) -> None:
        made, strip = self.made, self.strip
        sums = T.alloc_buffer((strip.rows * strip.wide,), "float32", scope="local")
        with T.unroll(strip.rows * strip.wide) as i:
            T.buffer_store(sums, T.float32(0), [i])
        *outer, y, x = first
        with T.unroll(prod(made.summed)) as tap:
            taps = _indices(tap, made.summed)
            with T.unroll(strip.rows) as r, T.unroll(strip.wide) as w:
                index = [*outer, y + r, x + w, *taps]
                column, row = (
                    self.placed(f, made.variables, index) for f in (made.column, made.row)
                )
                at = [r * strip.wide + w]
                T.buffer_store(sums, T.BufferLoad(sums, at) + column * row, at)
        for r in range(strip.rows):
            for w in range(strip.wide):
                place = [*outer, y + r, x + w]
                value = T.BufferLoad(sums, [r * strip.wide + w])
                self.end(value, place, self.out, place)


class _Product(_Writer):
    def __init__(self, made: Sum, tile: CudaTile, given: Mapping[int, Any], out: Buffer) -> None:
        super().__init__(made, given, out)
        self.tile = tile
        self.rows, self.columns = made.kept[-2:]
        self.tile_rows, self.tile_columns = tile.size

    def write(self) -> None:
        """Write blocks, threads and what one thread does."""
        made, tile = self.made, self.tile
        *outer, rows, columns = made.kept
        blocks = (*outer, -(-rows // self.tile_rows), -(-columns // self.tile_columns))
        with T.launch_thread("blockIdx.x", prod(blocks)) as block:
            at = _indices(block, blocks)
            first_row, first_column = at[-2] * self.tile_rows, at[-1] * self.tile_columns
            with T.launch_thread("threadIdx.x", tile.threads) as thread:
                z, y, x = _indices(thread, (tile.deep, tile.down, tile.across))
                row = self._inside(first_row + y * tile.rows, rows, self.tile_rows, tile.rows)
                column = self._inside(
                    first_column + x * tile.wide, columns, self.tile_columns, tile.wide
                )
                sums = T.alloc_buffer((tile.rows * tile.wide,), "float32", scope="local")
                self._sum(sums, at[:-2], row, column, z)
                place = (at[:-2], first_row, first_column)
                if tile.deep == 1:
                    self._keep(sums, place, y, x)
                else:
                    self._meet(sums, place, (z, y, x), thread)

    def _inside(self, first: Expr, size: int, block: int, own: int) -> Expr:
        """Threads beyond the end do the last tile again, and keep nothing."""
        return first if size % block == 0 else tirx.min(first, size - own)

    # ---- the sum

    def _sum(self, sums: Buffer, outer: Sequence[Expr], row: Expr, column: Expr, z: Expr) -> None:
        made, tile = self.made, self.tile
        own = tile.rows * tile.wide
        with T.unroll(own) as i:
            T.buffer_store(sums, T.float32(0), [i])
        share = made.summed[0] // tile.deep
        left = T.alloc_buffer((tile.rows,), "float32", scope="local")
        right = T.alloc_buffer((tile.wide,), "float32", scope="local")
        steps = tile.step * prod(made.summed[1:])
        with T.serial(share // tile.step) as far, T.unroll(steps) as near:
            u, *taps = _indices(near, (tile.step, *made.summed[1:]))
            summed = [z * share + far * tile.step + u, *taps]
            self._read(left, tile.rows, made.row, [*outer, row, column, *summed], -2)
            self._read(right, tile.wide, made.column, [*outer, row, column, *summed], -1)
            with T.unroll(tile.rows) as r, T.unroll(tile.wide) as w:
                at = r * tile.wide + w
                term = T.BufferLoad(right, [w]) * T.BufferLoad(left, [r])
                T.buffer_store(sums, T.BufferLoad(sums, [at]) + term, [at])

    def _read(
        self, into: Buffer, count: int, factor: Expr, index: Sequence[Expr], axis: int
    ) -> None:
        """Read a thread's rows (axis -2) or columns (-1) of one term."""
        made = self.made
        place = len(made.kept) + axis
        variable = made.variables[place]
        width = self._width(factor, variable, count)
        for first in range(0, count, width):
            moved = list(index)
            moved[place] = moved[place] + first
            if width == 1:
                T.buffer_store(into, self.placed(factor, made.variables, moved), [first])
                continue
            at = [self.placed(i, made.variables, moved) for i in factor.indices]
            store(into, [first], load(self.given[hash(factor.source)], at, width), width)

    def _width(self, factor: Expr, variable: Any, count: int) -> int:
        """How many neighbours can be read at once."""
        if not isinstance(factor, tvm.ir.TensorLoad) or not factor.indices:
            return 1
        if not factor.indices[-1].same_as(variable):
            return 1
        size = int(factor.source.shape[-1])
        return next(w for w in (4, 2, 1) if count % w == 0 and size % w == 0)

    # ---- the end

    def _keep(self, sums: Buffer, place: Any, y: Expr, x: Expr) -> None:
        tile = self.tile
        outer, first_row, first_column = place
        row, column = first_row + y * tile.rows, first_column + x * tile.wide
        made = T.alloc_buffer((tile.wide,), "float32", scope="local")
        width = next(w for w in (4, 2, 1) if tile.wide % w == 0 and self.columns % w == 0)

        def put() -> None:
            for r in range(tile.rows):
                for w in range(tile.wide):
                    value = T.BufferLoad(sums, [r * tile.wide + w])
                    self.end(value, [*outer, row + r, column + w], made, [w])
                for w in range(0, tile.wide, width):
                    index = [*outer, row + r, column + w]
                    store(self.out, index, load(made, [w], width), width)

        self._where(row, column, put)

    def _where(self, row: Expr, column: Expr, action: Callable[[], None]) -> None:
        tests = []
        if self.rows % self.tile_rows:
            tests.append(row < self.rows)
        if self.columns % self.tile_columns:
            tests.append(column < self.columns)
        _guarded(tests, action)

    def _meet(self, sums: Buffer, place: Any, own: Sequence[Expr], thread: Expr) -> None:
        """Add the parts of a sum up, each thread some of the tile."""
        tile = self.tile
        outer, first_row, first_column = place
        (z, y, x), wide = own, self.tile_columns
        size = prod(tile.size)
        parts = T.alloc_buffer((tile.deep * size,), "float32", scope="shared")
        width = next(w for w in (4, 2, 1) if tile.wide % w == 0)
        for r in range(tile.rows):
            for w in range(0, tile.wide, width):
                at = z * size + (y * tile.rows + r) * wide + x * tile.wide + w
                store(parts, [at], load(sums, [r * tile.wide + w], width), width)
        T.evaluate(T.tvm_storage_sync("shared"))
        total = T.alloc_buffer((1,), "float32", scope="local")
        rounds = -(-size // tile.threads)
        with T.unroll(rounds) as turn:
            item = turn * tile.threads + thread
            row, column = first_row + item // wide, first_column + item % wide

            def put() -> None:
                T.buffer_store(total, T.BufferLoad(parts, [item]), [0])
                with T.unroll(tile.deep - 1) as other:
                    part = T.BufferLoad(parts, [(other + 1) * size + item])
                    T.buffer_store(total, T.BufferLoad(total, [0]) + part, [0])
                index = [*outer, row, column]
                self.end(T.BufferLoad(total, [0]), index, self.out, index)

            tests = [item < size] if size % tile.threads else []
            _guarded(tests, lambda: self._where(row, column, put))


def _indices(number: Expr, sizes: Sequence[int]) -> list[Expr]:
    """Take a running number apart."""
    found: list[Expr] = []
    for place, size in enumerate(sizes):
        inner = prod(sizes[place + 1 :])
        part = number // inner if inner > 1 else number
        found.append(0 if size == 1 else part % size if place else part)
    return found


def _guarded(tests: Sequence[Expr], action: Callable[[], None]) -> None:
    if not tests:
        action()
        return
    with T.If(tirx.all(*tests)), T.Then():
        action()
