"""A matrix of 4-bit or 8-bit integers, scaled by blocks of 32 or by rows, times a vector.

Such a product reads each weight once, so memory sets its pace. Rows stand side by side: each lane
sums one row, four weights at an instruction, and nothing is added across lanes. The vector is
rounded to 8 bits by blocks of 32 as it comes in, with a scale for each block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, function, loop
from edgeinfer.types import Array

BLOCK = 32
"""Weights that share a scale, and elements of the vector that do."""

_ZERO = 8
"""What the nibble of a zero weight holds."""


@dataclass(frozen=True, slots=True)
class Dot:
    """How a CPU multiplies bytes.

    Attributes:
        name: ``vnni512``, ``avx2`` or ``sdot``.
        rows: rows side by side, one in each 32-bit lane of a vector.
    """

    name: str
    rows: int


DOTS = {
    "x86-64-v4-vnni": Dot("vnni512", 16),
    "x86-64-v3": Dot("avx2", 8),
    "x86-64-v4": Dot("avx2", 8),
    "cortex-a76": Dot("sdot", 4),
}
"""By machine."""


def pack_int4(q: Array, dot: Dot) -> Array:
    """Lay nibbles (N, K), 0 to 15, out as (N / rows, K / 32, 4, rows * 4) bytes.

    Each byte holds weights ``k`` and ``k + 16`` of a block; four bytes of a row lie side by side.
    """
    n, k = q.shape
    parts = q.reshape(n // dot.rows, dot.rows, k // BLOCK, 2, 4, 4)
    both = parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)
    laid = both.transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(laid.reshape(n // dot.rows, k // BLOCK, 4, dot.rows * 4))


def pack_int8(q: Array, dot: Dot) -> Array:
    """Lay bytes (N, K) out as (N / rows, K / 32, 8, rows * 4).

    They become unsigned for ``vnni512`` and ``avx2``, whose weights count from -128.
    """
    n, k = q.shape
    parts = q.reshape(n // dot.rows, dot.rows, k // BLOCK, 8, 4)
    laid = parts.transpose(0, 2, 3, 1, 4).reshape(n // dot.rows, k // BLOCK, 8, dot.rows * 4)
    return np.ascontiguousarray(laid)


def pack_scales(scales: Array, dot: Dot) -> Array:
    """Lay scales (N, K / 32) out as (N / rows, K / 32, rows)."""
    n, blocks = scales.shape
    return np.ascontiguousarray(scales.reshape(n // dot.rows, dot.rows, blocks).transpose(0, 2, 1))


def gemv_int4(dot: Dot, n: int, k: int, parallel: bool = True) -> tirx.PrimFunc:
    """``y = (q - 8) * scale @ x`` for nibbles laid out by ``pack_int4``.

    Args:
        dot: of the CPU.
        n: rows, a multiple of ``dot.rows``.
        k: columns, a multiple of 32.
        parallel: rows are shared out among threads.
    """
    return _gemv(dot, n, k, 4, parallel)


def gemv_int8(dot: Dot, n: int, k: int, parallel: bool = True) -> tirx.PrimFunc:
    """``y = q * scale @ x`` for bytes laid out by ``pack_int8``, scales by blocks of 32."""
    return _gemv(dot, n, k, 8, parallel)


def _gemv(dot: Dot, n: int, k: int, bits: int, parallel: bool) -> tirx.PrimFunc:
    if n % dot.rows or k % BLOCK:
        raise ValueError(f"({n}, {k}): rows by {dot.rows} and columns by {BLOCK}")
    groups, blocks = k // BLOCK, n // dot.rows
    vectors = 4 if bits == 4 else 8
    kind = "uint8" if bits == 4 else "int8"
    buffers = {
        "w": ((blocks, groups, vectors, dot.rows * 4), kind),
        "s": ((blocks, groups, dot.rows), "float16"),
        "x": ((k,), "float32"),
        "y": ((n,), "float32"),
    }
    # Threads take whole runs of rows; short ones even out what else the machine does.
    share = next((c for c in (8, 4, 2) if blocks % c == 0 and blocks // c >= 8), 1)

    def body(w: Buffer, s: Buffer, x: Buffer, y: Buffer) -> None:
        rounded = T.alloc_buffer((groups, 8), "int32")
        scales = T.alloc_buffer((groups,), "float32")
        start = T.alloc_buffer((groups,), "int32")
        _round(x, rounded, scales, start, groups, _shift(dot, bits))
        with loop(blocks // share, parallel) as outer, T.serial(share) as inner:
            at = outer * share + inner
            total = T.alloc_buffer((dot.rows,), "float32", scope="local")
            every = T.ramp(0, 1, dot.rows)
            T.buffer_store(total, T.broadcast(T.float32(0), dot.rows), [every])
            with T.serial(groups) as g:
                whole = _block(dot, bits, w, rounded, start, at, g)
                scale = T.BufferLoad(s, [at, g, T.ramp(0, 1, dot.rows)])
                factor = tirx.Cast(f"float32x{dot.rows}", scale) * T.broadcast(
                    T.BufferLoad(scales, [g]), dot.rows
                )
                value = tirx.Cast(f"float32x{dot.rows}", whole) * factor
                T.buffer_store(total, T.BufferLoad(total, [every]) + value, [every])
            place = T.ramp(at * dot.rows, 1, dot.rows)
            T.buffer_store(y, T.BufferLoad(total, [every]), [place])

    return function(f"gemv_int{bits}", buffers, body)


def _shift(dot: Dot, bits: int) -> int:
    """What each weight was moved by, to be taken off with the sum of the vector's block."""
    if dot.name == "sdot":
        return 0
    return _ZERO if bits == 4 else 0


