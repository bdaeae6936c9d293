"""Fourier transforms of real numbers, many at once: each lane of a vector has one of its own.

A transform of n numbers is a complex one of n / 2 and a last step (Sorensen et al., 1987); the
complex one is Stockham's, which puts its results in order by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, load, registers, splat, store
from edgeinfer.media.stages import (
    BLOCK,
    count,
    factors,
    fits,
    possible,
    radices,
    starts,
    starts_behind,
    sums,
)

__all__ = [
    "Complex",
    "Pair",
    "count",
    "factors",
    "fits",
    "kept",
    "possible",
    "radices",
    "starts",
    "transformed",
]

Pair = tuple[Expr, Expr]
"""The real and the imaginary part."""


def transformed(
    size: int, lanes: int, turn: Buffer, read: Callable[[Expr], Expr], write: Callable[..., None]
) -> None:
    """Write the transform of as many frames as there are lanes, in the type of its factors.

    Args:
        size: numbers of a frame, ``possible``.
        lanes: frames.
        turn: the ``factors``.
        read: gives a number of each frame.
        write: takes a frequency and its numbers.
    """
    if not fits(size):
        _summed(size, lanes, turn, read, write)
        return
    half = size // 2
    one, other = (T.alloc_buffer((half * 2 * lanes,), turn.dtype) for _ in range(2))
    with T.serial(size) as i:
        store(one, [i * lanes], read(i), lanes)
    held = Complex((one, other), turn, lanes)
    starts_at = starts(size)
    for radix, start in zip(radices(size), starts_at[:-1], strict=True):
        held.stage(half, radix, start)
    _last_step(half, held, starts_at[-1], write)


def _last_step(half: int, held: Complex, start: int, write: Callable[[Expr, Pair], None]) -> None:
    re, im = held.get(T.int32(0))
    zero = math.constant(0.0, re)
    write(T.int32(0), (re + im, zero))
    write(T.int32(half), (re - im, zero))
    if half > 1:
        with T.serial(half // 2) as i:
            k = i + 1
            low, high = (kept(held.get(i), held.lanes) for i in (k, half - k))
            mean = _times((low[0] + high[0], low[1] - high[1]), 0.5)
            # The odd samples' share, times the last factor.
            a, b = _times((low[1] + high[1], high[0] - low[0]), 0.5)
            cos, sin = held.factor(start + k)
            odd = a * cos - b * sin, a * sin + b * cos
            write(k, _add(mean, odd))
            re, im = _sub(mean, odd)
            write(half - k, (re, -im))


def _summed(
    size: int, lanes: int, turn: Buffer, read: Callable[[Expr], Expr], write: Callable[..., None]
) -> None:
    """Write one whose first stage sums over real numbers."""
    large, half, behind = sums(size)
    starts_at = starts_behind(size)
    parts = size // large
    dtype = turn.dtype
    one, other = (T.alloc_buffer((size * 2 * lanes,), dtype) for _ in range(2))
    both = T.alloc_buffer((half * 2 * lanes,), dtype)
    held = Complex((one, other), turn, lanes)
    with T.serial(parts) as p:
        first = kept((read(p), read(p)), lanes)[0]
        total = registers(lanes, dtype)
        store(total, [0], first, lanes)
        with T.serial(half) as i:
            ends = read(p + (i + 1) * parts), read(p + (large - 1 - i) * parts)
            low, high = kept(ends, lanes)
            store(both, [i * 2 * lanes], low + high, lanes)
            store(both, [(i * 2 + 1) * lanes], low - high, lanes)
            store(total, [0], load(total, [0], lanes) + low + high, lanes)
        zero = splat(tirx.const(0.0, dtype), lanes)
        held.put(large * p, (load(total, [0], lanes), zero))
        full, rest = divmod(half, BLOCK)
        row = starts_at[0] + p * (large - 1) - 1

        def block(index: Expr, wanted: int) -> None:
            found = _sums_of(both, half, index, starts_at[-1], (first, zero), held)
            for r, value in enumerate(found[:wanted]):
                u = index * BLOCK + r + 1
                held.put(large * p + u, held.rotated(value, row + u))
                mirrored = (value[0], -value[1])
                held.put(large * p + large - u, held.rotated(mirrored, row + large - u))

        if full:
            with T.serial(full) as index:
                block(index, BLOCK)
        if rest:
            block(T.int32(full), rest)
    held.begin(parts, large)
    for radix, start in zip(behind, starts_at[1:-1], strict=True):
        held.stage(parts, radix, start)
    with T.serial(size // 2 + 1) as k:
        write(k, held.get(k))


def _sums_of(
    both: Buffer, half: int, index: Expr, waves: int, first: Pair, held: Complex
) -> list[Pair]:
    """A block of results: each element's share is read once for all of them."""
    lanes = held.lanes
    found = [registers(lanes, both.dtype) for _ in range(2 * BLOCK)]
    for i, value in enumerate(found):
        store(value, [0], first[i % 2], lanes)
    with T.serial(half) as i:
        pair = load(both, [i * 2 * lanes], lanes), load(both, [(i * 2 + 1) * lanes], lanes)
        even, odd = kept(pair, lanes)
        for r in range(BLOCK):
            cos, sin = held.factor(waves + (index * half + i) * BLOCK + r)
            for value, share in zip(found[2 * r : 2 * r + 2], (even * cos, odd * sin), strict=True):
                store(value, [0], load(value, [0], lanes) + share, lanes)
    read = [load(value, [0], lanes) for value in found]
    return list(zip(read[::2], read[1::2], strict=True))


