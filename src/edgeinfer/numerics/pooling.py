"""Pooling, as a running maximum or sum over window positions."""

from __future__ import annotations

import numpy as np

from edgeinfer.numerics.windows import Pads, SlidingWindow
from edgeinfer.types import Array


def maxima(x: Array, window: SlidingWindow) -> Array:
    """Return the largest element of each window."""
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = window.pad(x, low)
    y = np.full((*x.shape[:2], *window.out), low, x.dtype)
    for offset in window.offsets:
        np.maximum(y, window.view(padded, offset), out=y)
    return y


def sums(x: Array, window: SlidingWindow) -> Array:
    """Return the sum of each window."""
    padded = window.pad(x, 0)
    y = np.zeros((*x.shape[:2], *window.out), x.dtype)
    for offset in window.offsets:
        y += window.view(padded, offset)
    return y


def lengths(x: Array, window: SlidingWindow, power: int) -> Array:
    """Return the root of the sum of powers of each window, divided by its largest first."""
    size = np.abs(x)
    padded = window.pad(size, 0)
    largest = held(maxima(size, window))
    y = np.zeros_like(largest)
    for offset in window.offsets:
        y += (window.view(padded, offset) / largest) ** power
    return y ** (1 / power) * largest


def held(largest: Array) -> Array:
    """Return what divides without making NaN: neither zero nor infinite."""
    limits = np.finfo(largest.dtype)
    return np.clip(largest, limits.tiny, limits.max)


def means(x: Array, window: SlidingWindow, counted: Pads) -> Array:
    """Return the mean of each window.

    Args:
        x: (batch, channels, *sizes).
        window: Where the means are taken.
        counted: Padding that counts as zeros; beyond it nothing counts.
    """
    begin = [asked - more for (asked, _), (more, _) in zip(window.pads, counted, strict=True)]
    inside = np.pad(
        np.ones((1, 1, *x.shape[2:]), x.dtype), [(0, 0), (0, 0), *counted], constant_values=1
    )
    inside = np.pad(inside, [(0, 0), (0, 0), *((b, 0) for b in begin)])
    at_front = SlidingWindow(
        window.kernel,
        window.strides,
        window.dilations,
        tuple((0, e) for _, e in window.pads),
        window.out,
    )
    return sums(x, window) / sums(inside, at_front)
