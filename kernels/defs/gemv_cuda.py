"""A matrix of 4-bit or 8-bit integers, scaled by blocks, times a few vectors, on a CUDA GPU.

Memory sets the pace: each word of weights is read once, by neighbouring threads side by side, and
used for all vectors. A warp has some rows, so that what it reads of the vectors serves them all;
several warps share a row, and their parts meet in shared memory. Vectors stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, load, store
from edgeinfer.types import Array

BLOCK = 32
_WARP = 32
_EXACT = 0x4B000000
"""The float32 8388608, whose last bits hold a small integer: converting takes an or and a sum."""


@dataclass(frozen=True, slots=True)
class Share:
    """Rows of a block of threads, warps that share them, and words that a thread reads at once."""

    rows: int = 4
    warps: int = 4
    wide: int = 1


def pack(q: Array, bits: int) -> Array:
    """Lay weights (N, K), 4-bit ones as 0 to 15, out as words (N, K * bits / 32) of int32.

    Raises:
        ValueError: K is no multiple of 32.
    """
    n, k = q.shape
    if k % BLOCK:
        raise ValueError(f"{k} columns are no multiple of {BLOCK}")
    if bits == 8:
        return np.ascontiguousarray(q.astype(np.int8)).view(np.int32)
    nibbles = q.astype(np.uint32).reshape(n, k // 8, 8)
    words = np.zeros((n, k // 8), np.uint32)
    for place in range(8):
        words |= nibbles[:, :, place] << np.uint32(4 * place)
    return words.view(np.int32)


def gemv(
    n: int, k: int, bits: int = 4, block: int = BLOCK, vectors: int = 1, share: Share | None = None
) -> tirx.PrimFunc:
    """``y = x @ ((q - 8) * scale).T`` for nibbles, ``y = x @ (q * scale).T`` for bytes.

    The kernel takes ``w`` of ``pack``, ``s`` (float16, (N, blocks)), ``x`` (float32, (vectors, K))
    and ``y`` (float32, (vectors, N)).

    Args:
        n: rows.
        k: columns, a multiple of 32.
        bits: 4 or 8.
        block: weights that share a scale: a multiple of 32; the last one of a row may be shorter.
        vectors: that are multiplied at once.
        share: how the work is cut.

    Raises:
        ValueError: a size is none.
    """
    cut = share or Share()
    if bits not in (4, 8) or min(n, k, vectors) < 1 or k % BLOCK or block < 1 or block % BLOCK:
        raise ValueError(f"{bits} bits, {n} by {k}, blocks of {block}, {vectors} vectors")
    threads = cut.warps * _WARP
    if (
        cut.wide not in (1, 2, 4)
        or min(cut.rows, cut.warps) < 1
        or threads > 1024
        or vectors * cut.rows * threads > 12288
    ):
        raise ValueError(f"{cut} for {vectors} vectors")
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        w = T.arg("w", T.Buffer((n, k * bits // 32), "int32"))
        s = T.arg("s", T.Buffer((n, -(-k // block)), "float16"))
        x = T.arg("x", T.Buffer((vectors, k), "float32"))
        y = T.arg("y", T.Buffer((vectors, n), "float32"))
        with (
            T.launch_thread("blockIdx.x", -(-n // cut.rows)) as group,
            T.launch_thread("threadIdx.x", threads) as thread,
        ):
            sums = T.alloc_buffer((vectors * cut.rows,), "float32", scope="local")
            with T.unroll(vectors * cut.rows) as i:
                T.buffer_store(sums, T.float32(0), [i])
            first = group * cut.rows
            _read(w, s, x, sums, (n, k, bits, block, vectors), cut, first, thread)
            _meet(sums, y, (n, vectors), cut, first, thread)
    return builder.get()


def _read(
    w: Buffer,
    s: Buffer,
    x: Buffer,
    sums: Buffer,
    sizes: tuple[int, int, int, int, int],
    cut: Share,
    first: Expr,
    thread: Expr,
) -> None:
    """Sum what one thread reads: words that are as far apart as there are threads."""
    n, k, bits, block, vectors = sizes
    each, threads = 32 // bits, cut.warps * _WARP
    words, own = k // each, each * cut.wide
    part = T.alloc_buffer((vectors * own,), "float32", scope="local")
    held = T.alloc_buffer((cut.wide,), "int32", scope="local")
    with T.serial(-(-words // (threads * cut.wide))) as turn:
        at = (turn * threads + thread) * cut.wide

        def one() -> None:
            for v in range(vectors):
                for e in range(0, own, 4):
                    store(part, [v * own + e], load(x, [v, at * each + e], 4), 4)
            with T.unroll(cut.rows) as r:
                # Rows beyond the end read the last one again, and keep nothing.
                row = tirx.min(first + r, n - 1) if n % cut.rows else first + r
                store(held, [0], load(w, [row, at], cut.wide), cut.wide)
                # Words that are read at once never lie in two blocks: of 32 there are four or more.
                scale = T.bind(T.BufferLoad(s, [row, at * each // block]).astype("float32"))
                for j in range(cut.wide):
                    word = T.bind(T.BufferLoad(held, [j]))
                    weights = [T.bind(_weight(word, e, bits) * scale) for e in range(each)]
                    for v in range(vectors):
                        value = T.BufferLoad(sums, [v * cut.rows + r])
                        for e, weight in enumerate(weights):
                            value = value + T.BufferLoad(part, [v * own + j * each + e]) * weight
                        T.buffer_store(sums, value, [v * cut.rows + r])

        if words % (threads * cut.wide):
            with T.If(at < words), T.Then():
                one()
        else:
            one()


def _weight(word: Expr, place: int, bits: int) -> Expr:
    """One integer of a word, as float32."""
    mask, zero = (15, 8) if bits == 4 else (255, 128)
    moved = tirx.shift_right(word, tirx.const(place * bits, "int32")) if place else word
    if bits == 8:
        # Bytes are signed: 128 more are none below zero.
        moved = tirx.bitwise_xor(moved, tirx.const(128, "int32"))
    low = tirx.bitwise_and(moved, tirx.const(mask, "int32"))
    held = tirx.bitwise_or(low, tirx.const(_EXACT, "int32"))
    return tirx.reinterpret("float32", held) - tirx.const(8388608.0 + zero, "float32")


def _meet(
    sums: Buffer, y: Buffer, sizes: tuple[int, int], cut: Share, first: Expr, thread: Expr
) -> None:
    """Add the threads' parts up in two steps: to one warp, and to one number."""
    n, vectors = sizes
    threads, count = cut.warps * _WARP, vectors * cut.rows
    parts = T.alloc_buffer((count * threads,), "float32", scope="shared")
    few = T.alloc_buffer((count * _WARP,), "float32", scope="shared")
    total = T.alloc_buffer((1,), "float32", scope="local")
    with T.unroll(count) as i:
        T.buffer_store(parts, T.BufferLoad(sums, [i]), [i * threads + thread])
    T.evaluate(T.tvm_storage_sync("shared"))
    with T.serial(-(-count * _WARP // threads)) as turn:
        item = turn * threads + thread
        with T.If(item < count * _WARP), T.Then():
            at = item // _WARP * threads + item % _WARP
            _added(total, parts, at, cut.warps, _WARP)
            T.buffer_store(few, T.BufferLoad(total, [0]), [item])
    T.evaluate(T.tvm_storage_sync("shared"))
    with T.serial(-(-count // threads)) as turn:
        item = turn * threads + thread
        row = first + item % cut.rows
        with T.If(tirx.all(item < count, row < n)), T.Then():
            _added(total, few, item * _WARP, _WARP, 1)
            T.buffer_store(y, T.BufferLoad(total, [0]), [item // cut.rows, row])


def _added(total: Buffer, parts: Buffer, first: Expr, count: int, step: int) -> None:
    T.buffer_store(total, T.float32(0), [0])
    with T.unroll(count) as i:
        part = T.BufferLoad(parts, [first + i * step])
        T.buffer_store(total, T.BufferLoad(total, [0]) + part, [0])
