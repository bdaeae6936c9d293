# ruff: noqa: N803  (arguments have ONNX's names)
"""Reductions, searches and running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import ALL, FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Span, Tensor
from edgeinfer.convert.lower.ops import norm
from edgeinfer.convert.lower.registry import Const, Refusal

_STEPS = 64
"""Running products up to which each step is written out."""


def _axes(x: Tensor, axes: Const | None, noop: int) -> list[int]:
    if axes is not None and axes.array.size:
        return sorted({int(a) % x.rank for a in axes.array.reshape(-1)}) if x.rank else []
    return [] if noop else list(range(x.rank))


def _count(x: Tensor, axes: Sequence[int]) -> int:
    """How many elements become one; as many as may be where sizes are not known."""
    sizes = [x.shape[a] for a in axes]
    return math.prod(sizes) if all(isinstance(s, int) for s in sizes) else 1 << 31


def _reduced(
    g: Builder, op: str, x: Tensor, axes: Const | None, keepdims: int, noop: int
) -> Tensor:
    """Reduce numbers; ``op`` gets at least one axis, or sees a scalar."""
    places = _axes(x, axes, noop)
    if not places and not noop and x.rank == 0:
        one = g.reduce(op, g.reshape(x, [1]), [0], True)
        return g.reshape(one, [])
    return g.reduce(op, x, places, bool(keepdims)) if places else x


def _sum_span(x: Tensor, count: int) -> Span:
    low, high = x.bounds
    return min(low * count, low), max(high * count, high)


def _keep(g: Builder, out: Tensor, span: Span | None) -> Tensor:
    if span is None or not out.is_integer:
        return out
    out.span = span
    return g.fitted(out)


@OPS.lower("ReduceSum", since=13, dtypes=NUMBERS)
def reduce_sum(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """reduce_sum."""
    out = _reduced(g, "reduce_sum", data, axes, keepdims, noop_with_empty_axes)
    count = _count(data, _axes(data, axes, noop_with_empty_axes))
    return _keep(g, out, _sum_span(data, count) if data.is_integer else None)


@OPS.lower("ReduceMean", since=18, dtypes=FLOATS)
def reduce_mean(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """reduce_mean."""
    return _reduced(g, "reduce_mean", data, axes, keepdims, noop_with_empty_axes)


def _extreme(
    g: Builder, op: str, data: Tensor, axes: Const | None, keepdims: int, noop: int
) -> Tensor:
    if data.dtype == np.bool_:
        whole = g.cast(data, np.int32)
        return g.cast(_reduced(g, op, whole, axes, keepdims, noop), np.bool_)
    return _keep(
        g, _reduced(g, op, data, axes, keepdims, noop), data.bounds if data.is_integer else None
    )


@OPS.lower("ReduceMax", since=20, dtypes=ALL)
def reduce_max(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """reduce_max."""
    return _extreme(g, "reduce_max", data, axes, keepdims, noop_with_empty_axes)


@OPS.lower("ReduceMin", since=20, dtypes=ALL)
def reduce_min(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """reduce_min."""
    return _extreme(g, "reduce_min", data, axes, keepdims, noop_with_empty_axes)


@OPS.lower("ReduceProd", since=18, dtypes=NUMBERS)
def reduce_prod(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """reduce_prod."""
    out = _reduced(g, "reduce_prod", data, axes, keepdims, noop_with_empty_axes)
    if not data.is_integer:
        return out
    largest = max(abs(b) for b in data.bounds)
    count = _count(data, _axes(data, axes, noop_with_empty_axes))
    top = largest**count if count < 64 or largest <= 1 else 1 << 63
    return _keep(g, out, (0 if data.bounds[0] >= 0 else -top, top))


@OPS.lower("ReduceL1", since=18, dtypes=NUMBERS)
def reduce_l1(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """The sum of magnitudes."""
    largest = max(abs(b) for b in data.bounds)
    size = g.unary("abs", data, span=(0, largest) if data.is_integer else None)
    out = _reduced(g, "reduce_sum", size, axes, keepdims, noop_with_empty_axes)
    count = _count(data, _axes(data, axes, noop_with_empty_axes))
    return _keep(g, out, _sum_span(size, count) if data.is_integer else None)


@OPS.lower("ReduceL2", since=18, dtypes=FLOATS)
def reduce_l2(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """The length; without axes the magnitude."""
    from edgeinfer.convert.lower.coreml.portable import Portable

    places = _axes(data, axes, noop_with_empty_axes)
    if not places:
        return g.unary("abs", data)
    found = norm.length(Portable(g), g.cast(data, np.float32), places)
    found = found if keepdims else g.drop_axes(found, places)
    return g.cast(found, data.dtype)


@OPS.lower("ReduceSumSquare", since=18, dtypes=NUMBERS)
def reduce_sum_square(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """The sum of squares."""
    largest = max(b * b for b in data.bounds)
    square = g.binary("mul", data, data, (0, largest) if data.is_integer else None)
    out = _reduced(g, "reduce_sum", square, axes, keepdims, noop_with_empty_axes)
    count = _count(data, _axes(data, axes, noop_with_empty_axes))
    return _keep(g, out, (0, largest * count) if data.is_integer else None)


@OPS.lower("ReduceLogSum", since=18, dtypes=FLOATS)
def reduce_log_sum(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """The logarithm of the sum, without the epsilon that Core ML adds."""
    summed = _reduced(g, "reduce_sum", data, axes, keepdims, noop_with_empty_axes)
    return g.unary("log", summed, epsilon=0.0)


@OPS.lower("ReduceLogSumExp", since=18, dtypes=FLOATS)
def reduce_log_sum_exp(
    g: Builder,
    data: Tensor,
    axes: Const | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    """reduce_log_sum_exp."""
    return _reduced(g, "reduce_log_sum_exp", data, axes, keepdims, noop_with_empty_axes)


@OPS.lower("ArgMax", since=13, dtypes=NUMBERS)
def arg_max(
    g: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    """reduce_argmax."""
    return _arg(g, "reduce_argmax", data, axis, keepdims, select_last_index)


@OPS.lower("ArgMin", since=13, dtypes=NUMBERS)
def arg_min(
    g: Builder, data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
) -> Tensor:
    """reduce_argmin."""
    return _arg(g, "reduce_argmin", data, axis, keepdims, select_last_index)


def _arg(g: Builder, op: str, x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    at = axis % x.rank
    size = x.shape[at] if isinstance(x.shape[at], int) else 1 << 31
    source = g.emit("reverse", x=x, axes=[at]) if last else x
    out = g.emit(op, np.int64, x=source, axis=at, keep_dims=bool(keepdims))
    out.span = (0, size - 1)
    if not last:
        return out
    return g.binary("sub", g.cast(_last(g, x, at), np.int64), out, (0, size - 1))


def _last(g: Builder, x: Tensor, axis: int) -> Tensor:
    size = g.extent(x, axis)
    if isinstance(size, int):
        return g.const(size - 1, np.int32)
    return g.binary("sub", size, 1)


@OPS.lower("CumSum", since=14, dtypes=NUMBERS)
def cum_sum(g: Builder, x: Tensor, axis: Const, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Cumsum."""
    at = int(axis.array.reshape(-1)[0]) % x.rank
    span = _sum_span(x, _count(x, [at])) if x.is_integer else None
    if span is not None and x.bounds[0] >= 0:
        span = (0, span[1])
    return g.emit(
        "cumsum", x=x, axis=at, exclusive=bool(exclusive), reverse=bool(reverse), span=span
    )


