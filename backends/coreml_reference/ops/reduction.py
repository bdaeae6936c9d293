"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.types import Array

Reduction = Callable[..., Array]


def _sum(x: Array, **over: Any) -> Array:
    result: Array = np.sum(x, dtype=x.dtype, **over)
    return result


def _mean(x: Array, **over: Any) -> Array:
    real = x.dtype.kind == "f"
    mean: Array = np.mean(x, dtype=x.dtype if real else None, **over)
    return mean if real else np.trunc(mean)


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, np.float32(0))
    result: Array = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return result if keepdims else result.squeeze(axis)


_REDUCTIONS: dict[str, Reduction] = {
    "reduce_l1_norm": lambda x, **over: _sum(np.abs(x), **over),
    "reduce_l2_norm": lambda x, **over: np.sqrt(_sum(np.square(x), **over)),
    "reduce_log_sum": lambda x, **over: np.log(_sum(x, **over)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": np.max,
    "reduce_mean": _mean,
    "reduce_min": np.min,
    "reduce_prod": lambda x, **over: np.prod(x, dtype=x.dtype, **over),
    "reduce_sum": _sum,
    "reduce_sum_square": lambda x, **over: _sum(np.square(x), **over),
}


def _register(name: str, function: Reduction) -> None:
    @op(name)
    def kernel(x: Array, axes: Ints | None = None, keep_dims: bool = False) -> Array:
        over = tuple(range(x.ndim)) if axes is None else tuple(a % x.ndim for a in axes)
        return function(x, axis=over, keepdims=keep_dims)


for _name, _function in _REDUCTIONS.items():
    _register(_name, _function)


@op("reduce_argmax")
def reduce_argmax(
    x: Array, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
) -> Array:
    result: Array = np.argmax(x, axis=axis, keepdims=keep_dims)
    return result


@op("reduce_argmin")
def reduce_argmin(
    x: Array, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
) -> Array:
    result: Array = np.argmin(x, axis=axis, keepdims=keep_dims)
    return result


@op("cumsum")
def cumsum(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    total = np.flip(x, axis) if reverse else x
    total = np.cumsum(total, axis=axis, dtype=x.dtype)
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * (axis % x.ndim) + (slice(0, 1),)] = 0
    return np.flip(total, axis) if reverse else total
