"""What the kernels are built with: vectors that fit a CPU, and a function around a body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (TVM's own name for it)

from edgeinfer.records import dataclass

Expr = Any
"""An expression of TensorIR; its operators are Python's."""

Buffer = Any


@dataclass(frozen=True, slots=True)
class KernelCpu:
    """What a kernel must know of the CPU.

    Attributes:
        lanes: float32 elements of one vector register.
        registers: vector registers.
    """

    lanes: int
    registers: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of neighbouring elements that one vector holds."""

    start: int
    width: int


def pieces(count: int, lanes: int) -> list[Piece]:
    """Cut a row into whole vectors and, for its end, ever narrower ones."""
    found: list[Piece] = []
    start = 0
    while start < count:
        width = min(lanes, 1 << ((count - start).bit_length() - 1))
        found.append(Piece(start, width))
        start += width
    return found


def load(buffer: Buffer, index: Sequence[Expr], width: int) -> Expr:
    """Read neighbouring elements of the last axis."""
    if width == 1:
        return T.BufferLoad(buffer, list(index))
    *outer, last = index
    return T.BufferLoad(buffer, [*outer, T.ramp(last, 1, width)])


def store(buffer: Buffer, index: Sequence[Expr], value: Expr, width: int) -> None:
    """Write neighbouring elements of the last axis."""
    *outer, last = index
    T.buffer_store(buffer, value, [*outer, last if width == 1 else T.ramp(last, 1, width)])


def registers(count: int, dtype: str = "float32") -> Buffer:
    """Memory of a kernel that LLVM keeps in registers, where it is read and written in one width.

    TVM puts up to 1023 bytes on the stack, from where they go there; what is larger, or of another
    scope than the default one, it asks its runtime for in each call.
    """
    return T.alloc_buffer((count,), dtype)


def splat(value: Expr, width: int) -> Expr:
    """One value in each element of a vector."""
    return value if width == 1 else T.broadcast(value, width)


def function(
    name: str,
    buffers: Mapping[str, tuple[Sequence[int], str]],
    body: Callable[..., None],
    results: int = 1,
) -> tirx.PrimFunc:
    """Build a function over buffers of any alignment.

    Args:
        name: Name of the function.
        buffers: shape and element type by name; outputs last.
        body: called with the buffers; writes the loops.
        results: how many of the buffers are outputs.
    """
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        T.func_attr({"tirx.noalias": True})
        made = [T.arg(key, buffer(*what)) for key, what in buffers.items()]
        body(*made)
    written = builder.get()
    if len(buffers) - results > 1:
        return written
    # TVM asks of what has one input whether it is a view, and asks blocks only.
    root = s_tir.SBlock([], [], [], "root", written.body)
    return written.with_body(s_tir.SBlockRealize([], True, root))


def buffer(shape: Sequence[int], dtype: str) -> Any:
    """A buffer as a kernel takes it: callers' arrays are aligned to their elements only."""
    return T.Buffer(tuple(shape), dtype, align=max(1, _bytes(dtype)))


def _bytes(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return int(digits) // 8 if digits else 1


def loop(count: int, parallel: bool = False) -> Any:
    """A loop, over threads or not."""
    return T.parallel(count) if parallel else T.serial(count)


def prefetch(buffer: Buffer, index: list[Expr], level: int = 1) -> None:
    """Ask for the line of an element, into the cache of a level; it may lie outside the buffer."""
    place = tirx.address_of(T.BufferLoad(buffer, index))
    read, near, data = (tirx.const(n, "int32") for n in (0, 4 - level, 1))
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", place, read, near, data))
