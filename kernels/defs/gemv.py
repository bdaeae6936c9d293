"""A matrix of 4-bit or 8-bit integers, scaled by blocks, times one vector or a few.

Such a product reads each weight once, so memory sets its pace. Rows stand side by side: each lane
sums one row, four weights at an instruction, and nothing is added across lanes. The vectors are
rounded to 8 bits by blocks of 32 as they come in, with a scale for each block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, function, load, loop, splat, store
from edgeinfer.types import Array

BLOCK = 32
"""Elements of a vector that share a scale; weights that do are a multiple of it."""

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
    """Lay scales (N, K / block) out as (N / rows, K / block, rows)."""
    n, blocks = scales.shape
    return np.ascontiguousarray(scales.reshape(n // dot.rows, dot.rows, blocks).transpose(0, 2, 1))


def gemv_int4(
    dot: Dot, n: int, k: int, block: int = BLOCK, vectors: int = 1, parallel: bool = True
) -> tirx.PrimFunc:
    """``y = x @ ((q - 8) * scale).T`` for nibbles laid out by ``pack_int4``.

    The kernel takes ``w``, ``s`` (float16, laid out by ``pack_scales``), ``x`` (float32, (vectors,
    K)) and ``y`` (float32, (vectors, N)).

    Args:
        dot: of the CPU.
        n: rows, a multiple of ``dot.rows``.
        k: columns, a multiple of the block.
        block: weights that share a scale: 32, 64 or 128.
        vectors: that are multiplied at once, each weight being read once for all.
        parallel: rows are shared out among threads.

    Raises:
        ValueError: a size is no such multiple.
    """
    return _gemv(dot, n, k, 4, block, vectors, parallel)


def gemv_int8(
    dot: Dot, n: int, k: int, block: int = BLOCK, vectors: int = 1, parallel: bool = True
) -> tirx.PrimFunc:
    """``y = x @ (q * scale).T`` for bytes laid out by ``pack_int8``; otherwise as ``gemv_int4``."""
    return _gemv(dot, n, k, 8, block, vectors, parallel)


def _gemv(
    dot: Dot, n: int, k: int, bits: int, block: int, columns: int, parallel: bool
) -> tirx.PrimFunc:
    if n % dot.rows or block % BLOCK or k % block:
        raise ValueError(
            f"({n}, {k}): rows by {dot.rows} and columns by {block}, a multiple of {BLOCK}"
        )
    groups, blocks, inside = k // BLOCK, n // dot.rows, block // BLOCK
    kind = "uint8" if bits == 4 else "int8"
    buffers = {
        "w": ((blocks, groups, bits, dot.rows * 4), kind),
        "s": ((blocks, k // block, dot.rows), "float16"),
        "x": ((columns, k), "float32"),
        "y": ((columns, n), "float32"),
    }
    # Threads take whole runs of rows; short ones even out what else the machine does.
    share = next((c for c in (8, 4, 2) if blocks % c == 0 and blocks // c >= 8), 1)

    def body(w: Buffer, s: Buffer, x: Buffer, y: Buffer) -> None:
        rounded = Rounded(
            T.alloc_buffer((columns, groups, 8), "int32"),
            T.alloc_buffer((columns, groups), "float32"),
            T.alloc_buffer((columns, groups), "int32"),
        )
        for column in range(columns):
            _round(x, rounded, column, groups, _shift(dot, bits))
        with loop(blocks // share, parallel) as outer, T.serial(share) as inner:
            at = outer * share + inner
            totals = [_zeros(dot.rows) for _ in range(columns)]
            with T.serial(k // block) as g:
                scale = tirx.Cast(f"float32x{dot.rows}", load(s, [at, g, 0], dot.rows))
                sums = totals if inside == 1 else [_zeros(dot.rows) for _ in range(columns)]
                with T.serial(inside) as i:
                    part = g * inside + i
                    weights = _weights(dot, bits, w, at, part)
                    for column, total in enumerate(sums):
                        whole = _block(dot, bits, weights, rounded, column, part)
                        factor = splat(T.BufferLoad(rounded.scales, [column, part]), dot.rows)
                        factor = scale * factor if inside == 1 else factor
                        value = tirx.Cast(f"float32x{dot.rows}", whole) * factor
                        store(total, [0], load(total, [0], dot.rows) + value, dot.rows)
                if inside > 1:
                    for total, one in zip(totals, sums, strict=True):
                        value = load(one, [0], dot.rows) * scale
                        store(total, [0], load(total, [0], dot.rows) + value, dot.rows)
            for column, total in enumerate(totals):
                store(y, [column, at * dot.rows], load(total, [0], dot.rows), dot.rows)

    return function(f"gemv_int{bits}", buffers, body)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Vectors in 8 bits.

    Attributes:
        words: four neighbouring elements each; (vectors, K / 32, 8).
        scales: of the blocks; (vectors, K / 32).
        starts: what a sum over a block begins with, for weights that were moved.
    """

    words: Buffer
    scales: Buffer
    starts: Buffer


