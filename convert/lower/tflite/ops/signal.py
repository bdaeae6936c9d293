"""Fourier transforms as products with constant matrices, and the windows that go with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.fourier import stft_plan
from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, FLOATS, OPS

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


@OPS.lower("HannWindow", dtypes=ANY)
def hann_window(g: Builder, size: Const, *, output_datatype: int, periodic: int) -> Tensor:
    """A constant."""
    return _window(g, size, (0.5, -0.5), output_datatype, periodic)


@OPS.lower("HammingWindow", dtypes=ANY)
def hamming_window(g: Builder, size: Const, *, output_datatype: int, periodic: int) -> Tensor:
    """A constant."""
    return _window(g, size, (25 / 46, -21 / 46), output_datatype, periodic)


@OPS.lower("BlackmanWindow", dtypes=ANY)
def blackman_window(g: Builder, size: Const, *, output_datatype: int, periodic: int) -> Tensor:
    """A constant."""
    return _window(g, size, (0.42, -0.5, 0.08), output_datatype, periodic)


def _window(
    g: Builder, size: Const, waves: tuple[float, ...], output_datatype: int, periodic: int
) -> Tensor:
    """A sum of cosines of whole periods."""
    count = int(size.array.ravel()[0])
    angle = 2 * np.pi * np.arange(count) / max(count if periodic else count - 1, 1)
    values = sum(amount * np.cos(k * angle) for k, amount in enumerate(waves))
    return g.const(np.asarray(values).astype(_numpy_kind(output_datatype)))


def _numpy_kind(output_datatype: int) -> np.dtype[Any]:
    kind = ir.DataType(output_datatype)
    if kind not in ANY:
        raise Refusal(f"cannot hold {kind.name.lower()}", "unsupported_dtype")
    return np.dtype(kind.numpy())
