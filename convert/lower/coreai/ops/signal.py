"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.fourier import transform
from edgeinfer.convert.lower.registry import Const, Refusal

_REAL, _COMPLEX = 1, 2


@OPS.lower("DFT", since=20, dtypes=FLOATS)
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
    if size is None or parts is None:
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
    spectrum = g.binary("batch_matmul", flat, g.const(weights.T, input.dtype))
    whole = [*(sizes[a] for a in others), len(weights) // out_parts, out_parts]
    return g.transpose(g.reshape(spectrum, whole), [order.index(a) for a in range(input.rank)])


@OPS.lower("STFT", since=17, dtypes=FLOATS)
def stft(
    g: Builder,
    signal: Tensor,
    frame_step: Const,
    window: Const | None = None,
    frame_length: Const | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """Frames, which are gathered, by windowed waves."""
    parts = 1 if signal.rank == 2 else signal.shape[2]
    size = signal.shape[1]
    if size is None:
        raise Refusal("the length of the signal must be known", "dynamic_shape")
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
    step = int(frame_step.array.reshape(-1)[0])
    weights = transform(length, parts, length, False, bool(onesided))
    if window is not None:
        weights = weights * np.repeat(window.array.reshape(-1), parts)[None]
    count = (size - length) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(length)[None]
    line = g.reshape(signal, [g.extent(signal, 0), size, parts])
    frames = g.take(line, g.const(places.astype(np.int64)), 1)
    flat = g.reshape(frames, [-1, length * parts])
    waves = g.binary("batch_matmul", flat, g.const(weights.T, signal.dtype))
    return g.reshape(waves, [g.extent(signal, 0), count, len(weights) // _COMPLEX, _COMPLEX])
