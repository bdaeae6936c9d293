"""Softmax and kin; before opset 13 they flatten to two axes first, which the reference does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array


def softmax(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """Softmax."""
    return _along(attrs, version, inputs, _softmax)


def log_softmax(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """LogSoftmax."""
    return _along(attrs, version, inputs, _log_softmax)


def hardmax(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """Hardmax."""
    return _along(attrs, version, inputs, _hardmax)


def _along(
    attrs: Mapping[str, Any],
    version: int,
    inputs: list[Array | None],
    function: Callable[[Array, int], Array],
) -> tuple[Array, ...]:
    (x,) = inputs
    if x is None:
        raise Unhandled
    if version >= 13:
        return (function(x, attrs.get("axis", -1)),)
    axis = attrs.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
    return (function(flat, 1).reshape(x.shape),)


def _softmax(x: Array, axis: int) -> Array:
    e: Array = np.exp(x - x.max(axis=axis, keepdims=True))
    y: Array = e / e.sum(axis=axis, keepdims=True)
    return y


def _log_softmax(x: Array, axis: int) -> Array:
    shifted: Array = x - x.max(axis=axis, keepdims=True)
    y: Array = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return y


def _hardmax(x: Array, axis: int) -> Array:
    y = np.zeros_like(x)
    np.put_along_axis(y, np.expand_dims(x.argmax(axis=axis), axis), 1, axis=axis)
    return y


def log_sum_exp(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """ReduceLogSumExp; a largest element that is infinite is the result."""
    x, given = inputs[0], inputs[1] if len(inputs) > 1 else attrs.get("axes")
    if x is None or 0 in x.shape:
        raise Unhandled
    axes = [] if given is None else [int(a) for a in given]
    if not axes and attrs.get("noop_with_empty_axes", 0):
        return (x,)
    over = tuple(axes) or tuple(range(x.ndim))
    top: Array = x.max(axis=over, keepdims=True)
    finite = np.where(np.isfinite(top), top, np.zeros((), x.dtype))
    total = finite + np.log(np.exp(x - finite).sum(axis=over, keepdims=True))
    y = np.where(np.isinf(top), top, total)
    return (y if attrs.get("keepdims", 1) else y.squeeze(over),)
