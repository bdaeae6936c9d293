"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.fourier import StftPlan, stft
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import FLOATS, OPS

_VALID = 1


@stft(OPS, FLOATS)
def stft_(g: Builder, signal: Tensor, frames: StftPlan) -> Tensor:
    """A convolution whose filters are the windowed waves."""
    waves = frames.waves.astype(np.float32)
    filters, length = waves[:, None], waves.shape[1]
    size, step = signal.shape[1], frames.step
    count = None if size is None else (size - length) // step + 1
    line = g.reshape(signal, [g.extent(signal, 0), 1, g.extent(signal, 1), waves.shape[2]])
    bias = g.const(np.zeros(len(filters), np.float32))
    options = {"padding": _VALID, "stride_w": step, "stride_h": 1, "fused_activation_function": 0}
    dilation = {"dilation_w_factor": 1, "dilation_h_factor": 1}
    shape = (signal.shape[0], 1, count, len(filters))
    operands = [line, g.const(filters, np.float32), bias]
    spectra = g.emit("CONV_2D", operands, shape, **options, **dilation)
    sizes = [g.extent(spectra, 0), g.extent(spectra, 2), len(filters) // 2, 2]
    return g.reshape(spectra, sizes)
