"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.fourier import stft_plan
from edgeinfer.convert.lower.registry import Const
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import FLOATS, OPS

_VALID = 1


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
    """A convolution whose filters are the windowed waves."""
    parts = 1 if signal.rank == 2 else signal.shape[2]
    waves = stft_plan(parts, window, frame_length, onesided).astype(np.float32)
    filters, length = waves[:, None], waves.shape[1]
    step = int(frame_step.array.ravel()[0])
    size = signal.shape[1]
    frames = None if size is None else (size - length) // step + 1
    line = g.reshape(signal, [g.extent(signal, 0), 1, g.extent(signal, 1), waves.shape[2]])
    bias = g.const(np.zeros(len(filters), np.float32))
    options = {"padding": _VALID, "stride_w": step, "stride_h": 1, "fused_activation_function": 0}
    dilation = {"dilation_w_factor": 1, "dilation_h_factor": 1}
    shape = (signal.shape[0], 1, frames, len(filters))
    operands = [line, g.const(filters, np.float32), bias]
    spectra = g.emit("CONV_2D", operands, shape, **options, **dilation)
    sizes = [g.extent(spectra, 0), g.extent(spectra, 2), len(filters) // 2, 2]
    return g.reshape(spectra, sizes)
