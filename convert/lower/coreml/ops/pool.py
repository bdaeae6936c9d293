"""Pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ops.maxima import dilated, with_positions
from edgeinfer.convert.lower.coreml.ops.window import SpatialWindow, window_of
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array


@OPS.lower("MaxPool")
def max_pool(
    g: Builder,
    X: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: Sequence[int] | None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None,
    storage_order: int,
    strides: Sequence[int] | None,
) -> tuple[Tensor, ...]:
    """max_pool; dilated ones, and positions, by slices."""
    window = window_of(X.shape, kernel_shape, strides, dilations, pads, auto_pad)
    late = bool(ceil_mode) and not all(isinstance(s, int) for s in X.shape[2:])
    if ceil_mode and not late:
        window = rounded_up(X, window)
    x = X if X.is_float else g.cast(X, np.float32)
    if not X.is_float and max(abs(b) for b in X.bounds) > 1 << 24:
        raise Refusal("integers beyond what float32 holds exactly", "unsupported_dtype")
    if late and (g.wants(1) or any(d != 1 for d in window.dilations)):
        raise Refusal("ceil_mode with dynamic sizes", "dynamic_shape")
    if g.wants(1):
        best, where = with_positions(g, x, window, storage_order)
        return g.cast(best, X.dtype, X.bounds), where
    if any(d != 1 for d in window.dilations):
        return (g.cast(dilated(g, x, window), X.dtype, X.bounds),)
    pooled = _pool(g, "max_pool", x, window, ceil_mode=late)
    return (g.cast(pooled, X.dtype, X.bounds),)


def _pool(g: Builder, op: str, x: Tensor, window: SpatialWindow, **options: Any) -> Tensor:
    return g.emit(
        op,
        x=x,
        kernel_sizes=window.kernel,
        strides=window.strides,
        pad_type=window.pad_type,
        pad=window.pad,
        **options,
    )


def rounded_up(x: Tensor, window: SpatialWindow) -> SpatialWindow:
    """Add the padding at the end that makes partial windows whole."""
    ends = []
    for axis, size in enumerate(x.shape[2:]):
        if not isinstance(size, int):
            raise Refusal("ceil_mode with dynamic sizes", "dynamic_shape")
        begin, end, stride = window.begin[axis], window.end[axis], window.strides[axis]
        count = -(-(size + begin + end - window.reach(axis)) // stride) + 1
        if (count - 1) * stride >= size + begin:
            # A window that starts in the padding is left out.
            count -= 1
        needed = (count - 1) * stride + window.reach(axis)
        ends.append(max(end, needed - size - begin))
    return replace(window, end=tuple(ends))


@OPS.lower("AveragePool", dtypes=FLOATS)
def average_pool(
    g: Builder,
    X: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    count_include_pad: int,
    dilations: Sequence[int] | None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """avg_pool; dilated windows by conv, partial ones with their own counts."""
    given = window_of(X.shape, kernel_shape, strides, dilations, pads, auto_pad)
    late = bool(ceil_mode) and not all(isinstance(s, int) for s in X.shape[2:])
    dilated_ = any(d != 1 for d in given.dilations)
    if late and not dilated_ and not (count_include_pad and given.pad):
        return _pool(g, "avg_pool", X, given, exclude_padding_from_average=True, ceil_mode=True)
    window = rounded_up(X, given) if ceil_mode else given
    if dilated_:
        summed = _summed(g, X, window)
        counts = _counts(X, window, given if count_include_pad else None)
        return g.binary("real_div", summed, g.const(counts, X.dtype))
    exclude = not count_include_pad
    out = _pool(g, "avg_pool", X, window, exclude_padding_from_average=exclude)
    if exclude or window.end == given.end:
        return out
    counts = _counts(X, window, given)
    return g.binary("mul", out, g.const(math.prod(window.kernel) / counts, X.dtype))


def _summed(g: Builder, x: Tensor, window: SpatialWindow) -> Tensor:
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Refusal("channels known only at run time", "dynamic_shape")
    ones = g.const(np.ones((channels, 1, *window.kernel)), x.dtype)
    return g.emit(
        "conv",
        x=x,
        weight=ones,
        strides=window.strides,
        dilations=window.dilations,
        groups=channels,
        pad_type=window.pad_type,
        pad=window.pad,
    )


def _counts(x: Tensor, window: SpatialWindow, padded: SpatialWindow | None) -> Array:
    """Elements under each window: of the input, and of the padding that ``padded`` names."""
    rows = []
    for axis, size in enumerate(x.shape[2:]):
        if not isinstance(size, int):
            raise Refusal("counts of partial windows need known sizes", "dynamic_shape")
        begin, end = window.begin[axis], window.end[axis]
        inside = np.zeros(begin + size + end)
        stop = begin + size + (0 if padded is None else padded.end[axis])
        inside[(begin if padded is None else 0) : stop] = 1
        starts = range(0, len(inside) - window.reach(axis) + 1, window.strides[axis])
        step = window.dilations[axis]
        rows.append(np.array([inside[s : s + window.reach(axis) : step].sum() for s in starts]))
    counts = np.ones(())
    for row in rows:
        counts = np.multiply.outer(counts, row)
    return counts


@OPS.lower("LpPool", dtypes=FLOATS)
def lp_pool(
    g: Builder,
    X: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: Sequence[int] | None,
    kernel_shape: Sequence[int],
    p: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """The root of a sum of powers, summed by conv."""
    window = window_of(X.shape, kernel_shape, strides, dilations, pads, auto_pad)
    if ceil_mode:
        window = rounded_up(X, window)
    size = g.unary("abs", X)
    powers = size if p == 1 else g.binary("pow", size, float(p))
    summed = _summed(g, powers, window)
    return summed if p == 1 else g.binary("pow", summed, 1.0 / p)
