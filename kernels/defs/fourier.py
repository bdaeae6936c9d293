"""Fourier transforms of real numbers, many at once: each lane of a vector has one of its own.

A transform of n numbers is a complex one of n / 2 and a last step (Sorensen et al., 1987); the
complex one is Stockham's, which puts its results in order by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, load, registers, splat, store
from edgeinfer.media.stages import factors, fits, radices, starts

__all__ = ["Complex", "Pair", "factors", "fits", "kept", "radices", "starts", "transformed"]

Pair = tuple[Expr, Expr]
"""The real and the imaginary part."""


def transformed(
    size: int, lanes: int, turn: Buffer, read: Callable[[Expr], Expr], write: Callable[..., None]
) -> None:
    """Write the transform of as many frames as there are lanes, in the type of its factors.

    Args:
        size: numbers of a frame, even, of small factors.
        lanes: frames.
        turn: the ``factors``.
        read: gives a number of each frame.
        write: takes a frequency and its numbers.
    """
    half = size // 2
    one, other = (T.alloc_buffer((half * 2 * lanes,), turn.dtype) for _ in range(2))
    with T.serial(size) as i:
        store(one, [i * lanes], read(i), lanes)
    held = Complex((one, other), turn, lanes)
    places = starts(size)
    for radix, start in zip(radices(size), places[:-1], strict=True):
        held.stage(half, radix, start)
    _last_step(half, held, places[-1], write)


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

    def stage(self, size: int, radix: int, start: int) -> None:
        """Do one stage: transforms of ``radix`` numbers each, turned and put in order."""
        self._left = self._left or size
        parts, stride = self._left // radix, self._stride
        with T.serial(parts) as p, T.serial(stride) as q:
            taken = [kept(self.get(q + stride * (p + t * parts)), self.lanes) for t in range(radix)]
            for u, value in enumerate(_small(taken)):
                done = value if u == 0 else self._turned(value, start + p * (radix - 1) + u - 1)
                self._put(q + stride * (radix * p + u), done)
        self._now, self._other = self._other, self._now
        self._left, self._stride = parts, stride * radix

    def _load(self, at: Expr) -> Expr:
        return load(self._now, [at], self.lanes)

    def _turned(self, value: Pair, at: Expr) -> Pair:
        (re, im), (cos, sin) = kept(value, self.lanes), self.factor(at)
        return re * cos - im * sin, re * sin + im * cos

    def _put(self, at: Expr, value: Pair) -> None:
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
        turned = (odd[1][1], -odd[1][0])
        return [
            _add(even[0], odd[0]),
            _add(even[1], turned),
            _sub(even[0], odd[0]),
            _sub(even[1], turned),
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
