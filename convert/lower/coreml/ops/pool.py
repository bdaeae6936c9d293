"""Pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import Windows
from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ops.conv import placed
from edgeinfer.convert.lower.coreml.ops.maxima import dilated, with_positions
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array


@sliding.pool(OPS, "MaxPool")
def max_pool(
    g: Builder, X: Tensor, at: Windows, *, ceil_mode: int, storage_order: int
) -> tuple[Tensor, ...]:
    """max_pool; dilated ones, and positions, by slices."""
    late = bool(ceil_mode) and not all(w.is_known for w in at)
    window = at if late else at.reaching(ceil_mode)
    x = X if X.is_float else g.cast(X, np.float32)
    if not X.is_float and max(abs(b) for b in X.bounds) > 1 << 24:
        raise Refusal("integers beyond what float32 holds exactly", "unsupported_dtype")
    if late and (g.wants(1) or window.dilated or not at.rounds_up):
        raise Refusal("ceil_mode with dynamic sizes", "dynamic_shape")
    if g.wants(1):
        best, where = with_positions(g, x, window, storage_order)
        return g.cast(best, X.dtype, X.bounds), where
    if window.dilated:
        return (g.cast(dilated(g, x, window), X.dtype, X.bounds),)
    pooled = _pool(g, "max_pool", x, window, ceil_mode=late)
    return (g.cast(pooled, X.dtype, X.bounds),)


def _pool(g: Builder, op: str, x: Tensor, window: Windows, **options: Any) -> Tensor:
    where = placed(x, window)
    del where["dilations"]
    return g.emit(op, x=x, kernel_sizes=window.kernel, **where, **options)


@sliding.pool(OPS, "AveragePool", dtypes=FLOATS)
def average_pool(
    g: Builder, X: Tensor, given: Windows, *, ceil_mode: int, count_include_pad: int
) -> Tensor:
    """avg_pool; dilated windows by conv, partial ones with their own counts."""
    late = bool(ceil_mode) and not all(w.is_known for w in given)
    simple = not given.dilated and not (count_include_pad and any(given.begin + given.end))
    if late and simple and given.rounds_up:
        return _pool(g, "avg_pool", X, given, exclude_padding_from_average=True, ceil_mode=True)
    window = given.reaching(ceil_mode)
    if window.dilated:
        summed = _summed(g, X, window)
        counts = _counts(window, given if count_include_pad else None)
        return g.binary("real_div", summed, g.const(counts, X.dtype))
    exclude = not count_include_pad
    out = _pool(g, "avg_pool", X, window, exclude_padding_from_average=exclude)
    if exclude or all(w.end <= asked.end for w, asked in zip(window, given, strict=True)):
        return out
    counts = _counts(window, given)
    return g.binary("mul", out, g.const(math.prod(window.kernel) / counts, X.dtype))


def _summed(g: Builder, x: Tensor, window: Windows) -> Tensor:
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Refusal("channels known only at run time", "dynamic_shape")
    ones = g.const(np.ones((channels, 1, *window.kernel)), x.dtype)
    return g.emit("conv", x=x, weight=ones, groups=channels, **placed(x, window))


def _counts(window: Windows, padded: Windows | None) -> Array:
    """Elements under each window: of the input, and of the padding that ``padded`` names."""
    rows = []
    for axis, w in enumerate(window.explicit()):
        if not w.is_known:
            raise Refusal("counts of partial windows need known sizes", "dynamic_shape")
        inside = np.zeros(w.begin + w.size + w.end)
        stop = w.begin + w.size + (0 if padded is None else padded[axis].end)
        inside[(w.begin if padded is None else 0) : stop] = 1
        starts = range(0, len(inside) - w.span + 1, w.stride)
        rows.append(np.array([inside[s : s + w.span : w.dilation].sum() for s in starts]))
    counts = np.ones(())
    for row in rows:
        counts = np.multiply.outer(counts, row)
    return counts
