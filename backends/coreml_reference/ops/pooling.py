"""Pooling in one, two or three dimensions."""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.coreml_reference.ops.convolution import padding
from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.numerics.pooling import maxima, means, sums
from edgeinfer.numerics.windows import SlidingWindow, sliding
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
    return maxima(x, _window(x, kernel_sizes, pad_type, strides, pad, ceil_mode))


@op("l2_pool")
def l2_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    ceil_mode: bool = False,
) -> Array:
    window = _window(x, kernel_sizes, pad_type, strides, pad, ceil_mode)
    return np.sqrt(sums(np.square(x), window))


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
    counted = [(0, 0)] * len(kernel_sizes)
    if not exclude_padding_from_average:
        # What the ceiling of the output size adds beyond the padding never counts.
        strides = strides or (1,) * len(kernel_sizes)
        counted = padding(pad_type, pad, x.shape[2:], kernel_sizes, strides)
    return means(x, _window(x, kernel_sizes, pad_type, strides, pad, ceil_mode), counted)


def _window(
    x: Array,
    kernel: Ints,
    pad_type: str,
    strides: Ints | None,
    pad: Ints | None,
    ceil_mode: bool,
) -> SlidingWindow:
    strides = strides or (1,) * len(kernel)
    pads = padding(pad_type, pad, x.shape[2:], kernel, strides)
    if ceil_mode and pad_type in ("valid", "custom"):
        pads = [
            (b, e + _overhang(n, b, e, k, s))
            for n, (b, e), k, s in zip(x.shape[2:], pads, kernel, strides, strict=True)
        ]
    return sliding(x.shape[2:], kernel, strides, (1,) * len(kernel), pads)


def _overhang(size: int, before: int, after: int, kernel: int, stride: int) -> int:
    """Return how far the last window reaches beyond the padding."""
    count = -(-(size + before + after - kernel) // stride) + 1
    if (count - 1) * stride >= size + before and before + after > 0:
        count -= 1
    return max(0, (count - 1) * stride + kernel - size - before - after)
