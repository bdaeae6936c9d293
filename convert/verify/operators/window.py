"""ONNX's attributes of windows that slide over spatial axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.numerics.windows import SlidingWindow, extent, same


class Unhandled(Exception):  # noqa: N818 - a signal to the evaluator, not an error
    """This corner of the operator is left to the ONNX reference."""


def window_of(
    attrs: Mapping[str, Any], size: Sequence[int], kernel: Sequence[int], *, ceil: bool = False
) -> SlidingWindow:
    """Work out pads and output sizes from an operator's attributes."""
    rank = len(size)
    strides = tuple(attrs.get("strides") or (1,) * rank)
    dilations = tuple(attrs.get("dilations") or (1,) * rank)
    given = tuple(attrs.get("pads") or (0,) * (2 * rank))
    mode = attrs.get("auto_pad", "NOTSET") or "NOTSET"
    pads, out = [], []
    for axis in range(rank):
        reach, stride = extent(kernel[axis], dilations[axis]), strides[axis]
        begin, end = (0, 0) if mode == "VALID" else (given[axis], given[rank + axis])
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            begin, end = same(size[axis], reach, stride, lower=mode == "SAME_LOWER")
        steps = (size[axis] + begin + end - reach) / stride
        length = (math.ceil(steps) if ceil and "SAME" not in mode else math.floor(steps)) + 1
        # A window must start within the data or the padding before it (PoolTypeShapeInference).
        if ceil and (length - 1) * stride >= size[axis] + begin:
            length -= 1
        pads.append((begin, end))
        out.append(length)
    return SlidingWindow(tuple(kernel), strides, dilations, tuple(pads), tuple(out))
