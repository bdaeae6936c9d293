"""Transposed convolutions; data is channels last, weights are ONNX's (in, out / group, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import TransposedWindow
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.conv import known, parts
from edgeinfer.convert.lower.tflite.registry import NHWC, OPS
from edgeinfer.convert.lower.tflite.widen import REALS, widened
from edgeinfer.convert.lower.tflite.window import SAME, VALID


def _fits_same(w: TransposedWindow) -> bool:
    """Whether SAME keeps exactly this part."""
    total = max(w.begin + w.cut, 0)
    return -w.stride < w.growth <= 0 and w.begin == total // 2


@sliding.conv(OPS, "ConvTranspose", first=1, domain=NHWC, dtypes=REALS)
@widened
def conv_transpose(
    g: Builder,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    axes: list[TransposedWindow],
    *,
    group: int,
) -> Tensor:
    """TRANSPOSE_CONV; cut or padded afterwards where SAME keeps something else."""
    if any(a.dilation != 1 for a in axes):
        w = _spread(g, w, [a.dilation for a in axes])
        axes = [replace(a, kernel=a.span, dilation=1) for a in axes]
    if b is None:
        b = g.const(np.zeros(known(w, 1) * group), x.dtype)
    if len(axes) == 1:
        flat = [TransposedWindow(1, 1), *axes]
        return g.drop_axis(_any(g, g.insert_axis(x, 1), g.insert_axis(w, 2), b, flat, group), 1)
    if len(axes) > 3:
        raise Refusal(f"{len(axes)} spatial axes: takes up to 3", "unsupported_rank")
    return _any(g, x, w, b, axes, group)


def _any(
    g: Builder, x: Tensor, w: Tensor, b: Tensor, axes: Sequence[TransposedWindow], group: int
) -> Tensor:
    if group > 1 and w.shape[0] == group and len(axes) == 2:
        return _depthwise(g, x, w, b, axes)
    fits = all(map(_fits_same, axes))
    grows = not fits and any(a.cut < 0 for a in axes)
    # What is added at the end gets the bias too.
    bias = g.const(np.zeros(known(b, 0)), x.dtype) if grows else b
    pieces = zip(
        g.split(x, [known(w, 0) // group] * group, x.rank - 1),
        parts(g, w, group),
        parts(g, bias, group),
        strict=True,
    )
    kept, padding = (axes, SAME) if fits else ([a.whole for a in axes], VALID)
    y = g.concat([_emit(g, *piece, kept, padding) for piece in pieces], x.rank - 1)
    if grows:
        y = g.pad(y, [(0, 0), *((0, max(-a.cut, 0)) for a in axes), (0, 0)])
        y = g.binary("ADD", y, b)
    return y if fits else _cut(g, y, axes)


def _cut(g: Builder, y: Tensor, axes: Sequence[TransposedWindow]) -> Tensor:
    if not any(a.begin or a.cut > 0 for a in axes):
        return y
    begin = [0, *(a.begin for a in axes), 0]
    end = [None, *(-a.cut if a.cut > 0 else None for a in axes), None]
    return g.slice(y, begin, end, [1] * y.rank)


def _emit(
    g: Builder, x: Tensor, w: Tensor, b: Tensor, axes: Sequence[TransposedWindow], padding: int
) -> Tensor:
    sizes = [
        g.extent(x, 0),
        *(_grown(g, x, i + 1, a) for i, a in enumerate(axes)),
        known(w, 1),
    ]
    shape = [s if isinstance(s, int) else None for s in sizes]
    vector = g.shape_vector(sizes)
    options = {"padding": padding, "fused_activation_function": 0}
    if len(axes) == 2:
        options |= {"stride_h": axes[0].stride, "stride_w": axes[1].stride}
        taps = g.transpose(w, [1, 2, 3, 0])
        return g.emit("TRANSPOSE_CONV", [vector, taps, x, b], shape, x.dtype, **options)
    options |= {f"stride_{n}": a.stride for n, a in zip("dhw", axes, strict=True)}
    options |= {f"dilation_{n}_factor": 1 for n in "dhw"}
    taps = g.transpose(w, [2, 3, 4, 1, 0])
    y = g.emit("CONV_3D_TRANSPOSE", [vector, taps, x, b], shape, x.dtype, **options)
    return y


def _grown(g: Builder, x: Tensor, axis: int, a: TransposedWindow) -> Extent:
    """The size of the result on an axis, computed when the model runs if it must be."""
    if a.out is not None:
        return a.out
    size = g.extent(x, axis)
    if a.stride != 1:
        size = g.binary("MUL", size, a.stride)
    return g.binary("ADD", size, a.growth) if a.growth else size


def _depthwise(
    g: Builder, x: Tensor, w: Tensor, b: Tensor, axes: Sequence[TransposedWindow]
) -> Tensor:
    """Each channel by itself: zeros between the elements, then a convolution with flipped taps."""
    for index, axis in enumerate(axes):
        x = _interleave(g, x, index + 1, axis.stride)
    # ``size * stride`` elements now; the last ``stride - 1`` of them are zeros.
    before = [a.kernel - 1 - a.begin for a in axes]
    after = [a.growth - lo + a.kernel - 1 for a, lo in zip(axes, before, strict=True)]
    pads = [(max(lo, 0), max(hi, 0)) for lo, hi in zip(before, after, strict=True)]
    if any(n < 0 for n in (*before, *after)):
        begin = [0, *(max(-n, 0) for n in before), 0]
        end = [None, *(n if n < 0 else None for n in after), None]
        x = g.slice(x, begin, end, [1] * 4)
    x = g.pad(x, [(0, 0), *pads, (0, 0)])
    channels, each = known(w, 0), known(w, 1)
    if w.data is None:
        raise Refusal("weights of a grouped one must be constant", "requires_constant")
    taps = w.data.reshape(channels * each, *w.data.shape[2:])[:, ::-1, ::-1]
    shape = [x.shape[0], *(a.out for a in axes), channels * each]
    options = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1}
    return g.emit(
        "DEPTHWISE_CONV_2D",
        [x, g.const(taps.transpose(1, 2, 0)[None]), b],
        shape,
        padding=VALID,
        fused_activation_function=0,
        depth_multiplier=each,
        **options,
    )


def _interleave(g: Builder, x: Tensor, axis: int, stride: int) -> Tensor:
    """Put ``stride - 1`` zeros after every element of an axis."""
    if stride == 1:
        return x
    wide = g.insert_axis(x, axis + 1)
    pads = [(0, stride - 1) if i == axis + 1 else (0, 0) for i in range(wide.rank)]
    wide = g.pad(wide, pads)
    sizes = [g.extent(x, i) for i in range(x.rank)]
    size = x.shape[axis]
    sizes[axis] = -1 if size is None else size * stride
    return g.reshape(wide, sizes)


def _spread(g: Builder, w: Tensor, dilations: Sequence[int]) -> Tensor:
    """Write the zeros between dilated taps out."""
    if w.data is None:
        raise Refusal("dilated weights must be constant", "requires_constant")
    spans = [(k - 1) * d + 1 for k, d in zip(w.data.shape[2:], dilations, strict=True)]
    wide = np.zeros((*w.data.shape[:2], *spans), w.data.dtype)
    steps: tuple[Any, ...] = tuple(slice(None, None, d) for d in dilations)
    wide[(slice(None), slice(None), *steps)] = w.data
    return g.const(wide)
