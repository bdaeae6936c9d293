"""Windows that slide over spatial axes: padding, output sizes, strided views."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

Pads = Sequence[tuple[int, int]]
"""What is added before and after each spatial axis."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A window over the spatial axes; all fields have one entry per axis.

    Attributes:
        kernel: Taps.
        strides: Elements between windows.
        dilations: Elements between taps.
        pads: Padding before and after.
        out: Number of windows.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    out: tuple[int, ...]

    @property
    def offsets(self) -> Iterator[tuple[int, ...]]:
        """All positions within the window."""
        return itertools.product(*(range(k) for k in self.kernel))

    def pad(self, x: Array, value: Any) -> Array:
        """Pad, on the right as far as the last window reaches."""
        widths = [(0, 0), (0, 0)]
        for axis, size in enumerate(x.shape[2:]):
            begin = self.pads[axis][0]
            reach = (self.out[axis] - 1) * self.strides[axis] + self.extent(axis)
            widths.append((begin, max(0, reach - size - begin)))
        if not any(b or e for b, e in widths):
            return x
        return np.pad(x, widths, constant_values=value)

    def extent(self, axis: int) -> int:
        """Elements a dilated window spans."""
        return extent(self.kernel[axis], self.dilations[axis])

    def view(self, padded: Array, offset: Sequence[int]) -> Array:
        """What the windows see at one of their positions, shape (N, C, *out)."""
        index: list[slice] = [slice(None), slice(None)]
        for axis, o in enumerate(offset):
            start, stride = o * self.dilations[axis], self.strides[axis]
            index.append(slice(start, start + (self.out[axis] - 1) * stride + 1, stride))
        return padded[tuple(index)]


def extent(kernel: int, dilation: int) -> int:
    """Elements that taps span."""
    return (kernel - 1) * dilation + 1


def sliding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Pads,
) -> SlidingWindow:
    """Return the windows that lie within the padded input.

    Raises:
        ValueError: none does.
    """
    rows = zip(sizes, pads, kernel, strides, dilations, strict=True)
    out = tuple((n + b + e - extent(k, d)) // s + 1 for n, (b, e), k, s, d in rows)
    if min(out, default=1) < 1:
        raise ValueError(f"a window of {tuple(kernel)} does not fit into {tuple(sizes)}")
    return SlidingWindow(tuple(kernel), tuple(strides), tuple(dilations), tuple(pads), out)


def same(size: int, reach: int, stride: int, *, lower: bool) -> tuple[int, int]:
    """Padding that gives as many windows as there are strides; the odd element at the end.

    Args:
        size: Elements of the axis.
        reach: Elements that a window spans.
        stride: Elements between windows.
        lower: The odd element at the beginning.
    """
    total = max(0, (-(-size // stride) - 1) * stride + reach - size)
    small = total // 2
    return (total - small, small) if lower else (small, total - small)
