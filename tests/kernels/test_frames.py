"""Transforms of frames against NumPy, and convolutions that are told to be such."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.run import HERE, Array, compiled, cpu, misaligned

from edgeinfer.kernels.defs import fourier, frames  # isort: skip

RNG = np.random.default_rng(0)


def _sound(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _spectra(sound: Array, window: Array, hop: int) -> Array:
    wide = sound.astype(np.float64)
    cut = np.lib.stride_tricks.sliding_window_view(wide, len(window), axis=1)[:, ::hop]
    return np.asarray(np.fft.rfft(cut * window, axis=2))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", HERE[:2])
@pytest.mark.parametrize(
    ("batch", "samples", "size", "hop"),
    [
        *((1, 640, 256, 128), (2, 200, 30, 7), (1, 96, 96, 1), (1, 1280, 512, 160), (1, 260, 2, 1)),
        *((2, 800, 321, 40), (1, 200, 63, 9), (1, 260, 3, 1), (1, 300, 134, 20)),
    ],
)
def test_transform(name: str, batch: int, samples: int, size: int, hop: int) -> None:
    sound, window = _sound(batch, samples), np.hanning(size + 1)[1:].astype(np.float32)
    want = _spectra(sound, window, hop)
    given = [misaligned(a) for a in (sound, window, fourier.factors(size))]
    bins = size // 2 + 1
    for parts in ((), ((0, 0, 1), (bins, 1, -1)), ((0, 1, 1),)):
        what = frames.Frames(batch, samples, size, hop, parts)
        assert what.count == want.shape[1]
        out = misaligned(np.full(what.shape, 77, np.float32))
        compiled(frames.transform(cpu(name), what), name)(*given, out)
        both = (want.real, want.imag)
        if parts:
            runs = [sign * both[part].transpose(0, 2, 1) for _, part, sign in parts]
            np.testing.assert_allclose(out, np.concatenate(runs, axis=1), atol=2e-5)
        else:
            np.testing.assert_allclose(out, np.stack(both, axis=-1), atol=2e-5)


def test_sizes() -> None:
    fit = [n for n in range(1, 40) if fourier.fits(n)]
    assert fit == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 30, 32, 36]
    assert all(fourier.possible(n) for n in range(2, 257))
    assert not any(fourier.possible(n) for n in (0, 1, 257, 2 * 263, 11 * 29))


def _waves(size: int) -> tuple[Array, Array]:
    angles = 2 * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(size)) / size
    return np.cos(angles), np.sin(angles)


@pytest.mark.parametrize("sign", [1, -1])
def test_weights_of_a_transform(sign: int) -> None:
    window, (cos, sin) = np.hanning(65)[1:], _waves(64)
    both = np.concatenate([cos * window, sign * sin * window]).astype(np.float32)
    found = frames.window_of(both)
    assert found is not None
    np.testing.assert_allclose(found[0], window, atol=1e-6)
    assert found[1] == ((0, 0, 1), (33, 1, -sign))
    # One part alone; the sign of a window is nobody's, so long as the product is the same.
    for weights, part in ((cos * window, 0), (sign * sin * window, 1)):
        alone = frames.window_of(weights.astype(np.float32))
        assert alone is not None
        ((_, kind, way),) = alone[1]
        wave = cos if part == 0 else -sin
        assert kind == part
        np.testing.assert_allclose(way * wave * alone[0], weights, atol=1e-6)


@pytest.mark.parametrize("size", [63, 134, 321])
def test_weights_of_a_transform_with_a_summed_factor(size: int) -> None:
    window, (cos, sin) = np.hanning(size + 1)[1:], _waves(size)
    found = frames.window_of(np.concatenate([cos * window, -sin * window]).astype(np.float32))
    assert found is not None
    np.testing.assert_allclose(found[0], window, atol=1e-6)
    assert found[1] == ((0, 0, 1), (size // 2 + 1, 1, 1))


def test_weights_that_are_none() -> None:
    window, (cos, sin) = np.hanning(65)[1:], _waves(64)
    both = np.concatenate([cos * window, sin * window]).astype(np.float32)
    changed = both.copy()
    changed[7, 20] += 1e-5
    other = np.concatenate([cos * window, sin * np.hamming(64)]).astype(np.float32)
    for weights in (
        changed,
        other,
        np.roll(both, 1, axis=0),
        both[:-1],
        both[:, :-1],
        np.zeros_like(both),
    ):
        assert frames.window_of(np.ascontiguousarray(weights)) is None
