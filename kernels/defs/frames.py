"""Fourier transforms of the overlapping frames of a recording, laid out as operators want them."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import fourier
from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    Piece,
    function,
    loop,
    pieces,
    splat,
)
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_PARALLEL_ABOVE = 1 << 17
"""Samples of all frames from which a second thread is worth its start."""


@dataclass(frozen=True, slots=True)
class Frames:
    """What is transformed, and where the results go.

    Attributes:
        batch: sounds.
        samples: Samples of one.
        size: samples of a frame.
        hop: samples from one frame to the next.
        parts: first channel, 0 for real and 1 for imaginary parts, and sign, of each run of
            channels that holds one part of all frequencies. Empty for the layout (batch, frames,
            frequencies, 2), else it is (batch, channels, frames).
    """

    batch: int
    samples: int
    size: int
    hop: int
    parts: tuple[tuple[int, int, int], ...] = ()

    @property
    def count(self) -> int:
        """Frames."""
        return (self.samples - self.size) // self.hop + 1

    @property
    def bins(self) -> int:
        """Frequencies."""
        return self.size // 2 + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        if self.parts:
            return self.batch, len(self.parts) * self.bins, self.count
        return self.batch, self.count, self.bins, 2


def transform(cpu: KernelCpu, frames: Frames) -> tirx.PrimFunc:
    """Build the kernel: takes audio (batch, samples), the window (size), ``fourier.factors``.

    The size must be ``fourier.possible``.
    """
    factors = fourier.count(frames.size)
    buffers = {
        "sound": ((frames.batch, frames.samples), "float32"),
        "window": ((frames.size,), "float32"),
        "turn": ((factors, 2), "float32"),
        "out": (frames.shape, "float32"),
    }

    def body(sound: Buffer, window: Buffer, turn: Buffer, out: Buffer) -> None:
        def group(n: Expr, first: Expr, count: int) -> None:
            lanes = 1 << (count - 1).bit_length()
            # Lanes beyond the last frame do its work again.
            last = T.int32(frames.count - 1)
            frame = first
            if lanes > 1:
                frame = tirx.Min(T.ramp(first, 1, lanes), T.broadcast(last, lanes))

            def read(i: Expr) -> Expr:
                value = T.BufferLoad(sound, [n, frame * frames.hop + i])
                return value * splat(T.BufferLoad(window, [i]), lanes)

            def write(at: Expr, value: fourier.Pair) -> None:
                made = fourier.kept(value, lanes)
                if frames.parts:
                    for channel, part, sign in frames.parts:
                        done = made[part] if sign > 0 else -made[part]
                        _along(out, [n, channel + at], first, done, pieces(count, lanes), lanes)
                else:
                    for lane in range(count):
                        for part in range(2):
                            one = _part(made[part], Piece(lane, 1), lanes)
                            T.buffer_store(out, one, [n, first + lane, at, part])

            fourier.transformed(frames.size, lanes, turn, read, write)

        with T.serial(frames.batch) as n:
            full, rest = divmod(frames.count, cpu.lanes)
            if full:
                work = frames.count * frames.size
                with loop(full, work >= _PARALLEL_ABOVE and full > 1) as g:
                    group(n, g * cpu.lanes, cpu.lanes)
            if rest:
                group(n, T.int32(full * cpu.lanes), rest)

    return function("frames", buffers, body)


def _along(
    out: Buffer, row: list[Expr], first: Expr, value: Expr, parts: list[Piece], lanes: int
) -> None:
    for p in parts:
        place = first + p.start
        last = place if p.width == 1 else T.ramp(place, 1, p.width)
        T.buffer_store(out, _part(value, p, lanes), [*row, last])


def _part(value: Expr, piece: Piece, lanes: int) -> Expr:
    """Some of a vector's elements."""
    if piece.width == lanes:
        return value
    return tirx.Shuffle([value], [T.int32(piece.start + i) for i in range(piece.width)])


def window_of(weights: Array) -> tuple[Array, tuple[tuple[int, int, int], ...]] | None:
    """Tell the window and the parts of a transform that a convolution's weights are.

    Args:
        weights: (channels, size): rows that are a window times cosines, or times sines of either
            sign, of all frequencies in their order; or both, one after the other.

    Returns:
        None if they are something else, beyond the rounding of float32.
    """
    channels, size = weights.shape
    if not fourier.possible(size):
        return None
    bins = size // 2 + 1
    if channels not in (bins, 2 * bins):
        return None
    angles = 2 * np.pi * (np.outer(np.arange(bins), np.arange(size)) % size) / size
    waves = {0: np.cos(angles), 1: np.sin(angles)}
    runs = [weights[i : i + bins].astype(np.float64) for i in range(0, channels, bins)]
    return _matched(runs, waves, bins)


def _matched(
    runs: list[Array], waves: dict[int, Array], bins: int
) -> tuple[Array, tuple[tuple[int, int, int], ...]] | None:
    found, window = [], None
    for index, run in enumerate(runs):
        for part, wave in waves.items():
            seen = (wave * wave).sum(axis=0)
            fitted = (run * wave).sum(axis=0) / np.maximum(seen, 1e-6)
            if np.abs(fitted * wave - run).max() > 2e-7 * np.abs(run).max():
                continue
            # Sines say nothing of the samples where they are zero.
            certain = seen > 1e-6
            # The transform has the sine with a minus.
            sign = -1 if part else 1
            if window is None:
                window = np.where(certain, fitted, 0.0)
            elif _agree(window, fitted, certain):
                window = np.where(certain, fitted, window)
            elif _agree(-window, fitted, certain):
                sign = -sign
                window = np.where(certain, -fitted, window)
            else:
                return None
            found.append((index * bins, part, sign))
            break
    if len(found) != len(runs) or window is None or not np.abs(window).max():
        return None
    return window.astype(np.float32), tuple(found)


def _agree(window: Array, fitted: Array, certain: Array) -> bool:
    gap = np.abs(window - fitted)[certain & (window != 0)]
    return bool(gap.size) and float(gap.max()) <= 4e-7 * float(np.abs(fitted).max())