@OPS.lower("CumProd", since=26, dtypes=NUMBERS)
def cum_prod(g: Builder, x: Tensor, axis: Const, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """A product for each step."""
    at = int(axis.array.reshape(-1)[0]) % x.rank
    size = x.shape[at]
    if not isinstance(size, int) or size > _STEPS:
        raise Refusal(f"more than {_STEPS} steps, or a number that only a run knows")
    if x.is_integer and x.dtype != np.int32:
        raise Refusal(f"products of {x.dtype} may leave it", "unsupported_dtype")
    parts = g.split(x, [1] * size, at)
    parts = parts[::-1] if reverse else parts
    one = g.const(np.ones([1] * x.rank), x.dtype)
    total = g.expand(one, parts[0].shape) if exclusive else parts[0]
    made = [total]
    for index in range(1, size):
        total = g.binary("mul", total, parts[index - 1 if exclusive else index])
        made.append(total)
    return g.concat(made[::-1] if reverse else made, at)


@OPS.lower("TopK", since=24, dtypes=NUMBERS)
def top_k(
    g: Builder,
    X: Tensor,
    K: Const,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,
) -> tuple[Tensor, Tensor]:
    """Topk."""
    at = axis % X.rank
    count = int(K.array.reshape(-1)[0])
    size = X.shape[at]
    if count < 1 or (isinstance(size, int) and count > size):
        raise Refusal(f"K={count} of {size} elements")
    values, where = g.emit_all(
        "topk", [X.dtype, np.int64], x=X, k=count, axis=at, ascending=not largest
    )
    values.span = X.span
    where.span = (0, size - 1 if isinstance(size, int) else (1 << 31) - 1)
    return values, where
