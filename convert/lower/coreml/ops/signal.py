"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.fourier import transform
from edgeinfer.convert.lower.registry import Const, Refusal

_REAL, _COMPLEX = 1, 2


@OPS.lower("DFT", since=20, dtypes=FLOATS | {ir.DataType.INT64})
def dft(
    g: Builder,
    input: Tensor,
    dft_length: Const | None = None,
    axis: Const | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """Linear over the axis and the parts."""
    at = -2 % input.rank if axis is None else int(axis.array.reshape(-1)[0]) % input.rank
    size, parts = input.shape[at], input.shape[-1]
    if not (isinstance(size, int) and isinstance(parts, int)):
        raise Refusal("the length of the signal must be known", "dynamic_shape")
    if at == input.rank - 1 or parts not in (_REAL, _COMPLEX):
        raise Refusal(f"axis {at} of a signal of {parts} parts")
    length = int(dft_length.array.reshape(-1)[0]) if dft_length is not None else size
    if dft_length is None and inverse and onesided:
        length = 2 * (size - 1)
    weights = transform(size, parts, length, bool(inverse), bool(onesided))
    out_parts = _REAL if inverse and onesided else _COMPLEX
    others = [a for a in range(input.rank - 1) if a != at]
    order = [*others, at, input.rank - 1]
    sizes = g.extents(input)
    flat = g.reshape(g.transpose(input, order), [-1, size * parts])
    spectrum = g.emit("linear", x=flat, weight=g.const(weights, input.dtype))
    whole = [*(sizes[a] for a in others), len(weights) // out_parts, out_parts]
    return g.transpose(g.reshape(spectrum, whole), [order.index(a) for a in range(input.rank)])


@OPS.lower("STFT", since=17, dtypes=FLOATS | INTEGERS)
def stft(
    g: Builder,
    signal: Tensor,
    frame_step: Const,
    window: Const | None = None,
    frame_length: Const | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """A convolution whose filters are the windowed waves."""
    parts = 1 if signal.rank == 2 else signal.shape[2]
    if parts not in (_REAL, _COMPLEX):
        raise Refusal(f"a signal of {parts} parts")
    if onesided and parts == _COMPLEX:
        raise Refusal("onesided of a complex signal")
    if frame_length is not None:
        length = int(frame_length.array.reshape(-1)[0])
    elif window is not None:
        length = window.array.size
    else:
        raise Refusal("neither window nor frame_length")
    weights = transform(length, parts, length, False, bool(onesided))
    filters = weights.reshape(-1, length, parts).transpose(0, 2, 1)
    if window is not None:
        filters = filters * window.array.reshape(1, 1, -1)
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
