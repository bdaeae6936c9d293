"""What language models do to rows between their products.

The root mean square norm with its result in 8 bits, rotary positions, the gate of a feed-forward
layer, softmax. Each reads its input once or twice and writes one result; rows may have any length,
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

_FULL = 127
_LEAST = 1e-35
"""Below it, 127 over a value need not be a number."""
_LARGEST = 3.4028234e38


def rms_norm_int8(
    cpu: KernelCpu,
    rows: int,
    size: int,
    block: int = 0,
    epsilon: float = 1e-6,
    parallel: bool = False,
) -> tirx.PrimFunc:
    """``x / sqrt(mean(x**2) + epsilon) * w`` in 8 bits with a scale for each block of a row.

    The kernel takes ``x`` (rows, size), ``w`` (size), ``q`` (int8, rows, size) and ``s`` (float32,
    rows, blocks); the result is ``q * s``. A row that holds infinities or NaN gets scales of NaN.

    Args:
        cpu: that it is for.
        rows: Rows of the input.
        size: Size of a row.
        block: elements that share a scale; the last block may be shorter. 0 is the whole row.
        epsilon: added to the mean.
        parallel: rows are shared out among threads.

    Raises:
        ValueError: a count is none.
    """
    _counts(rows=rows, size=size, block=block or size)
    step = min(block or size, size)
    starts = range(0, size, step)
    buffers = {
        "x": ((rows, size), "float32"),
        "w": ((size,), "float32"),
        "q": ((rows, size), "int8"),
        "s": ((rows, len(starts)), "float32"),
    }

    def body(x: Buffer, w: Buffer, q: Buffer, s: Buffer) -> None:
        with loop(rows, parallel) as row:
            squares = folded(cpu, size, 0.0, _add, lambda at, n: _square(load(x, [row, at], n)))
            factor = scalar(
                T.float32(1) / tirx.sqrt(squares / T.float32(size) + T.float32(epsilon))
            )

            def normed(at: Expr, width: int) -> Expr:
                scaled = load(x, [row, at], width) * splat(T.BufferLoad(factor, [0]), width)
                return scaled * load(w, [at], width)

            def rounded(start: Expr, index: Expr, count: int) -> None:
                largest = folded(cpu, count, 0.0, _max, lambda at, n: _size(normed(start + at, n)))
                inverse = scalar(
                    tirx.Select(
                        largest > T.float32(_LEAST), T.float32(_FULL) / largest, T.float32(0)
                    )
                )
                wrong = tirx.Or(squares > T.float32(_LARGEST), math.is_nan(squares))
                nan = tirx.const(float("nan"), "float32")
                T.buffer_store(s, tirx.Select(wrong, nan, largest / T.float32(_FULL)), [row, index])

                def write(at: Expr, width: int) -> None:
                    value = normed(start + at, width) * splat(T.BufferLoad(inverse, [0]), width)
                    store(q, [row, start + at], _byte(value, width), width)

                sweep(cpu, count, write)

            whole = size // step
            with T.serial(whole) as index:
                rounded(index * step, index, step)
            if size % step:
                rounded(T.int32(whole * step), T.int32(whole), size % step)

    return function("rms_norm_int8", buffers, body)


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


def silu_mul(
    cpu: KernelCpu, rows: int, size: int, *, joined: bool = False, parallel: bool = False
) -> tirx.PrimFunc:
    """``g * sigmoid(g) * u``: the gate of a feed-forward layer.

    The kernel takes ``g`` and ``u`` (rows, size) and ``y``; ``joined``, one input (rows, 2 * size)
    that holds the gates before the others, as one product for both gives it.

    Raises:
        ValueError: a count is none.
    """
    _counts(rows=rows, size=size)
    given = {"gu": 2 * size} if joined else {"g": size, "u": size}
    buffers = {name: ((rows, n), "float32") for name, n in {**given, "y": size}.items()}

    def body(*made: Buffer) -> None:
        gates, others, y = made[0], made[-2], made[-1]
        skip = size if joined else 0
        with loop(rows, parallel) as row:

            def write(at: Expr, width: int) -> None:
                gate, other = load(gates, [row, at], width), load(others, [row, skip + at], width)
                value = math.named(gate, lambda g: g * math.sigmoid(g) * other)
                store(y, [row, at], value, width)

            sweep(cpu, size, write)

    return function("silu_mul", buffers, body)


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


def _square(x: Expr) -> Expr:
    return math.named(x, lambda v: v * v)


def _size(x: Expr) -> Expr:
    return math.named(x, lambda v: tirx.Max(v, -v))


def _byte(value: Expr, width: int) -> Expr:
    """Round to the nearest of -127 to 127; also what is no number becomes one of them."""
    full = splat(T.float32(_FULL), width)
    held = tirx.Max(tirx.Min(tirx.nearbyint(value), full), -full)
    kinds = [k if width == 1 else f"{k}x{width}" for k in ("int32", "int8")]
    return tirx.Cast(kinds[1], tirx.Cast(kinds[0], held))
