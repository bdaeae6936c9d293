"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.fourier import stft_plan
from edgeinfer.convert.lower.registry import Const


@OPS.lower("STFT", dtypes=FLOATS | INTEGERS)
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
    filters = stft_plan(parts, window, frame_length, onesided).transpose(0, 2, 1)
    line = g.reshape(signal, [g.extent(signal, 0), g.extent(signal, 1), parts])
    waves = g.emit(
        "conv",
        x=g.transpose(line, [0, 2, 1]),
        weight=g.const(filters, signal.dtype),
        strides=[int(frame_step.array.reshape(-1)[0])],
        pad_type="valid",
    )
    transposed = g.transpose(waves, [0, 2, 1])
    return g.reshape(
        transposed, [g.extent(transposed, 0), g.extent(transposed, 1), len(filters) // 2, 2]
    )
