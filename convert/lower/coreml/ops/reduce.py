"""Reductions, searches and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.convert.lower.core.portable import known_axes
from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreml.tensor import INT32, Span, Tensor
from edgeinfer.convert.lower.registry import Const, Refusal

_STEPS = 64
"""Running products up to which each step is written out."""


def _count(g: Builder, x: Tensor, axes: Sequence[int]) -> int:
    """How many elements become one at most: a tensor has no more than int32 counts."""
    return min(math.prod(g.most(x.shape[a]) for a in axes), int(INT32.max))


def _sum_span(x: Tensor, count: int) -> Span:
    low, high = x.bounds
    return min(low * count, low), max(high * count, high)


def _product_span(x: Tensor, count: int) -> Span:
    largest = max(abs(b) for b in x.bounds)
    top = largest**count if count < 64 or largest <= 1 else 1 << 63
    return (0 if x.bounds[0] >= 0 else -top), top


_SPANS: dict[str, Callable[[Tensor, int], Span]] = {
    "sum": _sum_span,
    "prod": _product_span,
    "max": lambda x, count: x.bounds,
    "min": lambda x, count: x.bounds,
}


def reduced(g: Builder, kind: str, x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    """Reduce over axes; ``kind`` as in ``Tensors.reduce``, or ``log_sum_exp``."""
    if x.dtype == np.bool_:
        return g.cast(reduced(g, kind, g.cast(x, np.int32), axes, keep), np.bool_)
    if not axes:
        return x if x.rank else g.reshape(x, [])
    out = g.reduce(f"reduce_{kind}", x, axes, keep)
    if out.is_integer:
        out.span = _SPANS[kind](x, _count(g, x, axes))
        return g.fitted(out)
    return out


@OPS.lower("ReduceLogSumExp", dtypes=FLOATS)
def reduce_log_sum_exp(
    g: Builder, data: Tensor, axes: Const | None = None, *, keepdims: int, noop_with_empty_axes: int
) -> Tensor:
    """reduce_log_sum_exp: one kernel where others compose it."""
    over = known_axes(data.rank, axes, noop_with_empty_axes)
    return reduced(g, "log_sum_exp", data, over, bool(keepdims))


@OPS.lower("ArgMax", dtypes=NUMBERS)
def arg_max(
    g: Builder, data: Tensor, *, axis: int, keepdims: int, select_last_index: int
) -> Tensor:
    """reduce_argmax."""
    return _arg(g, "reduce_argmax", data, axis, keepdims, select_last_index)


@OPS.lower("ArgMin", dtypes=NUMBERS)
def arg_min(
    g: Builder, data: Tensor, *, axis: int, keepdims: int, select_last_index: int
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


@OPS.lower("CumSum", dtypes=NUMBERS)
def cum_sum(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    """Cumsum."""
    at = int(axis.array.reshape(-1)[0]) % x.rank
    span = _sum_span(x, _count(g, x, [at])) if x.is_integer else None
    if span is not None and x.bounds[0] >= 0:
        span = (0, span[1])
    return g.emit(
        "cumsum", x=x, axis=at, exclusive=bool(exclusive), reverse=bool(reverse), span=span
    )


@OPS.lower("CumProd", dtypes=NUMBERS)
def cum_prod(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    """A product for each step."""
    at = int(axis.array.reshape(-1)[0]) % x.rank
    size = x.shape[at]
    if not isinstance(size, int) or size > _STEPS:
        raise Refusal(f"more than {_STEPS} steps, or a number known only at run time")
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


@OPS.lower("TopK", dtypes=NUMBERS)
def top_k(g: Builder, X: Tensor, K: Tensor, *, axis: int, largest: int) -> tuple[Tensor, Tensor]:
    """topk, which takes a known number; else all in their order, and a part of them."""
    at = axis % X.rank
    size = X.shape[at]
    if K.data is None:
        return _late_top_k(g, X, g.cast(g.reshape(K, []), np.int32), at, not largest)
    count = int(K.data.reshape(-1)[0])
    if count < 1 or (isinstance(size, int) and count > size):
        raise Refusal(f"K={count} of {size} elements")
    values, where = g.emit_all(
        "topk", [X.dtype, np.int64], x=X, k=count, axis=at, ascending=not largest
    )
    values.span = X.span
    where.span = (0, size - 1 if isinstance(size, int) else (1 << 31) - 1)
    return values, where


def _late_top_k(
    g: Builder, x: Tensor, count: Tensor, axis: int, ascending: bool
) -> tuple[Tensor, Tensor]:
    order = g.emit("argsort", np.int64, x=x, axis=axis, ascending=ascending)
    order.span = (0, g.most(x.shape[axis]) - 1)
    where = g.part(order, axis, 0, count)
    return g.emit("gather_along_axis", x=x, indices=where, axis=axis, span=x.span), where
