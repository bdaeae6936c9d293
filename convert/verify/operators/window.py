"""Windows that slide over spatial axes: padding, output sizes, strided views."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array


class Unhandled(Exception):  # noqa: N818 - a signal to the evaluator, not an error
    """This corner of the operator is left to the ONNX reference."""


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """A window over the spatial axes; all fields have one entry per axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def offsets(self) -> Iterator[tuple[int, ...]]:
        """All positions within the window."""
        return itertools.product(*(range(k) for k in self.kernel))

    def pad(self, x: Array, value: Any) -> Array:
        """Pad, on the right as far as the last window reaches."""
        widths = [(0, 0), (0, 0)]
        for axis, size in enumerate(x.shape[2:]):
            reach = (self.out[axis] - 1) * self.strides[axis] + self.extent(axis)
            widths.append((self.begin[axis], max(0, reach - size - self.begin[axis])))
        if not any(b or e for b, e in widths):
            return x
        return np.pad(x, widths, constant_values=value)

    def extent(self, axis: int) -> int:
        """Elements a dilated window spans."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def view(self, padded: Array, offset: Sequence[int]) -> Array:
        """What the windows see at one of their positions, shape (N, C, *out)."""
        index: list[slice] = [slice(None), slice(None)]
        for axis, o in enumerate(offset):
            start, stride = o * self.dilations[axis], self.strides[axis]
            index.append(slice(start, start + (self.out[axis] - 1) * stride + 1, stride))
        return padded[tuple(index)]


def window_of(
    attrs: Mapping[str, Any], size: Sequence[int], kernel: Sequence[int], *, ceil: bool = False
) -> PoolWindow:
    """Work out pads and output sizes from an operator's attributes."""
    rank = len(size)
    strides = tuple(attrs.get("strides") or (1,) * rank)
    dilations = tuple(attrs.get("dilations") or (1,) * rank)
    pads = tuple(attrs.get("pads") or (0,) * (2 * rank))
    begin, end = list(pads[:rank]), list(pads[rank:])
    mode = attrs.get("auto_pad", "NOTSET") or "NOTSET"
    out = []
    for axis in range(rank):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            length = math.ceil(size[axis] / strides[axis])
            total = max(0, (length - 1) * strides[axis] + extent - size[axis])
            small = total // 2
            begin[axis] = small if mode == "SAME_UPPER" else total - small
            end[axis] = total - begin[axis]
        else:
            if mode == "VALID":
                begin[axis] = end[axis] = 0
            room = size[axis] + begin[axis] + end[axis] - extent
            steps = room / strides[axis]
            length = (math.ceil(steps) if ceil else math.floor(steps)) + 1
            # A window must start within the data or the padding before it (PoolTypeShapeInference).
            if ceil and (length - 1) * strides[axis] >= size[axis] + begin[axis]:
                length -= 1
        out.append(length)
    return PoolWindow(tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(out))
