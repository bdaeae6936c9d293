"""Neighbours of positions between elements, and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgeinfer.types import Array

Coordinates = npt.NDArray[Any]


def linear(at: Coordinates) -> tuple[Array, Coordinates]:
    """Return indices and weights of two neighbours: (2, ...) each."""
    left = np.floor(at)
    share = at - left
    return _indices([left, left + 1]), np.stack([1 - share, share])


def cubic(at: Coordinates, a: float) -> tuple[Array, Coordinates]:
    """Return indices and weights of four neighbours (Keys 1981): (4, ...) each."""
    left = np.floor(at)
    s = at - left
    weights = [
        ((a * (s + 1) - 5 * a) * (s + 1) + 8 * a) * (s + 1) - 4 * a,
        ((a + 2) * s - (a + 3)) * s * s + 1,
        ((a + 2) * (1 - s) - (a + 3)) * (1 - s) * (1 - s) + 1,
        ((a * (2 - s) - 5 * a) * (2 - s) + 8 * a) * (2 - s) - 4 * a,
    ]
    return _indices([left - 1, left, left + 1, left + 2]), np.stack(weights)


def _indices(coordinates: list[Coordinates]) -> Array:
    found: Array = np.nan_to_num(np.stack(coordinates)).astype(np.int64)
    return found
