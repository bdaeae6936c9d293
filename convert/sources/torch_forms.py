"""ONNX forms of PyTorch's operators where its own exporter (2.13) has none, or one that can fail.

Some of its forms fail in a run (``masked_scatter`` whose mask chooses more elements than there are
elements), give other numbers (the mean of ``scatter_reduce``, attention to nothing), or lose all
digits somewhere (``log1p`` near zero, ``logaddexp`` and ``logsigmoid`` far from it). Checks of data
(``torch._check_tensor_all``, the ``torch_compilable_check`` of transformers): nothing of them is
left but what leads to them, for which it has no form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.sources import (
    torch_attention,
    torch_equations,
    torch_quotients,
    torch_special,
)
from edgeinfer.convert.sources.torch_script import like, opset, whole

INT32, INT64, FLOAT, BOOL = 6, 7, 1, 9

_ERFC = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)
"""Chebyshev coefficients, within 1.2e-7 of each value. Source: Numerical Recipes, sec. 6.2."""


def forms() -> Mapping[Any, Callable[..., Any]]:
    """Return functions of ``onnxscript`` by PyTorch's operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten.masked_scatter.default: _masked_scatter,
        aten._is_all_true.default: _all_true,
        aten._is_any_true.default: _any_true,
        torch.sym_ite: _chosen,
        aten.scaled_dot_product_attention.default: torch_attention.attention,
        aten.lstm.input: _lstm,
        aten.scatter_reduce.two: _scatter_reduce,
        aten.searchsorted.Tensor: _searchsorted,
        aten._cdist_forward.default: _distances,
        aten.median.default: _median,
        aten.median.dim: _median_of_axis,
        aten.nanmedian.default: _nanmedian,
        aten.nanmedian.dim: _nanmedian_of_axis,
        aten.mode.default: _mode,
        aten.kthvalue.default: _kthvalue,
        aten.cummax.default: _cummax,
        aten.cummin.default: _cummin,
        aten.histc.default: _histc,
        aten.index_reduce.default: _index_reduce,
        aten._adaptive_avg_pool2d.default: _adaptive_mean_pool,
        aten._adaptive_avg_pool3d.default: _adaptive_mean_pool,
        aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        aten.cumprod.default: _cumprod,
        aten.log1p.default: _log1p,
        aten.special_log1p.default: _log1p,
        aten.expm1.default: _expm1,
        aten.special_expm1.default: _expm1,
        aten.erfc.default: _erfc,
        aten.special_erfc.default: _erfc,
        aten.special_erfcx.default: _erfcx,
        aten.log_sigmoid.default: _log_sigmoid,
        aten.logaddexp.default: _logaddexp,
        aten.logaddexp2.default: _logaddexp2,
        aten.logcumsumexp.default: _logcumsumexp,
        **torch_quotients.forms(),
        **torch_special.forms(),
        **torch_equations.forms(),
    }


# ---- masks and checks


def _masked_scatter(self: Any, mask: Any, source: Any) -> Any:
    """Where the mask is, the next element of the source."""
    op = opset()
    shape = op.Shape(op.Add(op.Cast(self, to=FLOAT), op.Cast(mask, to=FLOAT)))
    wide = op.Cast(op.Expand(op.Cast(mask, to=INT64), shape), to=INT64)
    flat = op.Reshape(wide, whole(-1))
    elements = op.Reshape(source, whole(-1))
    one = op.Constant(value_int=1)
    place = op.Sub(op.CumSum(flat, op.Constant(value_int=0)), one)
    place = op.Max(place, op.Constant(value_int=0))
    place = op.Min(place, op.Sub(op.Size(elements), one))
    picked = op.Reshape(op.Gather(elements, place), shape)
    return op.Where(op.Cast(wide, to=BOOL), picked, self)


def _all_true(self: Any) -> Any:
    op = opset()
    return op.Cast(op.ReduceMin(op.Cast(self, to=INT64), keepdims=0), to=BOOL)


def _any_true(self: Any) -> Any:
    op = opset()
    return op.Cast(op.ReduceMax(op.Cast(self, to=INT64), keepdims=0), to=BOOL)


def _chosen(condition: Any, yes: Any, no: Any) -> Any:
    return opset().Where(condition, yes, no)


