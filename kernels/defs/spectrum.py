"""Audio to a mel spectrogram: cut, window, transform, gather into bands, logarithm, in one pass.

The vector's lanes are neighbouring frames, so that a transform is the same straight arithmetic for
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import fourier, math
from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu, function, load, loop, splat, store
from edgeinfer.records import dataclass

_LOGS = {"none": 0.0, "natural": 1.0, "log10": 1 / np.log(10), "db": 10 / np.log(10)}


@dataclass(frozen=True, slots=True)
class Mel:
    """A kind of spectrogram.

    Attributes:
        fft: samples of one transform; see ``media.stages.possible``.
        hop: samples from one transform to the next.
        bands: Bands of the result.
        power: Power of the magnitude: 1 or 2.
        log: ``none``, ``natural``, ``log10`` or ``db`` (10 log10).
        floor: smallest value before the logarithm.
        time_first: axes are time and band, else band and time.
        parallel: frames are shared out among threads.
        wide: arithmetic in float64 up to the logarithm, for bands much quieter than others.

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
    wide: bool = False

    def __post_init__(self) -> None:
        for name in ("fft", "hop", "bands"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} {getattr(self, name)}: a count")
        if not fourier.possible(self.fft):
            raise ValueError(f"fft {self.fft}: a factor that is too large, or one sample")
        if self.power not in (1, 2):
            raise ValueError(f"power {self.power}: 1 or 2")
        if self.log not in _LOGS:
            raise ValueError(f"log {self.log!r}: {', '.join(_LOGS)}")

    @property
    def bins(self) -> int:
        """Frequencies of a transform."""
        return self.fft // 2 + 1

    @property
    def dtype(self) -> str:
        """Of the arithmetic and of its tables."""
        return "float64" if self.wide else "float32"


def mel_spectrogram(cpu: KernelCpu, mel: Mel, weights: int | None = None) -> tirx.PrimFunc:
    """Build the kernel.

    It takes the audio, (samples,) float32, of which frame ``t`` is the ``fft`` samples from
    ``t * hop`` on; the four ``tables``; and the result, float32, (frames, bands) or (bands,
    frames), whose number of frames is how many are computed. The audio must hold them all.

    Args:
        cpu: that it is for.
        mel: what kind.
        weights: how many the last table holds; None for any number.
    """
    frames, samples = tirx.Var("t", "int32"), tirx.Var("n", "int32")
    lanes = cpu.lanes
    held = tirx.Var("w", "int32") if weights is None else weights
    factors = fourier.count(mel.fft)
    buffers: dict[str, tuple[Sequence[Any], str]] = {
        "sound": ((samples,), "float32"),
        "window": ((mel.fft,), mel.dtype),
        "turn": ((factors, 2), mel.dtype),
        "band": ((mel.bands, 3), "int32"),
        "weight": ((held,), mel.dtype),
        "out": ((frames, mel.bands) if mel.time_first else (mel.bands, frames), "float32"),
    }

    def body(
        sound: Buffer, window: Buffer, turn: Buffer, band: Buffer, weight: Buffer, out: Buffer
    ) -> None:
        flat = T.decl_buffer((frames * mel.bands,), "float32", data=out.data)
        groups = tirx.floordiv(frames + (lanes - 1), lanes)
        with loop(groups, mel.parallel) as group:
            # Lanes beyond the last frame do its work again.
            frame = tirx.Min(T.ramp(group * lanes, 1, lanes), T.broadcast(frames - 1, lanes))
            spectrum = T.alloc_buffer((mel.bins * lanes,), mel.dtype)

            def read(i: Expr) -> Expr:
                value = T.BufferLoad(sound, [frame * mel.hop + i])
                if mel.wide:
                    value = tirx.Cast(f"float64x{lanes}", value)
                return value * splat(T.BufferLoad(window, [i]), lanes)

            def heard(at: Expr, value: fourier.Pair) -> None:
                re, im = fourier.kept(value, lanes)
                square = re * re + im * im
                level = tirx.sqrt(square) if mel.power == 1 else square
                store(spectrum, [at * lanes], level, lanes)

            fourier.transformed(mel.fft, lanes, turn, read, heard)
            with T.serial(mel.bands) as b:
                total = T.alloc_buffer((lanes,), mel.dtype)
                store(total, [0], splat(tirx.const(0.0, mel.dtype), lanes), lanes)
                with T.serial(T.BufferLoad(band, [b, 1])) as i:
                    share = T.BufferLoad(weight, [T.BufferLoad(band, [b, 2]) + i])
                    level = load(spectrum, [(T.BufferLoad(band, [b, 0]) + i) * lanes], lanes)
                    store(total, [0], load(total, [0], lanes) + level * splat(share, lanes), lanes)
                value = load(total, [0], lanes)
                if mel.wide:
                    value = tirx.Cast(f"float32x{lanes}", value)
                value = _logarithm(mel, value)
                at = frame * mel.bands + b if mel.time_first else frame + b * frames
                T.buffer_store(flat, value, [at])

    return function("mel_spectrogram", buffers, body)


def _logarithm(mel: Mel, value: Expr) -> Expr:
    if mel.log == "none":
        return value
    floor = math.constant(mel.floor, value)
    # In this order what is NaN stays it.
    held = tirx.Select(value < floor, floor, value)
    return math.log(held) * math.constant(float(_LOGS[mel.log]), value)
