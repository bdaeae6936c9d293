"""Fourier transforms, and the smooth activation that the engines lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.testing.cases import graph
from tests.convert.lower.tvm.run import Array, lower, outputs

from edgeinfer.convert.lower.tvm.ops import spectrum  # isort: skip
from edgeinfer.kernels.defs import frames  # isort: skip

RNG = np.random.default_rng(0)


def _sound(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _spectra(x: Array, window: Array, hop: int, onesided: bool) -> Array:
    cut = np.lib.stride_tricks.sliding_window_view(x, len(window), axis=1)[:, ::hop]
    made = np.fft.fft(cut * window, axis=2)[..., : len(window) // 2 + 1 if onesided else None]
    return np.stack([made.real, made.imag], axis=-1)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("size", "hop", "onesided", "parts"),
    [(64, 16, 1, 1), (22, 5, 1, 1), (63, 9, 1, 1), (257, 9, 1, 1), (64, 16, 0, 1), (12, 4, 0, 2)],
)
def test_stft(size: int, hop: int, onesided: int, parts: int) -> None:
    samples = max(150, size + 40)
    frames = (samples - size) // hop + 1
    bins = size // 2 + 1 if onesided else size
    model = graph(
        f"(float[2,{samples},{parts}] x) => (float[2,{frames},{bins},2] y) "
        f"{{ y = STFT<onesided={onesided}>(x, hop, window) }}",
        hop=np.array(hop),
        window=(window := np.hanning(size).astype(np.float32)),
    )
    x = _sound(2, samples, parts)
    wide = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    want = _spectra(wide, window.astype(np.float64), hop, bool(onesided))
    np.testing.assert_allclose(outputs(model, {"x": x})["y"], want, atol=2e-5)


@pytest.mark.parametrize(("inverse", "onesided"), [(0, 0), (0, 1), (1, 0)])
def test_dft(inverse: int, onesided: int) -> None:
    count = 9 if onesided else 16
    model = graph(
        f"(float[3,16,{1 if onesided else 2}] x) => (float[3,{count},2] y) "
        f"{{ y = DFT<inverse={inverse}, onesided={onesided}>(x, , axis) }}",
        axis=np.array(1),
    )
    x = _sound(3, 16, 1 if onesided else 2)
    wide = x[..., 0] + (0 if onesided else 1j * x[..., 1])
    want = (np.fft.ifft if inverse else np.fft.fft)(wide, axis=1)[:, :count]
    got = outputs(model, {"x": x})["y"]
    np.testing.assert_allclose(got, np.stack([want.real, want.imag], -1), atol=1e-5)


@pytest.mark.parametrize("rank", [3, 4])
def test_a_convolution_that_is_a_transform(rank: int, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    size, hop = 64, 16
    angles = 2 * np.pi * np.outer(np.arange(33), np.arange(size)) / size
    waves = np.concatenate([np.cos(angles), np.sin(angles)]) * np.hanning(size)
    line = "1," * (rank - 3)
    strides = "1," * (rank - 3) + str(hop)
    weights = waves.astype(np.float32).reshape(66, *[1] * (rank - 2), size)
    model = graph(
        f"(float[2,1,{line}150] x) => (float[2,66,{line}6] y) "
        f"{{ c = Conv<strides=[{strides}]>(x, w, b) y = Relu(c) }}",
        w=weights,
        b=(bias := _sound(66)),
    )
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return frames.transform(*given)

    monkeypatch.setattr(spectrum, "transform", counted)
    x = _sound(*(2, 1, *[1] * (rank - 3), 150))
    cut = np.lib.stride_tricks.sliding_window_view(x.reshape(2, 150), size, axis=1)[:, ::hop]
    want = np.maximum((cut @ waves.T + bias).transpose(0, 2, 1), 0)
    got = outputs(model, {"x": x})["y"]
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=3e-5)
    assert len(calls) == 1
    # With a neighbour's weights it is a convolution as any.
    weights[5, ..., 3] += 0.01
    changed = graph(
        f"(float[2,1,{line}150] x) => (float[2,66,{line}6] y) "
        f"{{ y = Conv<strides=[{strides}]>(x, w) }}",
        w=weights,
    )
    lower(changed, tmp_path)
    assert len(calls) == 1


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("float16", np.float16)])
def test_mish(kind: str, dtype: type) -> None:
    model = graph(f"({kind}[40] x) => ({kind}[40] y) {{ y = Mish(x) }}")
    x = np.concatenate([np.linspace(-30, 30, 34), [-1e30, 1e30, np.inf, np.nan, 0.0, -1e-6]])
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        want = wide * np.tanh(np.logaddexp(0, wide))
    got = outputs(model, {"x": x})["y"]
    rtol, atol = (2e-6, 1e-12) if dtype is np.float32 else (1e-3, 1e-7)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
