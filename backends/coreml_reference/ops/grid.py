"""Sampling of images at positions that are computed."""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.coreml_reference.registry import op
from edgeinfer.types import Array


@op("resample")
def resample(
    x: Array,
    coordinates: Array,
    sampling_mode: str,
    padding_mode: str,
    padding_value: float,
    coordinates_mode: str,
    align_corners: bool,
) -> Array:
    height, width = x.shape[-2:]
    positions = coordinates.astype(np.float64)
    columns = _pixels(positions[..., 0], width, coordinates_mode, align_corners)
    rows = _pixels(positions[..., 1], height, coordinates_mode, align_corners)
    return _sample(x, rows, columns, sampling_mode, padding_mode, padding_value)


@op("affine")
def affine(
    x: Array,
    transform_matrix: Array,
    output_height: int,
    output_width: int,
    sampling_mode: str,
    padding_mode: str,
    padding_value: float,
    coordinates_mode: str,
    align_corners: bool,
) -> Array:
    height, width = x.shape[-2:]
    if align_corners:
        v, u = np.linspace(-1, 1, output_height), np.linspace(-1, 1, output_width)
    else:
        v = (2 * np.arange(output_height) + 1) / output_height - 1
        u = (2 * np.arange(output_width) + 1) / output_width - 1
    if coordinates_mode == "normalized_zero_to_one":
        u, v = (u + 1) / 2, (v + 1) / 2
    elif coordinates_mode == "unnormalized":
        u, v = np.arange(output_width, dtype=float), np.arange(output_height, dtype=float)
    matrix = transform_matrix.reshape(-1, 6, 1, 1).astype(np.float64)
    grid_u, grid_v = u[None, None, :], v[None, :, None]
    across = matrix[:, 0] * grid_u + matrix[:, 1] * grid_v + matrix[:, 2]
    down = matrix[:, 3] * grid_u + matrix[:, 4] * grid_v + matrix[:, 5]
    shape = (x.shape[0], output_height, output_width)
    columns = np.broadcast_to(_pixels(across, width, coordinates_mode, align_corners), shape)
    rows = np.broadcast_to(_pixels(down, height, coordinates_mode, align_corners), shape)
    return _sample(x, rows, columns, sampling_mode, padding_mode, padding_value)


def _pixels(place: Array, size: int, mode: str, align_corners: bool) -> Array:
    if mode == "unnormalized":
        return place
    if mode == "normalized_minus_one_to_one":
        place = (place + 1) / 2
    elif mode != "normalized_zero_to_one":
        raise ValueError(f"the coordinates_mode {mode!r} is not known")
    return place * (size - 1) if align_corners else place * size - 0.5


def _sample(
    x: Array, rows: Array, columns: Array, sampling: str, padding: str, value: float
) -> Array:
    height, width = x.shape[-2:]
    rows, columns = _folded(rows, height, padding), _folded(columns, width, padding)
    fill = value if padding == "constant" else None
    if sampling == "nearest":
        return _pick(x, np.round(rows), np.round(columns), fill)
    if sampling != "bilinear":
        raise ValueError(f"the sampling_mode {sampling!r} is not known")
    top, left = np.floor(rows), np.floor(columns)
    down, right = (rows - top)[:, None], (columns - left)[:, None]
    upper = _pick(x, top, left, fill) * (1 - right) + _pick(x, top, left + 1, fill) * right
    lower = _pick(x, top + 1, left, fill) * (1 - right) + _pick(x, top + 1, left + 1, fill) * right
    result: Array = upper * (1 - down) + lower * down
    return result


def _folded(place: Array, size: int, padding: str) -> Array:
    if padding == "constant":
        return place
    if padding == "border":
        return np.clip(place, 0, size - 1)
    if padding == "reflection":
        period = max(2 * (size - 1), 1)
        place = np.abs(place) % period
        return np.where(place > size - 1, period - place, place)
    if padding == "symmetric":
        place = np.abs(place + 0.5) % (2 * size)
        return np.clip(np.where(place > size, 2 * size - place, place) - 0.5, 0, size - 1)
    raise ValueError(f"the padding_mode {padding!r} is not known")


def _pick(x: Array, rows: Array, columns: Array, fill: float | None) -> Array:
    """Return the pixels at whole positions; ``fill`` stands for those outside."""
    height, width = x.shape[-2:]
    r = np.clip(np.nan_to_num(rows), 0, height - 1).astype(np.int64)
    c = np.clip(np.nan_to_num(columns), 0, width - 1).astype(np.int64)
    images = np.arange(x.shape[0])[:, None, None]
    pixels = np.moveaxis(x[images, :, r, c], -1, 1)
    if fill is None:
        return pixels
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(inside[:, None], pixels, np.float32(fill))
