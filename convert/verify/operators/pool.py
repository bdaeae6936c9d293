"""Pooling, as a running maximum or sum over window positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled, window_of
from edgeinfer.types import Array


def max_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """MaxPool without the indices output."""
    (x,) = inputs
    if x is None or attrs.get("#outputs", 1) > 1:
        raise Unhandled
    window = window_of(attrs, x.shape[2:], attrs["kernel_shape"], ceil=bool(attrs.get("ceil_mode")))
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = window.pad(x, low)
    y = np.full((*x.shape[:2], *window.out), low, x.dtype)
    for offset in window.offsets:
        np.maximum(y, window.view(padded, offset), out=y)
    return (y,)


def average_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """AveragePool; padding counts if asked, what ceil_mode adds beyond it never does."""
    (x,) = inputs
    if x is None:
        raise Unhandled
    window = window_of(attrs, x.shape[2:], attrs["kernel_shape"], ceil=bool(attrs.get("ceil_mode")))
    padded = window.pad(x, 0)
    counted = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if attrs.get("count_include_pad"):
        pads = [(0, 0), (0, 0), *zip(window.begin, window.end, strict=True)]
        counted = np.pad(counted, pads, constant_values=1)
        beyond = zip(padded.shape[2:], counted.shape[2:], strict=True)
        counted = np.pad(counted, [(0, 0), (0, 0), *((0, max(0, p - c)) for p, c in beyond)])
    else:
        counted = window.pad(counted, 0)
    total = np.zeros((*x.shape[:2], *window.out), x.dtype)
    count = np.zeros((1, 1, *window.out), x.dtype)
    for offset in window.offsets:
        total += window.view(padded, offset)
        count += window.view(counted, offset)
    return (total / count,)


def global_max_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """GlobalMaxPool of any spatial rank."""
    (x,) = inputs
    if x is None:
        raise Unhandled
    return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def global_average_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """GlobalAveragePool of any spatial rank."""
    (x,) = inputs
    if x is None:
        raise Unhandled
    return (x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),)
