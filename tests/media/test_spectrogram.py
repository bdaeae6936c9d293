"""Mel spectrograms have librosa's numbers; those here are of librosa 0.11."""

import numpy as np
import pytest

from edgeinfer.media.spectrogram import mel_spectrogram
from edgeinfer.types import Array, SpectrogramInput

RATE = 16000
DECIBELS = SpectrogramInput(
    RATE, 321, 160, 120, log="db", reference="max", range_db=80.0, mean=-40.0, std=40.0
)
HTK = SpectrogramInput(
    *(RATE, 512, 256, 20),
    window=400,
    low=60.0,
    high=6000.0,
    scale="htk",
    norm="none",
    power=1.0,
    centered=False,
)
NATURAL = SpectrogramInput(RATE, 400, 400, 16, log="natural", floor=1e-5)
PLACES = ((0, 0), (3, 2), (7, 5), (-1, -1))
"""Band and frame."""


def sound() -> Array:
    time = np.arange(4000) / RATE
    rising = 0.25 * np.sin(2 * np.pi * 1900 * time) * np.linspace(0, 1, 4000)
    mix: Array = (0.5 * np.sin(2 * np.pi * 440 * time) + rising).astype(np.float32)
    return mix


@pytest.mark.parametrize(
    ("record", "shape", "expected", "mean"),
    [
        (DECIBELS, (25, 120), (-0.38006097, -0.59743071, -0.41517743, -1.0), -0.73192912),
        (HTK, (14, 20), (0.08283068, 100.778793, 0.01988827, 0.00016793), 8.31137137),
        (NATURAL, (11, 16), (-1.0168488, -11.5129252, -7.3782643, -8.8222017), -7.7427106),
    ],
    ids=["decibels", "htk", "natural"],
)
def test_numbers_of_librosa(
    record: SpectrogramInput, shape: tuple[int, int], expected: tuple[float, ...], mean: float
) -> None:
    found = mel_spectrogram(sound(), record)
    assert found.shape == shape
    assert found.dtype == np.float32
    picked = [found[frame, band] for band, frame in PLACES]
    np.testing.assert_allclose(picked, expected, rtol=2e-4, atol=2e-5)
    assert found.mean() == pytest.approx(mean, rel=1e-5)


def test_bands_first() -> None:
    record = SpectrogramInput(RATE, 400, 400, 16, time_first=False)
    turned = mel_spectrogram(sound(), record)
    assert turned.shape == (16, 11)
    assert turned.flags.c_contiguous
    straight = mel_spectrogram(sound(), SpectrogramInput(RATE, 400, 400, 16))
    np.testing.assert_array_equal(turned, straight.T)


@pytest.mark.parametrize("samples", [0, 1, 100])
def test_a_short_recording_is_one_frame(samples: int) -> None:
    record = SpectrogramInput(RATE, 400, 160, 16, centered=False, log="db")
    found = mel_spectrogram(sound()[:samples], record)
    assert found.shape == (1, 16)
    assert np.isfinite(found).all()
