"""A mel spectrogram by a kernel, by NumPy and by ONNX Runtime, in turns.

    python -m benchmarks.spectrum [--rounds 15]

One thread each. Pipelines use the kernel with arithmetic in float64 (``wide``), for AVX2, and NumPy
(float64) where a bundle brings no code; then the kernel and NumPy in float32. ONNX Runtime computes
STFT and the rest as a graph, in calls over bound arrays. Microseconds of wall time (CPU
time) a frame, medians over rounds of the best of four; then the ratio of CPU times to the best of
the others.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import onnx

from benchmarks.gemv import compiled, machines_here
from benchmarks.kernels import Call, bound, interleaved, rounds_asked
from edgeinfer.backends.testing.cases import graph
from edgeinfer.kernels.defs import spectrum
from edgeinfer.media import stages
from edgeinfer.media.spectrogram import filters, mel_spectrogram
from edgeinfer.types import Array, SpectrogramInput

KINDS = (
    (512, 160, 80, 3000),
    (400, 160, 80, 3000),
    (321, 160, 120, 900),
    (1024, 256, 128, 600),
    (512, 160, 80, 16),
)
"""Samples of a transform, from one to the next, bands, frames."""


def in_onnx(record: SpectrogramInput, window: Array, frames: int) -> onnx.ModelProto:
    """The same as a graph."""
    samples = (frames - 1) * record.hop + record.fft
    return graph(
        f"(float[1,{samples},1] x) => (float[1,{frames},{record.mels}] y) "
        "{ s = STFT(x, hop, window, length) q = Mul(s, s) p = ReduceSum<keepdims=0>(q, axis) "
        "m = MatMul(p, bands) h = Max(m, floor) y = Log(h) }",
        hop=np.array(record.hop),
        length=np.array(record.fft),
        window=window.astype(np.float32),
        axis=np.array([3]),
        bands=filters(record).T.astype(np.float32),
        floor=np.array(record.floor, np.float32),
    )


def in_float32(sound: Array, record: SpectrogramInput, window: Array, bands: Array) -> Array:
    """The same by NumPy in float32."""
    cut = np.lib.stride_tricks.sliding_window_view(sound, record.fft)[:: record.hop]
    found = np.fft.rfft(cut * window, axis=1)
    energy = (found.real**2 + found.imag**2) @ bands
    made: Array = np.log(np.maximum(energy, np.float32(record.floor)))
    return made


def main() -> None:
    """Measure and print."""
    rounds = rounds_asked(__doc__)
    import tvm_ffi

    names = machines_here()
    for fft, hop, mels, frames in KINDS:
        record = SpectrogramInput(16000, fft, hop, mels, log="natural", centered=False)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(fft) / fft)
        sound = np.random.default_rng(0).standard_normal((frames - 1) * hop + fft)
        single = sound.astype(np.float32)
        mel = spectrum.Mel(fft, hop, mels, log="natural", parallel=False)
        bands, narrow = filters(record).T.astype(np.float32), window.astype(np.float32)
        want = mel_spectrogram(single, record)
        with tempfile.TemporaryDirectory() as folder:
            calls: dict[str, Call] = {
                "numpy": partial(mel_spectrogram, single, record),
                "numpy, float32": partial(in_float32, single, record, narrow, bands),
            }
            model = in_onnx(record, window, frames)
            calls["onnxruntime"], _ = bound(model, "onnxruntime", Path(folder, "o"))
            for name, wide in product(names, (False, True)):
                cpu, made = names[name], replace(mel, wide=wide)
                if wide:
                    cpu = replace(cpu, lanes=cpu.lanes // 2)
                kernel = spectrum.mel_spectrogram(cpu, made)
                out = np.zeros((frames, mels), np.float32)
                tables = stages.tables(window, filters(record), made.dtype)
                given = [tvm_ffi.from_dlpack(a) for a in (single, *tables, out)]
                title = f"{name}, wide" if wide else name
                calls[title] = partial(compiled(kernel, name), *given)
                calls[title]()
                np.testing.assert_allclose(out, want, rtol=0, atol=1e-5 if wide else 1e-3)
            times = interleaved(calls, rounds)
        ours = [n for n in times if n.removesuffix(", wide") in names]
        best = min(ours, key=lambda n: times[n][1])
        rest = min(busy for n, (_, busy) in times.items() if n not in ours)
        cells = ", ".join(f"{n} {w / frames:.3f} ({c / frames:.3f})" for n, (w, c) in times.items())
        title = f"{fft}/{hop}/{mels}, {frames} frames"
        print(f"{title}: {cells}; {rest / times[best][1]:.2f} times as fast", flush=True)


if __name__ == "__main__":
    main()
