"""Pooling over one, two and three spatial axes; data is channels last.

TFLite pools planes, without dilation, and leaves padding out of every mean. The rest is composed:
a window over three axes is one over two and then one over the third, a dilated one is a few strided
slices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import AxisWindow, Windows
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.ops.integer import select
from edgeinfer.convert.lower.tflite.registry import NHWC, OPS
from edgeinfer.convert.lower.tflite.widen import REALS, widened
from edgeinfer.convert.lower.tflite.window import SAME, VALID, fits_same
from edgeinfer.types import Array

BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})

Axes = Sequence[AxisWindow]


@sliding.pool(OPS, "MaxPool", dtypes=REALS | BYTES | {ir.DataType.INT64})
def max_pool_with_indices(
    g: Builder, x: Tensor, at: Windows, *, ceil_mode: int, storage_order: int
) -> tuple[Tensor, Tensor]:
    """Tap by tap: the layout pass leaves those with a second result channels first."""
    axes = at.reaching(ceil_mode)
    if not x.is_static:
        raise Refusal("indices of maxima need known sizes", "dynamic_shape")
    if math.prod(at.kernel) > _TAPS:
        raise Refusal(f"indices of maxima of more than {_TAPS} elements")
    padded = g.cast(x, np.float32)
    around = [(0, 0), (0, 0), *((w.begin, w.end) for w in axes)]
    padded = g.pad(padded, around, -math.inf)
    indices = _flat_places(x.static_shape, around, storage_order)
    best: Tensor | None = None
    where: Tensor | None = None
    for tap in itertools.product(*(range(w.kernel) for w in axes)):
        spans = [_taken(w, t) for w, t in zip(axes, tap, strict=True)]
        begin = [0, 0, *(s.start for s in spans)]
        end = [None, None, *(s.stop for s in spans)]
        step = [1, 1, *(s.step for s in spans)]
        part = g.slice(padded, begin, end, step)
        index = np.ascontiguousarray(indices[(slice(None), slice(None), *spans)])
        if best is None or where is None:
            best, where, known = part, g.const(index), index
            continue
        # Padding has no index: the first element of the window stands for a window without maximum.
        more = g.binary("GREATER", part, best)
        empty = (known < 0) & (index >= 0)
        if empty.any():
            more = g.binary("LOGICAL_OR", more, g.const(empty))
        known = np.where(empty, index, known)
        where = select(g, more, g.const(index), where)
        best = g.binary("MAXIMUM", best, part)
    if best is None or where is None:
        raise Refusal("a window without elements")
    return g.cast(best, x.dtype), where


_TAPS = 64
"""Elements of a window; each is an operator or three."""


def _taken(w: AxisWindow, tap: int) -> slice:
    count = w.count()
    first = tap * w.dilation
    return slice(first, first + ((count or 0) - 1) * w.stride + 1, w.stride)


def _flat_places(shape: Sequence[int], around: Sequence[tuple[int, int]], columns: int) -> Array:
    """The index of every element in the flattened tensor; -1 for padding."""
    if columns:
        outer, inner = shape[:2], shape[2:]
        flat = np.arange(math.prod(shape)).reshape(*outer, *inner[::-1])
        flat = flat.transpose(0, 1, *range(len(shape) - 1, 1, -1))
    else:
        flat = np.arange(math.prod(shape)).reshape(shape)
    return np.pad(flat.astype(np.int64), list(around), constant_values=-1)


@sliding.pool(OPS, "MaxPool", first=1, domain=NHWC, dtypes=REALS | BYTES)
def max_pool(g: Builder, x: Tensor, at: Windows, *, ceil_mode: int) -> Tensor:
    """MAX_POOL_2D; padded with the lowest number where SAME pads otherwise."""
    axes = at.reaching(ceil_mode)
    if x.dtype != np.float32 and x.quantization is None:
        # The kernels for bytes need a scale; float32 holds every byte and half exactly.
        return g.cast(max_pool_of(g, g.cast(x, np.float32), axes), x.dtype)
    return max_pool_of(g, x, axes)


def max_pool_of(g: Builder, x: Tensor, axes: Axes) -> Tensor:
    """Take the maximum of each window."""
    lowest = -math.inf if x.dtype.kind == "f" else int(np.iinfo(x.dtype).min)
    if any(w.dilation != 1 for w in axes):
        return _by_slices(g, "MAXIMUM", _pad(g, x, axes, lowest), axes)

    def pool(y: Tensor, plane: Axes) -> Tensor:
        if all(map(fits_same, plane)) and any(w.padded for w in plane):
            return _pool_2d(g, "MAX_POOL_2D", y, plane, SAME)
        return _pool_2d(g, "MAX_POOL_2D", _pad(g, y, plane, lowest), plane, VALID)

    return _over_planes(g, x, axes, pool)


@sliding.pool(OPS, "AveragePool", first=1, domain=NHWC, dtypes=REALS)
@widened
def average_pool(
    g: Builder, x: Tensor, at: Windows, *, ceil_mode: int, count_include_pad: int
) -> Tensor:
    """AVERAGE_POOL_2D, corrected where padding counts differently."""
    asked = [(w.begin, w.end) for w in at]
    axes = at.reaching(ceil_mode)
    padded = axes.padded
    plain = not axes.dilated
    if plain and (not padded or (all(map(fits_same, axes)) and not count_include_pad)):
        return _over_planes(
            g, x, axes, lambda y, p: _pool_2d(g, "AVERAGE_POOL_2D", y, p, SAME if padded else VALID)
        )
    mean = _padded_mean(g, x, axes)
    counted = asked if count_include_pad else [(0, 0)] * len(axes)
    if counted == [(w.begin, w.end) for w in axes]:
        return mean
    if x.is_static:
        factor = _correction(axes, counted)
        return mean if np.all(factor == 1) else g.binary("MUL", mean, g.const(factor, x.dtype))
    share = _padded_mean(g, _ones(g, x, counted), [w.after(*c) for w, c in _zip(axes, counted)])
    return g.binary("DIV", mean, share)


def _pad(g: Builder, x: Tensor, axes: Axes, value: float | None = None) -> Tensor:
    outer = [(0, 0)] * (x.rank - 1 - len(axes))
    around = [(w.begin, w.end) for w in Windows(axes).explicit()]
    return g.pad(x, [*outer, *around, (0, 0)], value)


def _padded_mean(g: Builder, x: Tensor, axes: Axes) -> Tensor:
    """The mean of each window, where padding counts as zeros."""
    x = _pad(g, x, axes)
    bare = [w.after(w.begin, w.end) for w in axes]
    if any(w.dilation != 1 for w in axes):
        taps = math.prod(w.kernel for w in axes)
        return g.binary("MUL", _by_slices(g, "ADD", x, bare), 1.0 / taps)
    return _over_planes(g, x, bare, lambda y, p: _pool_2d(g, "AVERAGE_POOL_2D", y, p, VALID))


def _over_planes(
    g: Builder, x: Tensor, axes: Axes, pool: Callable[[Tensor, Axes], Tensor]
) -> Tensor:
    """Pool one, two or three axes with something that pools two."""
    if len(axes) == 1:
        return g.drop_axis(pool(g.insert_axis(x, 1), [AxisWindow(1, 1), *axes]), 1)
    if len(axes) == 2:
        return pool(x, axes)
    if len(axes) != 3:
        raise Refusal(f"{len(axes)} spatial axes: takes up to 3", "unsupported_rank")
    batch, depth, channels = g.extent(x, 0), g.extent(x, 1), g.extent(x, 4)
    planes = g.reshape(x, [-1, *(g.extent(x, i) for i in (2, 3, 4))], (None, *x.shape[2:]))
    planes = pool(planes, axes[1:])
    height, width = g.extent(planes, 1), g.extent(planes, 2)
    columns = g.reshape(planes, [batch, depth, -1, channels])
    columns = pool(columns, [axes[0], AxisWindow(columns.shape[2], 1)])
    return g.reshape(columns, [batch, -1, height, width, channels])


def _pool_2d(g: Builder, code: str, x: Tensor, axes: Axes, padding: int) -> Tensor:
    counts = [w.count() for w in axes]
    y = g.emit(
        code,
        [x],
        [x.shape[0], *counts, x.shape[3]],
        padding=padding,
        stride_h=axes[0].stride,
        stride_w=axes[1].stride,
        filter_height=axes[0].kernel,
        filter_width=axes[1].kernel,
        fused_activation_function=0,
    )
    y.quantization = x.quantization
    return y


def _by_slices(g: Builder, code: str, x: Tensor, axes: Axes) -> Tensor:
    """Combine the taps of padded windows, axis by axis."""
    for index, w in enumerate(axes, start=1):
        parts = []
        for tap in range(w.kernel):
            begin, end, step = [0] * x.rank, [None] * x.rank, [1] * x.rank
            limits: list[int | None] = list(end)
            begin[index], step[index] = tap * w.dilation, w.stride
            limits[index] = (tap * w.dilation - w.span + 1) or None
            parts.append(g.slice(x, begin, limits, step))
        x = reduce(lambda a, b: g.binary(code, a, b), parts)
    return x


def _zip(
    axes: Axes, counted: Sequence[tuple[int, int]]
) -> list[tuple[AxisWindow, tuple[int, int]]]:
    return list(zip(axes, counted, strict=True))


def _correction(axes: Axes, counted: Sequence[tuple[int, int]]) -> Array:
    """What to multiply means over all taps with, so that only counted elements matter."""
    factor = np.ones((1, *[1] * len(axes), 1))
    for index, (w, (begin, end)) in enumerate(_zip(axes, counted), start=1):
        size = w.size or 0
        inside = np.zeros(w.begin + size + w.end)
        inside[w.begin - begin : w.begin + size + end] = 1
        starts = range(0, len(inside) - w.span + 1, w.stride)
        count = np.array([inside[s : s + w.span : w.dilation].sum() for s in starts])
        factor = factor * np.expand_dims(
            w.kernel / count, [i for i in range(factor.ndim) if i != index]
        )
    return factor


def _ones(g: Builder, x: Tensor, counted: Sequence[tuple[int, int]]) -> Tensor:
    """Ones where elements count, for one sample and channel."""
    sizes = [1, *(g.extent(x, i) for i in range(1, x.rank - 1)), 1]
    shape = [1, *x.shape[1:-1], 1]
    ones = g.emit("FILL", [g.shape_vector(sizes), g.const(1, x.dtype)], shape, x.dtype)
    return g.pad(ones, [(0, 0), *counted, (0, 0)], 1.0)
