"""Rows that are reduced to one value each, or brought to zero mean and unit variance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu, function, load, loop, splat, store
from edgeinfer.kernels.defs.fold import folded
from edgeinfer.kernels.defs.math import is_nan
from edgeinfer.kernels.defs.rows import scalar, sweep

PARALLEL_ABOVE = 1 << 17
"""Elements from which a second thread is worth its start."""

Value = Callable[[Expr], Expr]


def _add(a: Expr, b: Expr) -> Expr:
    return a + b


def _largest(a: Expr, b: Expr) -> Expr:
    return tirx.Select(tirx.Or(a > b, is_nan(a)), a, b)


def _smallest(a: Expr, b: Expr) -> Expr:
    return tirx.Select(tirx.Or(a < b, is_nan(a)), a, b)


KINDS: dict[str, tuple[float, Callable[[Expr, Expr], Expr]]] = {
    "sum": (0.0, _add),
    "mean": (0.0, _add),
    "max": (-float("inf"), _largest),
    "min": (float("inf"), _smallest),
}
"""What nothing amounts to, and how two values are joined."""


def reduced(
    cpu: KernelCpu,
    rows: int,
    size: int,
    kind: str,
    before: Value | None = None,
    after: Value | None = None,
) -> tirx.PrimFunc:
    """Reduce each row: takes ``x`` (rows, size) and ``y`` (rows).

    Args:
        cpu: that it is for.
        rows: Rows of the input.
        size: Size of a row.
        kind: Kind of ``KINDS``.
        before: done to each element, vectors of them too.
        after: done to each result.
    """
    first, join = KINDS[kind]

    def body(x: Buffer, y: Buffer) -> None:
        with loop(rows, rows * size >= PARALLEL_ABOVE and rows > 1) as row:

            def value(at: Expr, width: int) -> Expr:
                found = load(x, [row, at], width)
                return before(found) if before else found

            total = folded(cpu, size, first, join, value)
            if kind == "mean":
                total = total / T.float32(size)
            T.buffer_store(y, after(total) if after else total, [row])

    return function(
        f"reduce_{kind}", {"x": ((rows, size), "float32"), "y": ((rows,), "float32")}, body
    )


def normalised(
    cpu: KernelCpu,
    rows: int,
    size: int,
    epsilon: float,
    *,
    centred: bool,
    factors: Sequence[str] = (),
) -> tirx.PrimFunc:
    """Bring each row to unit variance about its mean, or to unit mean square.

    Takes ``x`` (rows, size), a factor, a term where ``factors`` names two, and ``y`` like ``x``.

    Args:
        cpu: that it is for.
        rows: Rows of the input.
        size: Size of a row.
        epsilon: added to the variance.
        centred: the mean is taken away first.
        factors: ``column`` for one value for each element of a row, ``row`` for one for each row:
            of what results are multiplied by, and of what is added then.
    """
    shapes = {"column": (size,), "row": (rows,)}
    more = {f"f{i}": (shapes[kind], "float32") for i, kind in enumerate(factors)}
    buffers = {"x": ((rows, size), "float32"), **more, "y": ((rows, size), "float32")}

    def body(x: Buffer, *rest: Buffer) -> None:
        *given, y = rest
        with loop(rows, rows * size >= PARALLEL_ABOVE and rows > 1) as row:
            zero = T.float32(0)
            total = (
                folded(cpu, size, 0.0, _add, lambda at, n: load(x, [row, at], n))
                if centred
                else zero
            )
            mean = scalar(total / T.float32(size))

            def away(at: Expr, width: int) -> Expr:
                value = load(x, [row, at], width)
                return value - splat(T.BufferLoad(mean, [0]), width) if centred else value

            def square(at: Expr, width: int) -> Expr:
                # Kept in the result's place: read twice, it is taken away once.
                store(y, [row, at], away(at, width), width)
                return load(y, [row, at], width) * load(y, [row, at], width)

            squares = folded(cpu, size, 0.0, _add, square)
            variance = squares / T.float32(size) + T.float32(epsilon)
            inverse = scalar(T.float32(1) / tirx.sqrt(variance))

            def write(at: Expr, width: int) -> None:
                value = load(y, [row, at], width) * splat(T.BufferLoad(inverse, [0]), width)
                for i, (kind, buffer) in enumerate(zip(factors, given, strict=True)):
                    if kind == "column":
                        other = load(buffer, [at], width)
                    else:
                        other = splat(T.BufferLoad(buffer, [row]), width)
                    value = value + other if i else value * other
                store(y, [row, at], value, width)

            sweep(cpu, size, write)

    return function("normalised", buffers, body)
