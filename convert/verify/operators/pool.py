"""Pooling by ONNX's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled, window_of
from edgeinfer.numerics.pooling import held, lengths, maxima, means
from edgeinfer.numerics.windows import SlidingWindow
from edgeinfer.types import Array


def max_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """MaxPool without the indices output."""
    if attrs.get("#outputs", 1) > 1:
        raise Unhandled
    x, window = _taken(attrs, inputs)
    return (maxima(x, window),)


def average_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """AveragePool; padding counts if asked, what ceil_mode adds beyond it never does."""
    x, window = _taken(attrs, inputs)
    none = [(0, 0)] * len(window.pads)
    return (means(x, window, window.pads if attrs.get("count_include_pad") else none),)


def lp_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """LpPool; padding and what ceil_mode adds are zeros."""
    x, window = _taken(attrs, inputs)
    return (lengths(x, window, attrs.get("p", 2)),)


def global_lp_pool(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """GlobalLpPool of any spatial rank."""
    (x,) = inputs
    if x is None:
        raise Unhandled
    p = attrs.get("p", 2)
    axes = tuple(range(2, x.ndim))
    largest = held(np.abs(x).max(axis=axes, keepdims=True, initial=0))
    total = (np.abs(x / largest) ** p).sum(axis=axes, keepdims=True)
    return (total ** (1 / p) * largest,)


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


def _taken(attrs: Mapping[str, Any], inputs: list[Array | None]) -> tuple[Array, SlidingWindow]:
    """The input and how windows go over it."""
    (x,) = inputs
    if x is None:
        raise Unhandled
    ceil = bool(attrs.get("ceil_mode"))
    return x, window_of(attrs, x.shape[2:], attrs["kernel_shape"], ceil=ceil)
