"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from tvm import te, tirx

from edgeinfer.convert.lower.core import window as sliding
from edgeinfer.convert.lower.core.window import Windows
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.reduce import combining, least
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS
from edgeinfer.kernels.defs.math import is_nan

_POOLED = FLOATS | {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT64}
"""The last one of positions."""


def _taken(w: Windows, place: Sequence[Any], taps: Sequence[Any], data: Any) -> tuple[Any, Any]:
    at = [
        p * w[a].stride + k * w[a].dilation - w[a].begin
        for a, (p, k) in enumerate(zip(place, taps, strict=True))
    ]
    tests = [t for a, i in enumerate(at) for t in (i >= 0, i < data.shape[2 + a])]
    return at, tirx.all(*tests)


@sliding.pool(OPS, "MaxPool", dtypes=_POOLED)
def max_pool(
    g: Builder, X: Tensor, asked: Windows, *, ceil_mode: int, storage_order: int
) -> tuple[Tensor, Tensor]:
    """The largest element of each window, and where the first of them stands."""
    w = asked.explicit()
    outs = [axis.count() for axis in w.reaching(ceil_mode)]
    low = least(X.dtype)
    whole = not (w.padded or ceil_mode)
    largest = combining("max") if X.dtype.startswith("float") else te.max

    def compute(data: Any) -> Any:
        ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]

        def element(n: Any, c: Any, *place: Any) -> Any:
            at, inside = _taken(w, place, ks, data)
            value = data(n, c, *at)
            return largest(value if whole else tirx.if_then_else(inside, value, low), axis=ks)

        return te.compute((data.shape[0], data.shape[1], *outs), element, name="max_pool")

    made = g.te(compute, X, name="max_pool")
    return made, _places(g, X, made, w, bool(storage_order)) if g.wants(1) else made


def _places(g: Builder, x: Tensor, found: Tensor, w: Windows, column_major: bool) -> Tensor:
    """Indices of the largest elements in the whole tensor; column-major where ``column_major``."""
    top = tirx.const(np.iinfo(np.int64).max, "int64")

    def first(data: Any, largest: Any) -> Any:
        ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]

        def element(n: Any, c: Any, *place: Any) -> Any:
            at, inside = _taken(w, place, ks, data)
            flat: Any = tirx.const(0, "int64")
            for i, size in zip(at, data.shape[2:], strict=True):
                flat = flat * size + i
            value, most = data(n, c, *at), largest(n, c, *place)
            hit = tirx.EQ(value, most)
            if x.dtype.startswith("float"):
                hit = tirx.Or(hit, tirx.And(is_nan(value), is_nan(most)))
            own = tirx.if_then_else(inside, tirx.Select(hit, flat, top), top)
            return te.min(own.astype("int64"), axis=ks)

        return te.compute(largest.shape, element, name="positions")

    def whole(indices: Any, data: Any) -> Any:
        sizes = data.shape[2:]

        def element(n: Any, c: Any, *rest: Any) -> Any:
            place = indices(n, c, *rest)
            if column_major:
                place = _in_columns(place, sizes)
            before = n.astype("int64") * data.shape[1] + c.astype("int64")
            return before * prod(sizes) + place

        return te.compute(indices.shape, element, name="indices")

    return g.te(whole, g.te(first, x, found, name="positions"), x, name="indices")


def _in_columns(place: Any, sizes: Sequence[Any]) -> Any:
    """Count a place of rows one after the other in columns one after the other."""
    own = []
    for size in reversed(sizes):
        own.append(tirx.floormod(place, tirx.Cast("int64", size)))
        place = tirx.floordiv(place, tirx.Cast("int64", size))
    result: Any = tirx.const(0, "int64")
    for index, size in zip(own, reversed(sizes), strict=True):
        result = result * size + index
    return result


@sliding.pool(OPS, "AveragePool", dtypes=FLOATS)
def average_pool(
    g: Builder, X: Tensor, asked: Windows, *, ceil_mode: int, count_include_pad: int
) -> Tensor:
    """The mean of each window."""
    w = asked.explicit()
    outs = [axis.count() for axis in w.reaching(ceil_mode)]
    whole = not (w.padded or ceil_mode)
    zero = tirx.const(0, "float32" if X.dtype == "float16" else X.dtype)
    kind = "float32" if X.dtype == "float16" else X.dtype

    def compute(data: Any) -> Any:
        ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]
        shape = (data.shape[0], data.shape[1], *outs)

        def total(n: Any, c: Any, *place: Any) -> Any:
            at, inside = _taken(w, place, ks, data)
            value = data(n, c, *at).astype(kind)
            return te.sum(value if whole else tirx.if_then_else(inside, value, zero), axis=ks)

        sums = te.compute(shape, total, name="sums")

        def element(*index: Any) -> Any:
            count: Any = tirx.const(1, "int64")
            for a, p in enumerate(index[2:]):
                count = count * _count(w, a, p, data.shape[2 + a], bool(count_include_pad))
            return (sums(*index) / count.astype(kind)).astype(X.dtype)

        if whole:
            scale = tirx.const(1 / prod(w.kernel), kind)
            return te.compute(shape, lambda *i: (sums(*i) * scale).astype(X.dtype), name="mean")
        return te.compute(shape, element, name="mean")

    return g.te(compute, X, name="average_pool")


def _count(at: Windows, axis: int, place: Any, size: Any, padded: bool) -> Any:
    """Elements of a window along an axis that count."""
    w = at[axis]
    first = place * w.stride - w.begin
    low = -w.begin if padded else 0
    high = size + (w.end if padded else 0)
    spread, taps = w.dilation, w.kernel
    # Taps k with low <= first + k * spread < high.
    start = tirx.max(0, tirx.floordiv(low - first + spread - 1, spread))
    stop = tirx.min(taps, tirx.floordiv(high - 1 - first, spread) + 1)
    return tirx.max(1, (stop - start)).astype("int64")
