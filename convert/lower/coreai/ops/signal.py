"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.fourier import stft_plan
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("STFT", dtypes=FLOATS)
def stft(
    g: Builder,
    signal: Tensor,
    frame_step: Const,
    window: Const | None = None,
    frame_length: Const | None = None,
    *,
    onesided: int,
) -> Tensor:
    """Frames, which are gathered, by windowed waves."""
    parts = 1 if signal.rank == 2 else signal.shape[2]
    size = signal.shape[1]
    if size is None:
        raise Refusal("the length of the signal must be known", "dynamic_shape")
    filters = stft_plan(parts, window, frame_length, onesided)
    length = filters.shape[1]
    weights = filters.reshape(len(filters), -1)
    step = int(frame_step.array.reshape(-1)[0])
    count = (size - length) // step + 1
    indices = np.arange(count)[:, None] * step + np.arange(length)[None]
    line = g.reshape(signal, [g.extent(signal, 0), size, filters.shape[2]])
    frames = g.take(line, g.const(indices.astype(np.int64)), 1)
    flat = g.reshape(frames, [-1, weights.shape[1]])
    waves = g.binary("batch_matmul", flat, g.const(weights.T, signal.dtype))
    return g.reshape(waves, [g.extent(signal, 0), count, len(weights) // 2, 2])