class Complex:
    """Complex numbers of all lanes in one buffer, and a second one for what becomes of them."""

    def __init__(self, buffers: tuple[Buffer, Buffer], turn: Buffer, lanes: int) -> None:
        self._now, self._other = buffers
        self._turn, self.lanes = turn, lanes
        self._stride = 1
        self._left = 0

    def get(self, at: Expr) -> Pair:
        """Read a number."""
        first = at * 2 * self.lanes
        return self._load(first), self._load(first + self.lanes)

    def factor(self, at: Expr) -> Pair:
        """Read a factor."""
        return (
            splat(T.BufferLoad(self._turn, [at, 0]), self.lanes),
            splat(T.BufferLoad(self._turn, [at, 1]), self.lanes),
        )

    def begin(self, left: int, stride: int) -> None:
        """Take what was put by a first stage as what is there now."""
        self._now, self._other = self._other, self._now
        self._left, self._stride = left, stride

    def stage(self, size: int, radix: int, start: int) -> None:
        """Do one stage: transforms of ``radix`` numbers each, rotated and put in order."""
        self._left = self._left or size
        parts, stride = self._left // radix, self._stride
        with T.serial(parts) as p, T.serial(stride) as q:
            taken = [kept(self.get(q + stride * (p + t * parts)), self.lanes) for t in range(radix)]
            for u, value in enumerate(_small(taken)):
                done = value if u == 0 else self.rotated(value, start + p * (radix - 1) + u - 1)
                self.put(q + stride * (radix * p + u), done)
        self._now, self._other = self._other, self._now
        self._left, self._stride = parts, stride * radix

    def _load(self, at: Expr) -> Expr:
        return load(self._now, [at], self.lanes)

    def rotated(self, value: Pair, at: Expr) -> Pair:
        """Multiply a number by a factor."""
        (re, im), (cos, sin) = kept(value, self.lanes), self.factor(at)
        return re * cos - im * sin, re * sin + im * cos

    def put(self, at: Expr, value: Pair) -> None:
        """Write a number that the next stage takes."""
        for i, part in enumerate(value):
            store(self._other, [(at * 2 + i) * self.lanes], part, self.lanes)


def kept(value: Pair, lanes: int) -> Pair:
    """Compute numbers once where they are used several times."""
    found = []
    for part in value:
        held = registers(lanes, math.element_type(part).partition("x")[0])
        store(held, [0], part, lanes)
        found.append(load(held, [0], lanes))
    return found[0], found[1]


def _small(x: Sequence[Pair]) -> list[Pair]:
    """Transform two to seven numbers."""
    count = len(x)
    if count == 2:
        return [_add(x[0], x[1]), _sub(x[0], x[1])]
    if count == 4:
        even, odd = (_add(x[0], x[2]), _sub(x[0], x[2])), (_add(x[1], x[3]), _sub(x[1], x[3]))
        # Times -i.
        rotated = (odd[1][1], -odd[1][0])
        return [
            _add(even[0], odd[0]),
            _add(even[1], rotated),
            _sub(even[0], odd[0]),
            _sub(even[1], rotated),
        ]
    # Pairs from both ends share their factors.
    halves = range(1, (count + 1) // 2)
    sums, gaps = [_add(x[i], x[-i]) for i in halves], [_sub(x[i], x[-i]) for i in halves]
    found = [x[0]] * count
    for s in sums:
        found[0] = _add(found[0], s)
    for u in halves:
        even, odd = x[0], _times(x[0], 0.0)
        for i, s, d in zip(halves, sums, gaps, strict=True):
            angle = 2 * np.pi * i * u / count
            even = _add(even, _times(s, np.cos(angle)))
            odd = _add(odd, _times((d[1], -d[0]), np.sin(angle)))
        found[u], found[count - u] = _add(even, odd), _sub(even, odd)
    return found


def _add(a: Pair, b: Pair) -> Pair:
    return a[0] + b[0], a[1] + b[1]


def _sub(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0], a[1] - b[1]


def _times(a: Pair, factor: float) -> Pair:
    return a[0] * math.constant(factor, a[0]), a[1] * math.constant(factor, a[1])
