"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.fourier import StftPlan, stft
from edgeinfer.convert.lower.registry import Refusal


@stft(OPS, FLOATS)
def stft_(g: Builder, signal: Tensor, frames: StftPlan) -> Tensor:
    """StftPlan, which are gathered, by windowed waves."""
    size = signal.shape[1]
    if size is None:
        raise Refusal("the length of the signal must be known", "dynamic_shape")
    filters, step = frames.waves, frames.step
    length = filters.shape[1]
    weights = filters.reshape(len(filters), -1)
    count = (size - length) // step + 1
    indices = np.arange(count)[:, None] * step + np.arange(length)[None]
    line = g.reshape(signal, [g.extent(signal, 0), size, filters.shape[2]])
    cut = g.take(line, g.const(indices.astype(np.int64)), 1)
    flat = g.reshape(cut, [-1, weights.shape[1]])
    waves = g.binary("batch_matmul", flat, g.const(weights.T, signal.dtype))
    return g.reshape(waves, [g.extent(signal, 0), count, len(weights) // 2, 2])