def _lstm(
    input: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """An LSTM as the exporter writes it, which takes a projection for something else."""
    from onnxscript.function_libs.torch_lib.ops import core

    if len(params) != num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2):
        raise NotImplementedError(
            "an LSTM with proj_size has no form in ONNX; leave out proj_size and train a Linear "
            "layer behind it, or step an LSTMCell in forward()"
        )
    return core.aten_lstm(
        input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
    )


# ---- sums at positions


def _scatter_reduce(
    self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    """Like ``aten::scatter_reduce``; the exporter's own form of a mean gives the last element."""
    from onnxscript.function_libs.torch_lib.ops import core

    op = opset()
    if reduce != "mean":
        return core.aten_scatter_reduce(self, dim, index, src, reduce, include_self)
    if not self.dtype.is_floating_point():
        raise NotImplementedError("scatter_reduce: the mean of integers")
    if not self.shape:
        self, index, src = (op.Reshape(v, whole(-1)) for v in (self, index, src))
    one = op.Expand(like(1.0, self), op.Shape(src))
    nothing = op.Expand(like(0.0, self), op.Shape(self))
    count = op.ScatterElements(nothing, index, one, axis=dim, reduction="add")
    touched = op.Greater(count, nothing)
    start = self if include_self else op.Where(touched, nothing, self)
    total = op.ScatterElements(start, index, src, axis=dim, reduction="add")
    if include_self:
        return op.Div(total, op.Add(count, like(1.0, self)))
    return op.Div(total, op.Max(count, like(1.0, self)))


def _index_reduce(
    self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    """Like ``scatter_reduce`` with one position for each slice of the source."""
    op = opset()
    rank = max(len(source.shape), 1)
    wide = [-1 if axis == dim % rank else 1 for axis in range(rank)]
    indices = op.Expand(op.Reshape(index, whole(*wide)), op.Shape(source))
    return _scatter_reduce(self, dim, indices, source, reduce, include_self)


# ---- order


def _searchsorted(
    sorted_sequence: Any,
    self: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """How many elements of a row are below each value, or not above it."""
    op = opset()
    if sorter is not None:
        raise NotImplementedError("searchsorted with a sorter")
    alone = not self.shape
    values = op.Unsqueeze(op.Reshape(self, whole(-1)) if alone else self, whole(-1))
    row = sorted_sequence
    if len(row.shape) > 1:
        row = op.Unsqueeze(row, whole(-2))
    # NaN is behind all numbers.
    below = (
        op.Not(op.Greater(row, values))
        if right or side == "right"
        else op.Or(op.Less(row, values), op.Not(op.Equal(values, values)))
    )
    count = op.ReduceSum(op.Cast(below, to=INT64), whole(-1), keepdims=0)
    count = op.Squeeze(count, whole(0)) if alone else count
    return op.Cast(count, to=INT32) if out_int32 else count


def _kth(self: Any, k: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The element that has ``k`` smaller ones before it, and its place."""
    op = opset()
    count = op.Gather(op.Shape(self), whole(dim))
    ordered, indices = op.TopK(self, count, axis=dim, largest=0, sorted=1)
    found = tuple(op.Gather(part, k, axis=dim) for part in (ordered, indices))
    if keepdim:
        return found
    return tuple(op.Squeeze(part, whole(dim)) for part in found)


def _median_of_axis(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    if self.dtype.is_floating_point():
        return _median_or_nan(self, dim, keepdim)
    return _middle(self, dim, keepdim)


def _median(self: Any) -> Any:
    of_axis = _median_or_nan if self.dtype.is_floating_point() else _middle
    return of_axis(opset().Reshape(self, whole(-1)), 0)[0]


def _middle(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    op = opset()
    last = op.Sub(op.Gather(op.Shape(self), whole(dim)), whole(1))
    return _kth(self, op.Div(last, whole(2)), dim, keepdim)


def _median_or_nan(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The median of a row, and its place; the first NaN where there is one."""
    op = opset()
    odd = op.Cast(op.IsNaN(self), to=INT32)
    found, place = _middle(op.Where(op.IsNaN(self), like(math.inf, self), self), dim, True)
    is_odd = op.Cast(op.ReduceMax(odd, whole(dim), keepdims=1), to=BOOL)
    found = op.Where(is_odd, like(math.nan, self), found)
    place = op.Where(is_odd, op.ArgMax(odd, axis=dim, keepdims=1), place)
    if keepdim:
        return found, place
    return op.Squeeze(found, whole(dim)), op.Squeeze(place, whole(dim))


def _kthvalue(self: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    return _kth(self, whole(k - 1), dim, keepdim)


def _nanmedian_of_axis(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    if not self.dtype.is_floating_point():
        return _middle(self, dim, keepdim)
    return _median_of_numbers(self, dim, keepdim)


def _nanmedian(self: Any) -> Any:
    flat = opset().Reshape(self, whole(-1))
    of_axis = _median_of_numbers if self.dtype.is_floating_point() else _middle
    return of_axis(flat, 0)[0]


def _median_of_numbers(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The median of the numbers of a row, and its place; NaN where there are none."""
    op = opset()
    nothing = op.IsNaN(self)
    last = op.Where(nothing, like(math.inf, self), self)
    count = op.Gather(op.Shape(self), whole(dim))
    ordered, _ = op.TopK(last, count, axis=dim, largest=0, sorted=1)
    numbers = op.ReduceSum(op.Cast(op.Not(nothing), to=INT64), whole(dim), keepdims=1)
    middle = op.Div(op.Max(op.Sub(numbers, whole(1)), whole(0)), whole(2))
    found = op.GatherElements(ordered, middle, axis=dim)
    place = op.ArgMax(op.Cast(op.Equal(self, found), to=INT32), axis=dim, keepdims=1)
    found = op.Where(op.Greater(numbers, whole(0)), found, like(math.nan, self))
    if keepdim:
        return found, place
    return op.Squeeze(found, whole(dim)), op.Squeeze(place, whole(dim))


def _mode(self: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The smallest of a row's most frequent elements, and the last place that has it."""
    op = opset()
    axis = dim % len(self.shape)
    one, other = op.Unsqueeze(self, whole(axis)), op.Unsqueeze(self, whole(axis + 1))
    equal = op.Cast(op.Equal(one, other), to=INT64)
    times = op.ReduceSum(equal, whole(axis + 1), keepdims=0)
    frequent = op.Equal(times, op.ReduceMax(times, whole(axis), keepdims=1))
    if self.dtype.is_floating_point():
        largest = like(math.inf, self)
    else:
        largest = op.ReduceMax(self, whole(axis), keepdims=1)
    found = op.ReduceMin(op.Where(frequent, self, largest), whole(axis), keepdims=1)
    has = op.Cast(op.Equal(self, found), to=INT32)
    place = op.ArgMax(has, axis=axis, keepdims=1, select_last_index=1)
    if keepdim:
        return found, place
    return op.Squeeze(found, whole(axis)), op.Squeeze(place, whole(axis))


def _size(self: Any, dim: int, what: str) -> int:
    size = self.shape[dim] if self.shape else 1
    if not isinstance(size, int):
        raise NotImplementedError(f"{what} along an open size")
    return size


def _so_far(value: Any, dim: int, size: int, join: Callable[[Any, Any], Any]) -> Any:
    """Join each element with all before it, in as many steps as the size has binary digits."""
    op = opset()
    made, step = value, 1
    axis, end = whole(dim), whole(size)
    while step < size:
        head = op.Slice(made, whole(0), whole(step), axis)
        tail = op.Slice(made, whole(step), end, axis)
        before = op.Slice(made, whole(0), whole(size - step), axis)
        made, step = op.Concat(head, join(tail, before), axis=dim), step * 2
    return made


def _extremes(self: Any, dim: int, join: Callable[[Any, Any], Any], what: str) -> tuple[Any, Any]:
    """The extreme so far, and the last place that has it; NaN is the most extreme."""
    op = opset()
    if not self.shape:
        return self, op.Constant(value_int=0)
    size, rank = _size(self, dim, what), len(self.shape)
    found = _so_far(self, dim, size, join)
    wide = [-1 if axis == dim % rank else 1 for axis in range(rank)]
    indices = op.Reshape(whole(*range(size)), whole(*wide))
    is_new = op.Equal(self, found)
    if self.dtype.is_floating_point():
        is_new = op.Or(is_new, op.IsNaN(self))
    return found, _so_far(op.Where(is_new, indices, whole(0)), dim, size, op.Max)


def _cummax(self: Any, dim: int) -> tuple[Any, Any]:
    return _extremes(self, dim, opset().Max, "cummax")


def _cummin(self: Any, dim: int) -> tuple[Any, Any]:
    return _extremes(self, dim, opset().Min, "cummin")


def _histc(self: Any, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Any:
    """Counts of elements in bins; between equal bounds, from the smallest to the largest."""
    from onnxscript.function_libs.torch_lib.ops import core

    if min != max:
        return core.aten_histc(self, bins, min, max)
    op = opset()
    flat, one = op.Reshape(self, whole(-1)), like(1.0, self)
    low, high = op.ReduceMin(flat, keepdims=1), op.ReduceMax(flat, keepdims=1)
    alone = op.Equal(low, high)
    low, high = op.Where(alone, op.Sub(low, one), low), op.Where(alone, op.Add(high, one), high)
    place = op.Div(op.Mul(op.Sub(flat, low), like(float(bins), self)), op.Sub(high, low))
    place = op.Min(op.Cast(place, to=INT64), whole(bins - 1))
    is_there = op.Equal(op.Unsqueeze(place, whole(-1)), whole(*range(bins)))
    return op.CastLike(op.ReduceSum(op.Cast(is_there, to=INT64), whole(0), keepdims=0), self)


def _adaptive_mean_pool(self: Any, output_size: Any) -> Any:
    """The mean of each window, axis by axis; the exporter gathers tensors of six axes."""
    op = opset()
    lead = len(self.shape) - len(output_size)
    pairs = list(zip(list(self.shape)[lead:], output_size, strict=True))
    are_known = all(isinstance(each, int) for pair in pairs for each in pair)
    if lead == 2 and are_known and not any(size % many for size, many in pairs):
        steps = [size // many for size, many in pairs]
        return op.AveragePool(self, kernel_shape=steps, strides=steps)
    for axis, (size, many) in enumerate(pairs, lead):
        if not isinstance(many, int) or many == size:
            # As many as there are.
            continue
        means = []
        for number in range(many):
            part = op.Slice(self, *_window(self, axis, size, number, many), whole(axis))
            means.append(op.ReduceMean(part, whole(axis), keepdims=1))
        self = op.Concat(*means, axis=axis)
    return self


def _window(x: Any, axis: int, size: Any, number: int, many: int) -> tuple[Any, Any]:
    """Where one of many windows along an axis begins and ends."""
    if isinstance(size, int):
        return whole(number * size // many), whole(-(-(number + 1) * size // many))
    op = opset()
    length, parts = op.Shape(x, start=axis, end=axis + 1), whole(many)
    start = op.Div(op.Mul(length, whole(number)), parts)
    last = op.Add(op.Mul(length, whole(number + 1)), whole(many - 1))
    return start, op.Div(last, parts)


def _adaptive_max_pool(self: Any, output_size: Any) -> tuple[Any, Any]:
    """The largest element of each window, and its place; windows may overlap."""
    op = opset()
    rank = len(output_size)
    lead = len(self.shape) - rank
    sizes = list(self.shape)[lead:]
    if not all(isinstance(size, int) for size in sizes):
        raise NotImplementedError("adaptive_max_pool of open sizes")
    windows = [_windows(size, many) for size, many in zip(sizes, output_size, strict=True)]
    parted = self
    for i, window in enumerate(windows):
        parted = op.Gather(parted, op.Constant(value=ir.tensor(window)), axis=lead + 2 * i)
    order = [*range(lead), *range(lead, lead + 2 * rank, 2), *range(lead + 1, lead + 2 * rank, 2)]
    parted = op.Transpose(parted, perm=order)
    parted = op.Reshape(parted, whole(*[0] * (lead + rank), -1))
    found = op.ReduceMax(parted, whole(-1), keepdims=0)
    indices = np.zeros((1,) * (2 * rank), np.int64)
    for i, (size, window) in enumerate(zip(sizes, windows, strict=True)):
        wide = [1] * (2 * rank)
        wide[i], wide[rank + i] = window.shape
        indices = indices * size + window.reshape(wide)
    indices = indices.reshape(*output_size, -1)
    starts = np.arange(indices[..., 0].size).reshape(indices.shape[:-1]) * indices.shape[-1]
    which = op.Add(op.ArgMax(parted, axis=-1, keepdims=0), op.Constant(value=ir.tensor(starts)))
    return found, op.Gather(whole(*indices.ravel().tolist()), which)


def _windows(size: int, many: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Places that each of ``many`` windows holds; the last again where one is shorter."""
    starts = [i * size // many for i in range(many)]
    ends = [-((-(i + 1) * size) // many) for i in range(many)]
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    rows = [
        [min(start + k, end - 1) for k in range(width)]
        for start, end in zip(starts, ends, strict=True)
    ]
    return np.array(rows, np.int64)


# ---- products and distances


def _cumprod(self: Any, dim: int, dtype: int = -1) -> Any:
    op = opset()
    value = self if dtype == -1 else op.Cast(self, to=dtype)
    return _so_far(value, dim, _size(self, dim, "cumprod"), op.Mul)


def _distances(x1: Any, x2: Any, p: float, compute_mode: int | None = None) -> Any:
    """Distances of all pairs of rows, from their differences."""
    op = opset()
    apart = op.Abs(op.Sub(op.Unsqueeze(x1, whole(-2)), op.Unsqueeze(x2, whole(-3))))
    if p == 0:
        apart = op.CastLike(op.Not(op.Equal(apart, like(0.0, apart))), apart)
    if p in (0, 1):
        return op.ReduceSum(apart, whole(-1), keepdims=0)
    if p == 2:
        return op.ReduceL2(apart, whole(-1), keepdims=0)
    if math.isinf(p):
        return op.ReduceMax(apart, whole(-1), keepdims=0)
    powers = op.ReduceSum(op.Pow(apart, like(p, apart)), whole(-1), keepdims=0)
    return op.Pow(powers, like(1 / p, apart))


# ---- functions that keep their digits


def _log1p(self: Any) -> Any:
    op = opset()
    one, two, half = (like(v, self) for v in (1.0, 2.0, 0.5))
    near = op.Mul(two, op.Atanh(op.Div(self, op.Add(self, two))))
    return op.Where(op.Less(op.Abs(self), half), near, op.Log(op.Add(one, self)))


def _expm1(self: Any) -> Any:
    op = opset()
    half = op.Tanh(op.Mul(self, like(0.5, self)))
    return op.Mul(half, op.Add(op.Exp(self), like(1.0, self)))


def _erfc(self: Any) -> Any:
    op = opset()
    tail = op.Mul(_scaled_tail(self), op.Exp(op.Neg(op.Mul(self, self))))
    return op.Where(op.Less(self, like(0.0, self)), op.Sub(like(2.0, self), tail), tail)


def _erfcx(self: Any) -> Any:
    """exp(x^2) erfc(x), of which neither factor is a number far from zero."""
    op = opset()
    tail, growth = _scaled_tail(self), op.Exp(op.Mul(self, self))
    left = op.Sub(op.Mul(like(2.0, self), growth), tail)
    return op.Where(op.Less(self, like(0.0, self)), left, tail)


def _scaled_tail(self: Any) -> Any:
    """exp(x^2) erfc(|x|)."""
    op = opset()
    two = like(2.0, self)
    t = op.Div(two, op.Add(two, op.Abs(self)))
    total = like(_ERFC[-1], self)
    for factor in reversed(_ERFC[:-1]):
        total = op.Add(op.Mul(total, t), like(factor, self))
    return op.Mul(t, op.Exp(total))


def _log_sigmoid(self: Any) -> Any:
    op = opset()
    return op.Neg(op.Softplus(op.Neg(self)))


def _logaddexp(self: Any, other: Any) -> Any:
    op = opset()
    further = op.Softplus(op.Neg(op.Abs(op.Sub(self, other))))
    # The difference of equal infinities is none.
    equal = op.Equal(self, other)
    further = op.Where(equal, like(math.log(2), further), further)
    return op.Add(op.Max(self, other), further)


def _logaddexp2(self: Any, other: Any) -> Any:
    op = opset()
    unit = like(math.log(2), self)
    return op.Div(_logaddexp(op.Mul(self, unit), op.Mul(other, unit)), unit)


def _logcumsumexp(self: Any, dim: int) -> Any:
    """Each sum from the one before: by the largest of the whole row, small ones would be zero."""
    if not self.shape:
        return self
    return _so_far(self, dim, _size(self, dim, "logcumsumexp"), _logaddexp)