def _round(
    x: Buffer, rounded: Buffer, scales: Buffer, start: Buffer, groups: int, shift: int
) -> None:
    """Round the vector by blocks; four neighbours become one 32-bit number."""
    largest = T.alloc_buffer((1,), "float32", scope="local")
    total = T.alloc_buffer((1,), "int32", scope="local")
    with T.serial(groups) as g:
        T.buffer_store(largest, T.float32(0), [0])
        with T.serial(BLOCK) as i:
            size = tirx.abs(T.BufferLoad(x, [g * BLOCK + i]))
            T.buffer_store(largest, tirx.Max(T.BufferLoad(largest, [0]), size), [0])
        T.buffer_store(scales, T.BufferLoad(largest, [0]) / T.float32(127), [g])
        T.buffer_store(total, T.int32(0), [0])
        with T.serial(8) as j:
            inverse = tirx.Select(
                T.BufferLoad(largest, [0]) > T.float32(0),
                T.float32(127) / T.BufferLoad(largest, [0]),
                T.float32(0),
            )
            parts = []
            for b in range(4):
                value = T.BufferLoad(x, [g * BLOCK + j * 4 + b]) * inverse
                parts.append(tirx.Cast("int32", tirx.nearbyint(value)))
            T.buffer_store(
                total, T.BufferLoad(total, [0]) + parts[0] + parts[1] + parts[2] + parts[3], [0]
            )
            word = tirx.bitwise_and(parts[0], T.int32(255))
            for b in range(1, 4):
                one = tirx.shift_left(tirx.bitwise_and(parts[b], T.int32(255)), T.int32(8 * b))
                word = tirx.bitwise_or(word, one)
            T.buffer_store(rounded, word, [g, j])
        T.buffer_store(start, T.BufferLoad(total, [0]) * T.int32(-shift), [g])


def _block(
    dot: Dot, bits: int, w: Buffer, rounded: Buffer, start: Buffer, at: Expr, g: Expr
) -> Expr:
    """The sums of one block of all rows, as 32-bit integers."""
    bytes_ = dot.rows * 4
    kind = "uint8" if bits == 4 else "int8"
    vectors = [
        T.BufferLoad(w, [at, g, v, T.ramp(0, 1, bytes_)]) for v in range(4 if bits == 4 else 8)
    ]
    pairs: list[tuple[Expr, Expr]] = []
    for v, vector in enumerate(vectors):
        if bits == 8:
            pairs.append((vector, _spread(dot, rounded, g, v)))
            continue
        low = tirx.bitwise_and(vector, T.broadcast(tirx.const(15, kind), bytes_))
        high = tirx.shift_right(vector, T.broadcast(tirx.const(4, kind), bytes_))
        pairs += [(low, _spread(dot, rounded, g, v)), (high, _spread(dot, rounded, g, v + 4))]
    first = T.broadcast(T.BufferLoad(start, [g]), dot.rows)
    return _SUMS[dot.name](pairs, first, dot.rows, bits)


def _spread(dot: Dot, rounded: Buffer, g: Expr, j: int) -> Expr:
    """Four elements of the vector, in every lane."""
    word = T.broadcast(T.BufferLoad(rounded, [g, j]), dot.rows)
    return tirx.reinterpret(f"int8x{dot.rows * 4}", word)


def _vnni512(pairs: list[tuple[Expr, Expr]], first: Expr, rows: int, bits: int) -> Expr:
    whole = first
    for weight, value in pairs:
        left, right = weight, value
        if bits == 8:
            # One factor has to be unsigned: signs move from the weight to the vector.
            left, right = _signs_moved(weight, value, rows)
        whole = T.call_llvm_pure_intrin(
            f"int32x{rows}",
            "llvm.x86.avx512.vpdpbusd.512",
            whole,
            left,
            right,
        )
    return whole


def _signs_moved(weight: Expr, value: Expr, rows: int) -> tuple[Expr, Expr]:
    zero = T.broadcast(tirx.const(0, "int8"), rows * 4)
    below = weight < zero
    return tirx.Select(below, zero - weight, weight), tirx.Select(below, zero - value, value)


def _avx2(pairs: list[tuple[Expr, Expr]], first: Expr, rows: int, bits: int) -> Expr:
    """Pairs of products in 16 bits: eight of 15 times 127 twice still fit; one of 128 does."""
    halves = f"int16x{rows * 2}"
    ones = T.broadcast(tirx.const(1, "int16"), rows * 2)
    sums: list[Expr] = []
    for weight, value in pairs:
        left, right = weight, value
        if bits == 8:
            left, right = _signs_moved(weight, value, rows)
        sums.append(T.call_llvm_pure_intrin(halves, "llvm.x86.avx2.pmadd.ub.sw", left, right))
    if bits == 4:
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    whole = first
    for one in sums:
        wide = T.call_llvm_pure_intrin(f"int32x{rows}", "llvm.x86.avx2.pmadd.wd", one, ones)
        whole = whole + wide
    return whole


def _sdot(pairs: list[tuple[Expr, Expr]], first: Expr, rows: int, bits: int) -> Expr:
    whole = first
    for weight, value in pairs:
        signed = weight
        if bits == 4:
            signed = tirx.reinterpret(f"int8x{rows * 4}", weight) - T.broadcast(
                tirx.const(_ZERO, "int8"), rows * 4
            )
        whole = T.call_llvm_pure_intrin(
            f"int32x{rows}", "llvm.aarch64.neon.sdot.v4i32.v16i8", whole, signed, value
        )
    return whole


_SUMS = {"vnni512": _vnni512, "avx2": _avx2, "sdot": _sdot}
