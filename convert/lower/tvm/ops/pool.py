"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from tvm import te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.reduce import least
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS
from edgeinfer.convert.lower.tvm.windows import Windows, windows
from edgeinfer.kernels.defs.math import constant, is_nan

_POOLED = FLOATS | {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT64}
"""The last one of places."""


def _outs(x: Tensor, w: Windows, ceil_mode: int) -> list[Any]:
    spatial = x.shape[2:]
    if ceil_mode and not all(isinstance(s, int) for s in spatial):
        raise Refusal("rounding up an open size", "dynamic_shape")
    return [w.out(a, s, ceil=bool(ceil_mode)) for a, s in enumerate(spatial)]


def _taken(w: Windows, place: Sequence[Any], taps: Sequence[Any], data: Any) -> tuple[Any, Any]:
    at = [
        p * w.strides[a] + k * w.dilations[a] - w.before[a]
        for a, (p, k) in enumerate(zip(place, taps, strict=True))
    ]
    tests = [t for a, i in enumerate(at) for t in (i >= 0, i < data.shape[2 + a])]
    return at, tirx.all(*tests)


@OPS.lower("MaxPool", dtypes=_POOLED)
def max_pool(
    g: Builder,
    X: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str,
    ceil_mode: int,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    storage_order: int,
    strides: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """The largest element of each window, and where the first of them stands."""
    w = windows(X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    outs = _outs(X, w, ceil_mode)
    low = least(X.dtype)
    whole = not (any(w.before) or any(w.after) or ceil_mode)

    def compute(data: Any) -> Any:
        ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]

        def element(n: Any, c: Any, *place: Any) -> Any:
            at, inside = _taken(w, place, ks, data)
            value = data(n, c, *at)
            return te.max(value if whole else tirx.if_then_else(inside, value, low), axis=ks)

        return te.compute((data.shape[0], data.shape[1], *outs), element, name="max_pool")

    made = g.te(compute, X, name="max_pool")
    return made, _places(g, X, made, w, bool(storage_order)) if g.wants(1) else made


def _places(g: Builder, x: Tensor, found: Tensor, w: Windows, turned: bool) -> Tensor:
    """Where the largest elements stand, counted over all of the tensor; in columns if turned."""
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

        return te.compute(largest.shape, element, name="places")

    def whole(places: Any, data: Any) -> Any:
        sizes = data.shape[2:]

        def element(n: Any, c: Any, *rest: Any) -> Any:
            place = places(n, c, *rest)
            if turned:
                place = _in_columns(place, sizes)
            before = n.astype("int64") * data.shape[1] + c.astype("int64")
            return before * prod(sizes) + place

        return te.compute(places.shape, element, name="indices")

    return g.te(whole, g.te(first, x, found, name="places"), x, name="indices")


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


@OPS.lower("AveragePool", dtypes=FLOATS)
def average_pool(
    g: Builder,
    X: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str,
    ceil_mode: int,
    count_include_pad: int,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """The mean of each window."""
    w = windows(X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    outs = _outs(X, w, ceil_mode)
    whole = not (any(w.before) or any(w.after) or ceil_mode)
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


def _count(w: Windows, axis: int, place: Any, size: Any, padded: bool) -> Any:
    """Elements of a window along an axis that count."""
    first = place * w.strides[axis] - w.before[axis]
    low = -w.before[axis] if padded else 0
    high = size + (w.after[axis] if padded else 0)
    spread, taps = w.dilations[axis], w.kernel[axis]
    # Taps k with low <= first + k * spread < high.
    start = tirx.max(0, tirx.floordiv(low - first + spread - 1, spread))
    stop = tirx.min(taps, tirx.floordiv(high - 1 - first, spread) + 1)
    return tirx.max(1, (stop - start)).astype("int64")


@OPS.lower("LpPool", dtypes=frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE}))
def lp_pool(
    g: Builder,
    X: Tensor,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str,
    ceil_mode: int,
    dilations: Sequence[int] | None,
    p: int,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """The p-norm of each window."""
    w = windows(X.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    outs = _outs(X, w, ceil_mode)
    zero = tirx.const(0, X.dtype)

    def compute(data: Any) -> Any:
        ks = [te.reduce_axis((0, k), f"k{a}") for a, k in enumerate(w.kernel)]

        def element(n: Any, c: Any, *place: Any) -> Any:
            at, inside = _taken(w, place, ks, data)
            power = _power(tirx.abs(data(n, c, *at)), p)
            return te.sum(tirx.if_then_else(inside, power, zero), axis=ks)

        shape = (data.shape[0], data.shape[1], *outs)
        sums = te.compute(shape, element, name="sums")
        return te.compute(shape, lambda *i: _root(sums(*i), p), name="roots")

    return g.te(compute, X, name="lp_pool")


def _power(value: Any, p: int) -> Any:
    return (
        value if p == 1 else value * value if p == 2 else tirx.pow(value, constant(float(p), value))
    )


def _root(value: Any, p: int) -> Any:
    return (
        value if p == 1 else tirx.sqrt(value) if p == 2 else tirx.pow(value, constant(1 / p, value))
    )
