"""Sound to a mel spectrogram: cut, window, transform, gather into bands, logarithm, in one pass.

The vector's lanes are neighbouring frames, so that a transform is the same straight arithmetic for
all of them. A real transform of n samples is a complex one of n / 2 and a last step (Sorensen et
al., 1987); the complex one is Stockham's, which puts its results in order by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Cpu, Expr, function, load, loop, splat, store
from edgeinfer.types import Array

RADICES = (4, 2, 3, 5, 7)
_LOGS = {"none": 0.0, "natural": 1.0, "log10": 1 / np.log(10), "db": 10 / np.log(10)}

Pair = tuple[Expr, Expr]
"""The real and the imaginary part."""


@dataclass(frozen=True, slots=True)
class Mel:
    """A kind of spectrogram.

    Attributes:
        fft: samples of one transform; even, of factors 2, 3, 5 and 7.
        hop: samples from one transform to the next.
        bands: of the result.
        power: of the magnitude: 1 or 2.
        log: ``none``, ``natural``, ``log10`` or ``db`` (10 log10).
        floor: smallest value before the logarithm.
        time_first: axes are time and band, else band and time.
        parallel: frames are shared out among threads.

    Raises:
        ValueError: no transform of that size, or no such power or logarithm.
    """

    fft: int
    hop: int
    bands: int
    power: int = 2
    log: str = "none"
    floor: float = 1e-10
    time_first: bool = True
    parallel: bool = True

    def __post_init__(self) -> None:
        for name in ("fft", "hop", "bands"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} {getattr(self, name)}: a count")
        if self.fft % 2 or int(np.prod(self.radices)) * 2 != self.fft:
            raise ValueError(f"fft {self.fft}: even sizes of factors 2, 3, 5 and 7")
        if self.power not in (1, 2):
            raise ValueError(f"power {self.power}: 1 or 2")
        if self.log not in _LOGS:
            raise ValueError(f"log {self.log!r}: {', '.join(_LOGS)}")

    @property
    def bins(self) -> int:
        """Frequencies of a transform."""
        return self.fft // 2 + 1

    @property
    def radices(self) -> tuple[int, ...]:
        """Of the stages of the complex transform."""
        rest, found = self.fft // 2, []
        for radix in RADICES:
            while rest % radix == 0:
                rest //= radix
                found.append(radix)
        return tuple(found)


def tables(mel: Mel, window: Array, filters: Array) -> tuple[Array, Array, Array, Array]:
    """What the kernel takes beside the sound.

    Args:
        mel: what kind.
        window: (fft,), what samples are multiplied by.
        filters: (bands, bins), what each band takes of each frequency.

    Returns:
        The window in float32; the factors between the stages and those of the last step, (count, 2)
        float32; first frequency, number of them and place of the first weight, (bands, 3) int32;
        the weights.

    Raises:
        ValueError: a shape does not fit.
    """
    if window.shape != (mel.fft,) or filters.shape != (mel.bands, mel.bins):
        wanted = f"({mel.fft},) and ({mel.bands}, {mel.bins})"
        raise ValueError(f"window {window.shape} and filters {filters.shape}: {wanted} expected")
    turns = []
    left = mel.fft // 2
    for radix in mel.radices:
        block = np.arange(left // radix)[:, None] * np.arange(1, radix)
        turns.append((block / left).ravel())
        left //= radix
    turns.append(np.arange(mel.bins) / mel.fft)
    angles = -2 * np.pi * np.concatenate(turns)
    bands, weights = np.zeros((mel.bands, 3), np.int32), []
    place = 0
    for band, row in enumerate(filters):
        (used,) = np.nonzero(row)
        first, count = (used[0], used[-1] - used[0] + 1) if used.size else (0, 0)
        bands[band] = first, count, place
        weights.append(row[first : first + count])
        place += count
    return (
        window.astype(np.float32),
        np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
        bands,
        # A buffer of nothing is none.
        np.concatenate([*weights, np.zeros(1)]).astype(np.float32),
    )


def mel_spectrogram(cpu: Cpu, mel: Mel, weights: int) -> tirx.PrimFunc:
    """Build the kernel.

    It takes the sound, (samples,) float32, of which frame ``t`` is the ``fft`` samples from
    ``t * hop`` on; the four ``tables``; and the result, float32, (frames, bands) or (bands,
    frames), whose number of frames is how many are computed. The sound must hold them all.

    Args:
        cpu: that it is for.
        mel: what kind.
        weights: how many the last table holds.
    """
    frames, samples = tirx.Var("t", "int32"), tirx.Var("n", "int32")
    half, lanes = mel.fft // 2, cpu.lanes
    factors = _starts(mel)[-1] + mel.bins
    buffers: dict[str, tuple[Sequence[Any], str]] = {
        "sound": ((samples,), "float32"),
        "window": ((mel.fft,), "float32"),
        "turn": ((factors, 2), "float32"),
        "band": ((mel.bands, 3), "int32"),
        "weight": ((weights,), "float32"),
        "out": ((frames, mel.bands) if mel.time_first else (mel.bands, frames), "float32"),
    }

    def body(
        sound: Buffer, window: Buffer, turn: Buffer, band: Buffer, weight: Buffer, out: Buffer
    ) -> None:
        flat = T.decl_buffer((frames * mel.bands,), "float32", data=out.data)
        groups = tirx.floordiv(frames + (lanes - 1), lanes)
        with loop(groups, mel.parallel) as group:
            one = T.alloc_buffer((half * 2 * lanes,), "float32")
            other = T.alloc_buffer((half * 2 * lanes,), "float32")
            # Lanes beyond the last frame do its work again.
            frame = tirx.Min(T.ramp(group * lanes, 1, lanes), T.broadcast(frames - 1, lanes))
            with T.serial(mel.fft) as i:
                value = T.BufferLoad(sound, [frame * mel.hop + i])
                store(one, [i * lanes], value * splat(T.BufferLoad(window, [i]), lanes), lanes)
            held = _Complex((one, other), turn, lanes)
            for radix, start in zip(mel.radices, _starts(mel)[:-1], strict=True):
                held.stage(half, radix, start)
            spectrum = held.other
            _magnitudes(mel, held, spectrum, _starts(mel)[-1])
            with T.serial(mel.bands) as b:
                total = T.alloc_buffer((lanes,), "float32")
                store(total, [0], splat(T.float32(0), lanes), lanes)
                with T.serial(T.BufferLoad(band, [b, 1])) as i:
                    share = T.BufferLoad(weight, [T.BufferLoad(band, [b, 2]) + i])
                    level = load(spectrum, [(T.BufferLoad(band, [b, 0]) + i) * lanes], lanes)
                    store(total, [0], load(total, [0], lanes) + level * splat(share, lanes), lanes)
                value = _logarithm(mel, load(total, [0], lanes))
                at = frame * mel.bands + b if mel.time_first else frame + b * frames
                T.buffer_store(flat, value, [at])

    return function("mel_spectrogram", buffers, body)


def _starts(mel: Mel) -> list[int]:
    """Where the factors of each stage begin, and those of the last step."""
    found, left = [0], mel.fft // 2
    for radix in mel.radices:
        found.append(found[-1] + left // radix * (radix - 1))
        left //= radix
    return found


class _Complex:
    """Complex numbers of all lanes in one buffer, and a second one for what becomes of them."""

    def __init__(self, buffers: tuple[Buffer, Buffer], turn: Buffer, lanes: int) -> None:
        self._now, self.other = buffers
        self._turn, self._lanes = turn, lanes
        self._stride = 1
        self._left = 0

    def get(self, at: Expr) -> Pair:
        """Read a number."""
        first = at * 2 * self._lanes
        return self._load(first), self._load(first + self._lanes)

    def factor(self, at: Expr) -> Pair:
        """Read a factor."""
        return (
            splat(T.BufferLoad(self._turn, [at, 0]), self._lanes),
            splat(T.BufferLoad(self._turn, [at, 1]), self._lanes),
        )

    def stage(self, size: int, radix: int, start: int) -> None:
        """Do one stage: transforms of ``radix`` numbers each, turned and put in order."""
        self._left = self._left or size
        parts, stride = self._left // radix, self._stride
        with T.serial(parts) as p, T.serial(stride) as q:
            taken = [self.keep(self.get(q + stride * (p + t * parts))) for t in range(radix)]
            for u, value in enumerate(_small(taken)):
                done = value if u == 0 else self._turned(value, start + p * (radix - 1) + u - 1)
                self._put(q + stride * (radix * p + u), done)
        self._now, self.other = self.other, self._now
        self._left, self._stride = parts, stride * radix

    def keep(self, value: Pair) -> Pair:
        """Compute numbers once where they are used several times."""
        held = T.alloc_buffer((2 * self._lanes,), "float32")
        for i, part in enumerate(value):
            store(held, [i * self._lanes], part, self._lanes)
        return load(held, [0], self._lanes), load(held, [self._lanes], self._lanes)

    def _load(self, at: Expr) -> Expr:
        return load(self._now, [at], self._lanes)

    def _turned(self, value: Pair, at: Expr) -> Pair:
        (re, im), (cos, sin) = self.keep(value), self.factor(at)
        return re * cos - im * sin, re * sin + im * cos

    def _put(self, at: Expr, value: Pair) -> None:
        for i, part in enumerate(value):
            store(self.other, [(at * 2 + i) * self._lanes], part, self._lanes)


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


def _magnitudes(mel: Mel, held: _Complex, to: Buffer, start: int) -> None:
    """The last step of the real transform, and what is heard of each frequency."""
    half = mel.fft // 2

    def write(at: Expr, value: Pair) -> None:
        re, im = held.keep(value)
        square = re * re + im * im
        width = _width(re)
        store(to, [at * width], tirx.sqrt(square) if mel.power == 1 else square, width)

    re, im = held.get(T.int32(0))
    zero = math.constant(0.0, re)
    write(T.int32(0), (re + im, zero))
    write(T.int32(half), (re - im, zero))
    if half > 1:
        with T.serial(half // 2) as i:
            k = i + 1
            low, high = held.keep(held.get(k)), held.keep(held.get(half - k))
            mean = _times((low[0] + high[0], low[1] - high[1]), 0.5)
            # The odd samples' share, times the last factor.
            a, b = _times((low[1] + high[1], high[0] - low[0]), 0.5)
            cos, sin = held.factor(start + k)
            odd = a * cos - b * sin, a * sin + b * cos
            write(k, _add(mean, odd))
            write(half - k, _sub(mean, odd))


def _width(x: Expr) -> int:
    lanes = math.element_type(x).partition("x")[2]
    return int(lanes or 1)


def _logarithm(mel: Mel, value: Expr) -> Expr:
    if mel.log == "none":
        return value
    held = tirx.Max(value, math.constant(mel.floor, value))
    return math.log(held) * math.constant(float(_LOGS[mel.log]), value)
