"""Maxima that Core ML's pool lacks: of dilated windows, and their positions."""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from edgeinfer.convert.lower.core.window import Windows
from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

MANY = 64
"""Elements of a window above which it is not taken apart."""


def dilated(g: Builder, x: Tensor, window: Windows) -> Tensor:
    """The maximum over one slice for each element of the window."""
    best: Tensor | None = None
    for part in _parts(g, _padded(g, x, window, -math.inf), window):
        best = part if best is None else g.binary("maximum", best, part)
    if best is None:
        raise Refusal("a window without elements")
    return best


def with_positions(
    g: Builder, x: Tensor, window: Windows, storage_order: int
) -> tuple[Tensor, Tensor]:
    """The maxima and where in the flattened input the first of each lies."""
    if not x.is_static:
        raise Refusal("positions of maxima with dynamic sizes", "dynamic_shape")
    indices = np.arange(math.prod(x.shape)).reshape(x.shape)
    if storage_order:
        spatial = math.prod(x.shape[2:])
        within = np.arange(spatial).reshape(x.shape[2:][::-1]).T
        planes = np.arange(math.prod(x.shape[:2])).reshape(x.shape[:2]) * spatial
        indices = planes.reshape(*x.shape[:2], *(1 for _ in x.shape[2:])) + within
    values = _parts(g, _padded(g, x, window, -math.inf), window)
    where = _parts(g, _padded_constant(g, indices, window), window)
    best, at = values[0], where[0]
    for value, place in zip(values[1:], where[1:], strict=True):
        better = g.binary("greater", value, best)
        best, at = g.binary("maximum", best, value), g.select(better, place, at)
    return best, g.cast(at, np.int64)


def _padded(g: Builder, x: Tensor, window: Windows, value: float) -> Tensor:
    pads = [0, 0, 0, 0, *(p for w in window.explicit() for p in (w.begin, w.end))]
    if not any(pads):
        return x
    return g.emit("pad", x=x, pad=pads, mode="constant", constant_val=value)


def _padded_constant(g: Builder, indices: Array, window: Windows) -> Tensor:
    pads = [(0, 0), (0, 0), *zip(window.begin, window.end, strict=True)]
    return g.const(np.pad(indices, pads), np.int32)


def _parts(g: Builder, x: Tensor, window: Windows) -> list[Tensor]:
    if math.prod(window.kernel) > MANY:
        raise Refusal(f"a window of more than {MANY} elements is not taken apart")
    parts = []
    for offset in product(*(range(k) for k in window.kernel)):
        begin, step = [0, 0], [1, 1]
        end: list[int | None] = [None, None]
        for w, at in zip(window, offset, strict=True):
            start = at * w.dilation
            behind = w.span - 1 - start
            begin.append(start)
            end.append(-behind if behind else None)
            step.append(w.stride)
        parts.append(g.slice(x, begin, end, step))
    return parts
