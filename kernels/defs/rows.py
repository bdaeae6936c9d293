"""What language models do to rows between their products: rotary positions and softmax.

Each reads its input once or twice and writes one result; rows may have any length,
and lie anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    function,
    load,
    loop,
    pieces,
    registers,
    splat,
    store,
)
from edgeinfer.kernels.defs.fold import folded


def rope(
    cpu: KernelCpu,
    tokens: int,
    heads: int,
    size: int,
    limit: int,
    *,
    rotated: int = 0,
    neighbours: bool = False,
    parallel: bool = False,
) -> tirx.PrimFunc:
    """Rotary positions: pairs of elements are rotated by an angle that grows with the position.

    The kernel takes ``x`` (tokens, heads, size), ``cos`` and ``sin`` (limit, rotated / 2), ``at``
    (int32, tokens: rows of the tables, below ``limit``) and ``y``, of the input's shape.

    Args:
        cpu: that it is for.
        tokens: Tokens of the input.
        heads: Heads of each token.
        size: Size of a head.
        limit: positions that the tables hold.
        rotated: elements of a head that are rotated, from the first; 0 is all. The rest is copied.
        neighbours: pairs are elements ``2i`` and ``2i + 1``, not ``i`` and ``i + rotated / 2``.
        parallel: tokens are shared out among threads.

    Raises:
        ValueError: a count is none, or an odd number is to be rotated.
    """
    rotated = rotated or size
    _counts(tokens=tokens, heads=heads, size=size, limit=limit)
    if rotated < 0 or rotated % 2 or rotated > size:
        raise ValueError(f"{rotated} of {size} elements: pairs of them are rotated")
    half = rotated // 2
    buffers = {
        "x": ((tokens, heads, size), "float32"),
        "cos": ((limit, half), "float32"),
        "sin": ((limit, half), "float32"),
        "at": ((tokens,), "int32"),
        "y": ((tokens, heads, size), "float32"),
    }

    def body(x: Buffer, cos: Buffer, sin: Buffer, at: Buffer, y: Buffer) -> None:
        with loop(tokens, parallel) as token, T.serial(heads) as head:
            place = T.BufferLoad(at, [token])

            def pair(i: Expr, width: int) -> None:
                one, two = (2 * i, 2 * i + 1) if neighbours else (i, i + half)
                stride = 2 if neighbours else 1
                first, second = (_strided(x, token, head, p, stride, width) for p in (one, two))
                c, s = load(cos, [place, i], width), load(sin, [place, i], width)
                for p, value in ((one, first * c - second * s), (two, second * c + first * s)):
                    last = p if width == 1 else T.ramp(p, stride, width)
                    T.buffer_store(y, value, [token, head, last])

            sweep(cpu, half, pair)
            sweep(
                cpu,
                size - rotated,
                lambda i, n: store(
                    y, [token, head, rotated + i], load(x, [token, head, rotated + i], n), n
                ),
            )

    return function("rope", buffers, body)


def softmax(
    cpu: KernelCpu, rows: int, size: int, scale: float = 1.0, parallel: bool = False
) -> tirx.PrimFunc:
    """``exp(x * scale)`` over its sum along each row; takes ``x`` and ``y`` (rows, size).

    Raises:
        ValueError: a count is none.
    """
    _counts(rows=rows, size=size)
    buffers = {"x": ((rows, size), "float32"), "y": ((rows, size), "float32")}

    def body(x: Buffer, y: Buffer) -> None:
        with loop(rows, parallel) as row:

            def scaled(at: Expr, width: int) -> Expr:
                return load(x, [row, at], width) * splat(T.float32(scale), width)

            largest = folded(cpu, size, -float("inf"), _max, scaled)

            def raised(at: Expr, width: int) -> Expr:
                store(
                    y, [row, at], math.exp_to_one(scaled(at, width) - splat(largest, width)), width
                )
                return load(y, [row, at], width)

            total = folded(cpu, size, 0.0, _add, raised)
            inverse = scalar(T.float32(1) / total)

            def write(at: Expr, width: int) -> None:
                factor = splat(T.BufferLoad(inverse, [0]), width)
                store(y, [row, at], load(y, [row, at], width) * factor, width)

            sweep(cpu, size, write)

    return function("softmax", buffers, body)


def _counts(**given: int) -> None:
    for name, count in given.items():
        if count <= 0:
            raise ValueError(f"{name} {count}: a count")


def sweep(cpu: KernelCpu, count: int, step: Callable[[Expr, int], None]) -> None:
    """Go along a row by whole vectors, then by the narrower ones of its end."""
    whole = count // cpu.lanes
    if whole:
        with T.serial(whole) as i:
            step(i * cpu.lanes, cpu.lanes)
    for piece in pieces(count % cpu.lanes, cpu.lanes):
        step(T.int32(whole * cpu.lanes + piece.start), piece.width)


def scalar(value: Expr) -> Buffer:
    """Compute a number once, outside the loops that use it."""
    held = registers(1)
    T.buffer_store(held, value, [0])
    return held


def _strided(x: Buffer, token: Expr, head: Expr, at: Expr, stride: int, width: int) -> Expr:
    return T.BufferLoad(x, [token, head, at if width == 1 else T.ramp(at, stride, width)])


def _add(a: Expr, b: Expr) -> Expr:
    return a + b


def _max(a: Expr, b: Expr) -> Expr:
    return tirx.Max(a, b)
