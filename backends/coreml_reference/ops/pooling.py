"""Pooling in one, two or three dimensions."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.backends.coreml_reference.ops.convolution import Pads, padded, padding, windows
from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.types import Array


@op("max_pool")
def max_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    ceil_mode: bool = False,
) -> Array:
    view, _ = _windows(x, kernel_sizes, pad_type, strides, pad, ceil_mode, -np.inf)
    return _combine(view, len(kernel_sizes), np.maximum)


@op("l2_pool")
def l2_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    ceil_mode: bool = False,
) -> Array:
    squares = np.square(x)
    view, _ = _windows(squares, kernel_sizes, pad_type, strides, pad, ceil_mode, 0.0)
    return np.sqrt(_combine(view, len(kernel_sizes), np.add))


@op("avg_pool")
def avg_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    exclude_padding_from_average: bool = False,
    ceil_mode: bool = False,
) -> Array:
    rank = len(kernel_sizes)
    view, pads = _windows(x, kernel_sizes, pad_type, strides, pad, ceil_mode, 0.0)
    total = _combine(view, rank, np.add)
    strides = strides or (1,) * rank
    plain = padding(pad_type, pad, x.shape[2:], kernel_sizes, strides)
    if not exclude_padding_from_average and pads == plain:
        return total / np.float32(math.prod(kernel_sizes))
    # What the ceiling of the output size adds beyond the padding never counts.
    inside = np.ones((1, 1, *x.shape[2:]), np.float32)
    if not exclude_padding_from_average:
        inside = padded(inside, plain, 1.0)
        pads = [(0, e - f) for (_, e), (_, f) in zip(pads, plain, strict=True)]
    ones = windows(padded(inside, pads), kernel_sizes, strides, (1,) * rank)
    return total / _combine(ones, rank, np.add)


def _windows(
    x: Array,
    kernel: Ints,
    pad_type: str,
    strides: Ints | None,
    pad: Ints | None,
    ceil_mode: bool,
    value: float,
) -> tuple[Array, Pads]:
    strides = strides or (1,) * len(kernel)
    pads = padding(pad_type, pad, x.shape[2:], kernel, strides)
    if ceil_mode and pad_type in ("valid", "custom"):
        pads = [
            (b, e + _overhang(n, b, e, k, s))
            for n, (b, e), k, s in zip(x.shape[2:], pads, kernel, strides, strict=True)
        ]
    return windows(padded(x, pads, value), kernel, strides, (1,) * len(kernel)), pads


def _overhang(size: int, before: int, after: int, kernel: int, stride: int) -> int:
    """Return how far the last window reaches beyond the padding."""
    count = -(-(size + before + after - kernel) // stride) + 1
    if (count - 1) * stride >= size + before and before + after > 0:
        count -= 1
    return max(0, (count - 1) * stride + kernel - size - before - after)


def _combine(view: Array, rank: int, function: np.ufunc) -> Array:
    kernel = view.shape[2 : 2 + rank]
    if math.prod(kernel) > 64:
        result: Array = function.reduce(view, axis=tuple(range(2, 2 + rank)))
        return result
    total: Array | None = None
    for tap in np.ndindex(*kernel):
        part = view[(slice(None), slice(None), *tap)]
        total = part.copy() if total is None else function(total, part, out=total)
    if total is None:
        raise ValueError("the kernel is empty")
    return total
