"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.fourier import dft_plan, stft_plan
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("DFT", dtypes=FLOATS)
def dft(
    g: Builder,
    input: Tensor,
    dft_length: Const | None = None,
    axis: Const | None = None,
    *,
    inverse: int,
    onesided: int,
) -> Tensor:
    """Linear over the axis and the parts."""
    plan = dft_plan(input.shape, dft_length, axis, inverse, onesided)
    sizes = g.extents(input)
    flat = g.reshape(g.transpose(input, plan.order), [-1, plan.weights.shape[1]])
    spectrum = g.binary("batch_matmul", flat, g.const(plan.weights.T, input.dtype))
    whole = [*(sizes[a] for a in plan.others), plan.results, plan.parts]
    return g.transpose(g.reshape(spectrum, whole), plan.back)


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
    places = np.arange(count)[:, None] * step + np.arange(length)[None]
    line = g.reshape(signal, [g.extent(signal, 0), size, filters.shape[2]])
    frames = g.take(line, g.const(places.astype(np.int64)), 1)
    flat = g.reshape(frames, [-1, weights.shape[1]])
    waves = g.binary("batch_matmul", flat, g.const(weights.T, signal.dtype))
    return g.reshape(waves, [g.extent(signal, 0), count, len(weights) // 2, 2])
