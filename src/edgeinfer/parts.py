"""Parts of large outputs: what a bundle holds of an answer that would outweigh the model.

A part is a grid through the array: every so many-th element along its longest axes. Axes of
channels stay whole, and the element of the largest magnitude is in it, so that shares of it mean
the same as of the whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.types import Array

LEAST = 1 << 14
"""Elements that tell an error's power to a tenth of a dB, whatever the array holds."""

_WHOLE = 256
"""Sizes up to which an axis may be one of channels or classes; it is cut after all others."""


class Part(np.ndarray[Any, Any]):
    """Elements of a larger array.

    Attributes:
        grid: three rows, by axis: sizes of the whole, where the grid starts, and its steps. What
            is computed from a part has none.
    """

    grid: Array | None = None


def part(array: Array, most: int) -> Array:
    """Return at most so many elements, or a few more; the array itself where it has no more."""
    if array.size <= most or array.dtype.kind not in "fiub" or array.dtype.num >= 256:
        return array
    steps = [1] * array.ndim
    sizes = list(array.shape)
    while np.prod(sizes) > most:
        axis = max(range(array.ndim), key=lambda a: (array.shape[a] > _WHOLE, sizes[a]))
        if sizes[axis] <= 2:
            axis = int(np.argmax(sizes))
        steps[axis] += 1
        sizes[axis] = -(-array.shape[axis] // steps[axis])
    magnitude = np.abs(array.astype(np.float64, copy=False))
    largest = int(np.argmax(np.where(np.isfinite(magnitude), magnitude, -1.0)))
    place = np.unravel_index(largest, array.shape)
    starts = [int(p) % s for p, s in zip(place, steps, strict=True)]
    grid = np.array([array.shape, starts, steps], np.int64)
    return restored(np.ascontiguousarray(array[_slices(grid)]), grid)


def restored(elements: Array, grid: Array) -> Part:
    """Return a part from what a file holds of it.

    Raises:
        ValueError: the elements do not lie on the grid.
    """
    if grid.dtype != np.int64 or grid.shape != (3, elements.ndim):
        raise ValueError("the grid of a part has three rows, of int64")
    sizes, starts, steps = (row.tolist() for row in grid)
    found = [len(range(b, n, s)) if 0 < s <= n and 0 <= b < s else -1
             for n, b, s in zip(sizes, starts, steps, strict=True)]  # fmt: skip
    if found != list(elements.shape):
        raise ValueError(f"a part of {list(elements.shape)} elements, the grid has {found}")
    made = elements.view(Part)
    made.grid = grid
    return made


def alike(expected: Array, actual: Array) -> Array:
    """Return what of a result is expected; the result itself where its sizes are others."""
    if (grid := grid_of(expected)) is None:
        return actual
    actual = np.asarray(actual)
    return actual[_slices(grid)] if actual.shape == whole_shape(expected) else actual


def whole_shape(array: Array) -> tuple[int, ...]:
    """Return the sizes of what an array is a part of, or its own."""
    grid = grid_of(array)
    return np.shape(array) if grid is None else tuple(int(n) for n in grid[0])


def grid_of(array: Array) -> Array | None:
    """Return the grid of a part; None of what is whole."""
    return array.grid if isinstance(array, Part) else None


def _slices(grid: Array) -> tuple[slice, ...]:
    return tuple(slice(int(start), None, int(step)) for start, step in grid[1:].T)
