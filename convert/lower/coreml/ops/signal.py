"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.fourier import StftPlan, stft


@stft(OPS, FLOATS | INTEGERS)
def stft_(g: Builder, signal: Tensor, frames: StftPlan) -> Tensor:
    """A convolution whose filters are the windowed waves."""
    filters = frames.waves.transpose(0, 2, 1)
    line = g.reshape(signal, [g.extent(signal, 0), g.extent(signal, 1), frames.parts])
    waves = g.emit(
        "conv",
        x=g.transpose(line, [0, 2, 1]),
        weight=g.const(filters, signal.dtype),
        strides=[frames.step],
        pad_type="valid",
    )
    transposed = g.transpose(waves, [0, 2, 1])
    return g.reshape(
        transposed, [g.extent(transposed, 0), g.extent(transposed, 1), len(filters) // 2, 2]
    )
