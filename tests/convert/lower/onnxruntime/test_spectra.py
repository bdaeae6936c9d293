"""Spectra keep their digits at any length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeinfer.types import Array
from tests.convert.lower.running import lower, model, run

STEP = 160


def _written(text: str, folder: Path) -> Path:
    return lower(model(text), folder).files[0]


def _noise(*shape: int) -> Array:
    """Small next to its mean, so that whatever is lost of the mean covers it."""
    random = np.random.default_rng(0)
    return (random.standard_normal(shape) + 1000).astype(np.float32)


def _off(found: Array, spectra: Array) -> float:
    want = np.stack([spectra.real, spectra.imag], -1)
    assert found.shape == want.shape
    return float(np.abs(found - want).max() / np.abs(want).max())


@pytest.mark.parametrize("length", [37, 160, 320, 400])
def test_of_a_whole_signal(length: int, tmp_path: Path) -> None:
    x = _noise(2, length, 1)
    text = (
        f"g (float[n,{length},1] x) => (float[n,m,2] y) <int64 a = {{1}}> "
        "{ y = DFT<onesided = 1>(x, , a) }"
    )
    (found,) = run(_written(text, tmp_path), {"x": x})
    assert _off(found, np.fft.rfft(x[..., 0].astype(np.float64))) < 4e-7


@pytest.mark.parametrize("length", [320, 400])
def test_of_frames(length: int, tmp_path: Path) -> None:
    x = _noise(2, 2000, 1)
    text = (
        f"g (float[n,s,1] x) => (float[n,f,{length // 2 + 1},2] y) "
        f"<int64 hop = {{{STEP}}}, int64 size = {{{length}}}> {{ y = STFT(x, hop, , size) }}"
    )
    starts = range(0, 2000 - length + 1, STEP)
    frames = np.stack([x[:, s : s + length, 0] for s in starts], axis=1).astype(np.float64)
    (found,) = run(_written(text, tmp_path), {"x": x})
    assert _off(found, np.fft.rfft(frames)) < 2e-6


@pytest.mark.parametrize(
    "text",
    [
        "g (float[n,512,1] x) => (float[n,512,2] y) <int64 a = {1}> { y = DFT(x, , a) }",
        "g (float[n,s,1] x) => (float[n,s,2] y) <int64 a = {1}> { y = DFT(x, , a) }",
        "g (double[n,400,1] x) => (double[n,400,2] y) <int64 a = {1}> { y = DFT(x, , a) }",
        "g (float[n,s,1] x) => (float[n,f,257,2] y) <int64 h = {160}, int64 size = {512}> "
        "{ y = STFT(x, h, , size) }",
    ],
    ids=["power of two", "open", "double", "frames of a power of two"],
)
def test_others_stay(text: str, tmp_path: Path) -> None:
    written = onnx.load(_written(text, tmp_path))
    assert {"DFT", "STFT"} & {n.op_type for n in written.graph.node}
