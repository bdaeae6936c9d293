"""Samples at positions of a grid: onnx's own evaluation is another function than its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.numerics.interpolation import cubic
from edgeinfer.types import Array

_A = -0.75
"""Of the cubic kernel (Keys 1981), as PyTorch has it."""


def grid_sample(
    attributes: Mapping[str, Any], opset: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """Sample with cubic weights, each of the 16 neighbours held to the border.

    onnx 1.23 moves the place itself to the border first, where the weights are others. PyTorch,
    whose operator this is, and ONNX Runtime hold the neighbours.
    """
    x, grid = inputs[:2]
    cubic = attributes.get("mode", "linear") in ("cubic", "bicubic")
    if x is None or grid is None or x.ndim != 4 or not cubic:
        raise Unhandled
    if attributes.get("padding_mode", "zeros") != "border":
        raise Unhandled
    corners = bool(attributes.get("align_corners", 0))
    (across, columns), (down, rows) = (
        _neighbours(grid[..., axis], x.shape[3 - axis], corners) for axis in (0, 1)
    )
    batch = np.arange(x.shape[0]).reshape(-1, 1, 1)
    made = np.zeros((x.shape[0], *grid.shape[1:3], x.shape[1]), x.dtype)
    for row, tall in zip(rows, down, strict=True):
        for column, wide in zip(columns, across, strict=True):
            made += (tall * wide)[..., None].astype(x.dtype) * x[batch, :, row, column]
    return (np.ascontiguousarray(np.moveaxis(made, -1, 1)),)


def _neighbours(coordinates: Array, size: int, corners: bool) -> tuple[list[Array], list[Array]]:
    """Return weights and indices of the four neighbours along an axis."""
    at = (coordinates + 1) / 2 * (size - 1) if corners else ((coordinates + 1) * size - 1) / 2
    taps, weights = cubic(at, _A)
    return list(weights), list(np.clip(taps, 0, size - 1))
