"""Comparisons, logic and choice."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor


def steps(g: Builder, x: Tensor, axis: int) -> Tensor:
    """``0, 1, ...`` as int32 along an axis of a tensor."""
    size = g.extent(x, axis)
    if isinstance(size, int):
        return g.const(np.arange(size), np.int32)
    limits = [g.const(0, np.int32), size, g.const(1, np.int32)]
    return g.emit("RANGE", limits, (None,))
