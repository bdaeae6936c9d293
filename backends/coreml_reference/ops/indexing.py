"""Gathers and scatters.

Before iOS 17 a negative index counts from the end. Since iOS 17 it is out of bounds, which is an
error if the program asks for a check and undefined else. Here it counts from the end in either
case, and an index that is out of bounds then is always an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.backends.coreml_reference.registry import op
from edgeinfer.types import Array

_MODES: dict[str, np.ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


@op("gather")
def gather(
    x: Array, indices: Array, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Array:
    axis = axis % x.ndim
    chosen = _bounded(indices, x.shape[axis], validate_indices)
    if batch_dims == 0:
        return np.take(x, chosen, axis)
    batch = x.shape[:batch_dims]
    tables = x.reshape(-1, *x.shape[batch_dims:])
    rows = chosen.reshape(-1, *chosen.shape[batch_dims:])
    pairs = zip(tables, rows, strict=True)
    taken = np.stack([np.take(t, r, axis - batch_dims) for t, r in pairs])
    return taken.reshape(*batch, *taken.shape[1:])


@op("gather_along_axis")
def gather_along_axis(
    x: Array, indices: Array, axis: int = 0, validate_indices: bool = False
) -> Array:
    axis %= x.ndim
    chosen = _bounded(indices, x.shape[axis], validate_indices)
    return x[_along(chosen, axis)]


@op("gather_nd")
def gather_nd(
    x: Array, indices: Array, batch_dims: int = 0, validate_indices: bool = False
) -> Array:
    depth = indices.shape[-1]
    chosen = _bounded_each(indices, x.shape[batch_dims : batch_dims + depth], validate_indices)
    if batch_dims == 0:
        return x[_columns(chosen)]
    batch = x.shape[:batch_dims]
    tables = x.reshape(-1, *x.shape[batch_dims:])
    rows = chosen.reshape(-1, *chosen.shape[batch_dims:])
    taken = np.stack([t[_columns(r)] for t, r in zip(tables, rows, strict=True)])
    return taken.reshape(*batch, *taken.shape[1:])


@op("scatter")
def scatter(
    data: Array,
    indices: Array,
    updates: Array,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool = False,
) -> Array:
    axis %= data.ndim
    chosen = _bounded(indices, data.shape[axis], validate_indices)
    return _write(data, (slice(None),) * axis + (chosen,), updates, mode)


@op("scatter_along_axis")
def scatter_along_axis(
    data: Array,
    indices: Array,
    updates: Array,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool = False,
) -> Array:
    axis %= data.ndim
    chosen = _bounded(indices, data.shape[axis], validate_indices)
    return _write(data, _along(chosen, axis), updates, mode)


@op("scatter_nd")
def scatter_nd(
    data: Array,
    indices: Array,
    updates: Array,
    mode: str = "add",
    validate_indices: bool = False,
) -> Array:
    chosen = _bounded_each(indices, data.shape[: indices.shape[-1]], validate_indices)
    return _write(data, _columns(chosen), updates, mode)


def _write(data: Array, place: Any, updates: Array, mode: str) -> Array:
    y = data.copy()
    if mode == "update":
        y[place] = updates
    elif mode in _MODES:
        _MODES[mode].at(y, place, updates)
    else:
        raise ValueError(f"the mode {mode!r} is not known")
    return y


def _along(indices: Array, axis: int) -> tuple[Array, ...]:
    grid = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = indices
    return tuple(grid)


def _columns(indices: Array) -> tuple[Array, ...]:
    return tuple(np.moveaxis(indices, -1, 0))


def _bounded_each(indices: Array, lengths: tuple[int, ...], strict: bool) -> Array:
    columns = [_bounded(indices[..., i], n, strict) for i, n in enumerate(lengths)]
    return np.stack(columns, axis=-1) if columns else indices.astype(np.int64)


def _bounded(indices: Array, length: int, strict: bool) -> Array:
    wide = indices.astype(np.int64)
    if wide.size and not (0 if strict else -length) <= wide.min() <= wide.max() < length:
        raise IndexError(f"indices {wide.min()} to {wide.max()} of an axis of {length}")
    return wide
