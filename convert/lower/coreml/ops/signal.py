"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.fourier import dft_plan, stft_plan
from edgeinfer.convert.lower.registry import Const


@OPS.lower("DFT", dtypes=FLOATS | {ir.DataType.INT64})
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
    spectrum = g.emit("linear", x=flat, weight=g.const(plan.weights, input.dtype))
    whole = [*(sizes[a] for a in plan.others), plan.results, plan.parts]
    return g.transpose(g.reshape(spectrum, whole), plan.back)


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
    turned = g.transpose(waves, [0, 2, 1])
    return g.reshape(turned, [g.extent(turned, 0), g.extent(turned, 1), len(filters) // 2, 2])
