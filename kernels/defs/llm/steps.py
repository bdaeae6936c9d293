"""Vector steps that keep their bits wherever they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, load, registers, splat, store

TOKENS = 1 << 16
"""Tokens that buffers are declared for."""

SPAN = 4
"""Elements of ``span``."""


def fma(a: Expr, b: Expr, c: Expr, width: int) -> Expr:
    """``a * b + c`` with one rounding: LLVM would fuse it in one place and not in another."""
    kind = "float32" if width == 1 else f"float32x{width}"
    name = "llvm.fma.f32" if width == 1 else f"llvm.fma.v{width}f32"
    return T.call_llvm_pure_intrin(kind, name, a, b, c)


@contextmanager
def between(first: Expr, end: Expr) -> Iterator[Expr]:
    """A loop from one number up to another.

    TVM moves loops to begin at zero and then forgets an outer loop's move in the bounds of an inner
    one that it moves too; so all of ours begin at zero.
    """
    with T.serial(end - first) as i:
        yield first + i


def span_of(span: Buffer) -> tuple[Expr, Expr]:
    """First item and the one behind the last."""
    return T.BufferLoad(span, [0]), T.BufferLoad(span, [1])


def across(
    value: Expr, width: int, join: Callable[[Expr, Expr], Expr], dtype: str = "float32"
) -> Expr:
    """Join the elements of a vector by halves into one, kept in a register."""
    kept = registers(width, dtype)
    store(kept, [0], value, width)
    while width > 1:
        half = width // 2
        whole = load(kept, [0], width)
        low, high = (
            tirx.Shuffle([whole], [T.int32(i) for i in range(start, start + half)])
            for start in (0, half)
        )
        kept = registers(half, dtype)
        store(kept, [0], join(low, high), half)
        width = half
    return T.BufferLoad(kept, [0])


def added(a: Expr, b: Expr) -> Expr:
    """A sum."""
    return a + b


def larger(a: Expr, b: Expr) -> Expr:
    """The larger one."""
    return tirx.Max(a, b)


def smaller(a: Expr, b: Expr) -> Expr:
    """The smaller one."""
    return tirx.Min(a, b)


def zeros(width: int, dtype: str = "float32") -> Buffer:
    """A register of zeros."""
    made = registers(width, dtype)
    store(made, [0], splat(tirx.const(0, dtype), width), width)
    return made


def held(value: Expr, width: int = 1, dtype: str = "float32") -> Buffer:
    """A register with a value."""
    made = registers(width, dtype)
    store(made, [0], value, width)
    return made