def _zeros(rows: int) -> Buffer:
    made = T.alloc_buffer((rows,), "float32", scope="local")
    store(made, [0], splat(T.float32(0), rows), rows)
    return made


def _shift(dot: Dot, bits: int) -> int:
    """What each weight was moved by, to be taken off with the sum of the vector's block."""
    if dot.name == "sdot":
        return 0
    return _ZERO if bits == 4 else 0


def _round(x: Buffer, into: Rounded, column: int, groups: int, shift: int) -> None:
    """Round a vector by blocks; four neighbours become one 32-bit number."""
    largest = T.alloc_buffer((1,), "float32", scope="local")
    total = T.alloc_buffer((1,), "int32", scope="local")
    with T.serial(groups) as g:
        T.buffer_store(largest, T.float32(0), [0])
        with T.serial(BLOCK) as i:
            size = tirx.abs(T.BufferLoad(x, [column, g * BLOCK + i]))
            T.buffer_store(largest, tirx.Max(T.BufferLoad(largest, [0]), size), [0])
        T.buffer_store(into.scales, T.BufferLoad(largest, [0]) / T.float32(127), [column, g])
        T.buffer_store(total, T.int32(0), [0])
        with T.serial(8) as j:
            inverse = tirx.Select(
                T.BufferLoad(largest, [0]) > T.float32(0),
                T.float32(127) / T.BufferLoad(largest, [0]),
                T.float32(0),
            )
            parts = []
            for b in range(4):
                value = T.BufferLoad(x, [column, g * BLOCK + j * 4 + b]) * inverse
                parts.append(tirx.Cast("int32", tirx.nearbyint(value)))
            T.buffer_store(
                total, T.BufferLoad(total, [0]) + parts[0] + parts[1] + parts[2] + parts[3], [0]
            )
            word = tirx.bitwise_and(parts[0], T.int32(255))
            for b in range(1, 4):
                one = tirx.shift_left(tirx.bitwise_and(parts[b], T.int32(255)), T.int32(8 * b))
                word = tirx.bitwise_or(word, one)
            T.buffer_store(into.words, word, [column, g, j])
        T.buffer_store(into.starts, T.BufferLoad(total, [0]) * T.int32(-shift), [column, g])


def _weights(dot: Dot, bits: int, w: Buffer, at: Expr, g: Expr) -> list[Expr]:
    """One block of all rows, four weights of each row in a vector; in the order of the words."""
    bytes_ = dot.rows * 4
    vectors = [load(w, [at, g, v, 0], bytes_) for v in range(bits)]
    if bits == 8:
        return vectors
    low = [tirx.bitwise_and(v, splat(tirx.const(15, "uint8"), bytes_)) for v in vectors]
    high = [tirx.shift_right(v, splat(tirx.const(4, "uint8"), bytes_)) for v in vectors]
    return low + high


def _block(
    dot: Dot, bits: int, weights: list[Expr], rounded: Rounded, column: int, g: Expr
) -> Expr:
    """The sums of one block of all rows, as 32-bit integers."""
    pairs = []
    for j, weight in enumerate(weights):
        word = splat(T.BufferLoad(rounded.words, [column, g, j]), dot.rows)
        pairs.append((weight, tirx.reinterpret(f"int8x{dot.rows * 4}", word)))
    first = splat(T.BufferLoad(rounded.starts, [column, g]), dot.rows)
    return _SUMS[dot.name](pairs, first, dot.rows, bits)


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
