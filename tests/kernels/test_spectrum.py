"""Mel spectrograms by a kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.run import HERE, Array, compiled, cpu, misaligned

from edgeinfer.kernels.defs import spectrum  # isort: skip
from edgeinfer.media import stages  # isort: skip

RNG = np.random.default_rng(0)
ODD = 2 * int(RNG.choice([15, 21, 35, 45, 63, 105]))

SUMMED = ((3, 1, 3), (25, 7, 9), (22, 8, 20), (321, 160, 17), (2 * 3 * 13, 5, 4), (251, 100, 2))
"""Odd sizes, and sizes with a factor that is summed over."""


def _filters(mel: spectrum.Mel) -> Array:
    """Bands of any width, one of them empty."""
    found = np.zeros((mel.bands, mel.bins))
    for band in range(mel.bands):
        first, last = np.sort(RNG.integers(0, mel.bins + 1, 2))
        found[band, first:last] = RNG.random(last - first)
    found[-1] = 0
    return found


def _run(mel: spectrum.Mel, machine: str, frames: int) -> tuple[Array, Array]:
    window, filters = RNG.random(mel.fft), _filters(mel)
    sound = RNG.standard_normal((frames - 1) * mel.hop + mel.fft).astype(np.float32)
    made = stages.tables(window, filters, mel.dtype)
    kernel = compiled(spectrum.mel_spectrogram(cpu(machine), mel, made[3].size), machine)
    shape = (frames, mel.bands) if mel.time_first else (mel.bands, frames)
    out = misaligned(np.full(shape, np.nan, np.float32))
    kernel(*map(misaligned, (sound, *made)), out)
    cut = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), mel.fft)[:: mel.hop]
    want: Array = np.abs(np.fft.rfft(cut * window, axis=1)) ** mel.power @ filters.T
    return (out if mel.time_first else out.T), want


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("fft", "hop", "frames"), [(2, 1, 3), (512, 160, 37), (400, 7, 1), (ODD, 9, 16), *SUMMED]
)
def test_bands(fft: int, hop: int, frames: int) -> None:
    mel = spectrum.Mel(fft, hop, 5, parallel=frames > 16, time_first=fft != 400)
    got, want = _run(mel, HERE[-1], frames)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * want.max())


@pytest.mark.parametrize("fft", [48, 321])
def test_wide_arithmetic_tells_quiet_bands_from_none(fft: int) -> None:
    """Next to a loud tone float32 has nothing but rounding where this is right."""
    mel = spectrum.Mel(fft, 16, 5, parallel=False, wide=True)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(fft) / fft)
    sound = np.cos(2 * np.pi * 3 / fft * np.arange(40 * 16 + fft)).astype(np.float32)
    filters = np.zeros((5, mel.bins))
    filters[:, 10:15] = np.eye(5)
    made = stages.tables(window, filters, mel.dtype)
    kernel = compiled(spectrum.mel_spectrogram(cpu(HERE[0]), mel), HERE[0])
    out = misaligned(np.full((41, 5), np.nan, np.float32))
    kernel(*map(misaligned, (sound, *made)), out)
    cut = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), fft)[::16]
    want = np.abs(np.fft.rfft(cut * window, axis=1)) ** 2 @ filters.T
    assert want.max() < 1e-9
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-25)


@pytest.mark.parametrize(
    ("log", "by"), [("natural", np.log), ("log10", np.log10), ("db", lambda v: 10 * np.log10(v))]
)
def test_logarithms(log: str, by) -> None:  # type: ignore[no-untyped-def]
    mel = spectrum.Mel(64, 16, 6, power=1, log=log, floor=1e-3)
    got, want = _run(mel, HERE[0], 20)
    np.testing.assert_allclose(got, by(np.maximum(want, 1e-3)), rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fft": 1}, "fft 1: a factor that is too large, or one sample"),
        ({"fft": 257}, "fft 257: a factor"),
        ({"fft": 11 * 29}, "fft 319: a factor"),
        ({"hop": 0}, "hop 0"),
        ({"power": 3}, "power 3"),
        ({"log": "log2"}, "log 'log2'"),
    ],
)
def test_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spectrum.Mel(**{"fft": 16, "hop": 4, "bands": 3, **given})  # type: ignore[arg-type]
