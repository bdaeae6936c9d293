"""Resizing of the last axes, and crops that are resized.

``DEFAULT`` spreads the samples over all of the axis but its last pixel's width; the formulas are
those of the ``resize_bilinear`` page of coremltools.
"""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.types import Array


@op("upsample_nearest_neighbor")
def upsample_nearest_neighbor(
    x: Array, scale_factor_height: float = 1.0, scale_factor_width: float = 1.0
) -> Array:
    for axis, scale in ((x.ndim - 2, scale_factor_height), (x.ndim - 1, scale_factor_width)):
        # The scale is recomputed from the output's length.
        length = _scaled(x.shape[axis], scale)
        x = np.take(x, np.arange(length) * x.shape[axis] // length, axis)
    return x


@op("upsample_bilinear")
def upsample_bilinear(
    x: Array,
    scale_factor_height: float = 1.0,
    scale_factor_width: float = 1.0,
    align_corners: bool = True,
    half_pixel_centers: bool | None = None,
) -> Array:
    half = not align_corners if half_pixel_centers is None else half_pixel_centers
    for axis, scale in ((x.ndim - 2, scale_factor_height), (x.ndim - 1, scale_factor_width)):
        size = x.shape[axis]
        length = _scaled(size, scale)
        if align_corners:
            coordinates = sample_places(size, length, "STRICT_ALIGN_CORNERS")
        elif half:
            # The scale is recomputed from the output's length.
            coordinates = sample_places(size, length, "UNALIGN_CORNERS")
        else:
            coordinates = np.arange(length) * (size / length)
        x = linear_samples(x, axis, coordinates)
    return x


@op("resize_nearest_neighbor")
def resize_nearest_neighbor(x: Array, target_size_height: int, target_size_width: int) -> Array:
    for axis, length in ((x.ndim - 2, target_size_height), (x.ndim - 1, target_size_width)):
        x = np.take(x, _nearest(x.shape[axis], length, "DEFAULT"), axis)
    return x


@op("resize_bilinear")
def resize_bilinear(
    x: Array,
    target_size_height: int = 1,
    target_size_width: int = 1,
    sampling_mode: str = "DEFAULT",
) -> Array:
    for axis, length in ((x.ndim - 2, target_size_height), (x.ndim - 1, target_size_width)):
        x = linear_samples(x, axis, sample_places(x.shape[axis], length, sampling_mode))
    return x


@op("resize")
def resize(
    x: Array,
    shape: Ints,
    resized_dims: int,
    interpolation_mode: str = "LINEAR",
    sampling_mode: str = "DEFAULT",
) -> Array:
    for place, length in enumerate(shape[len(shape) - resized_dims :]):
        axis = x.ndim - resized_dims + place
        size = x.shape[axis]
        if interpolation_mode == "NEAREST_NEIGHBOR":
            x = np.take(x, _nearest(size, length or size, sampling_mode), axis)
        elif interpolation_mode == "LINEAR":
            x = linear_samples(x, axis, sample_places(size, length or size, sampling_mode))
        else:
            raise ValueError(f"the interpolation_mode {interpolation_mode!r} is not known")
    return x


@op("crop_resize")
def crop_resize(
    x: Array,
    roi: Array | None = None,
    boxes: Array | None = None,
    box_indices: Array | None = None,
    target_height: int = 1,
    target_width: int = 1,
    normalized_coordinates: bool = False,
    spatial_scale: float = 1.0,
    box_coordinate_mode: str = "CORNERS_HEIGHT_FIRST",
    sampling_mode: str = "DEFAULT",
    pad_value: float = 0.0,
) -> Array:
    """Until iOS 16 ``roi`` holds the boxes, maybe with the image's number before each."""
    if roi is not None:
        flat = roi.reshape(roi.shape[0], -1)
        table = flat[:, -4:]
        images = None if flat.shape[1] == 4 else flat[:, 0].astype(np.int64)
    elif boxes is not None:
        table = boxes.astype(np.float32)
        images = np.arange(len(boxes)) if box_indices is None else box_indices.astype(np.int64)
    else:
        raise ValueError("there are neither boxes nor a roi")
    size = x.shape[-2:]
    corners = _corners(table * np.float32(spatial_scale), box_coordinate_mode)
    if normalized_coordinates:
        corners = corners * (np.array([size[0], size[1]] * 2) - 1)
    target = (target_height, target_width)
    crops = []
    for number, (top, left, bottom, right) in enumerate(corners.astype(np.float64)):
        image = x if images is None else x[images[number] : images[number] + 1]
        rows = _crop_places(top, bottom, target[0], sampling_mode)
        columns = _crop_places(left, right, target[1], sampling_mode)
        crops.append(_crop(image, rows, columns, pad_value))
    stacked = np.stack(crops)
    return stacked if roi is not None else stacked[:, 0]


def sample_places(size: int, length: int, mode: str) -> Array:
    """Return where along an axis of ``size`` each of ``length`` samples lies."""
    steps = np.arange(length, dtype=np.float64)
    if mode == "ALIGN_CORNERS" and length == 1:
        return np.array([(size - 1) / 2])
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        return steps * ((size - 1) / (length - 1) if length > 1 else 0.0)
    if mode == "DEFAULT":
        return steps * ((size - size / length) / (length - 1) if length > 1 else 0.0)
    if mode == "OFFSET_CORNERS":
        delta = max(1, size - 1) / length
        return steps * delta + 0.5 * delta
    if mode == "UNALIGN_CORNERS":
        spacing = size / length
        return steps * spacing + 0.5 * spacing - 0.5
    raise ValueError(f"the sampling_mode {mode!r} is not known")


def linear_samples(x: Array, axis: int, positions: Array) -> Array:
    """Return samples between neighbours; positions outside of the axis take its ends."""
    last = x.shape[axis] - 1
    positions = np.clip(positions, 0, last)
    low = np.floor(positions).astype(np.int64)
    weight = (positions - low).astype(np.float32)
    if not weight.any():
        return np.take(x, low, axis)
    weight = weight.reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    below, above = np.take(x, low, axis), np.take(x, np.minimum(low + 1, last), axis)
    result: Array = below * (1 - weight) + above * weight
    return result


def _scaled(size: int, scale: float) -> int:
    # A scale like 1.1 was rounded to float32, so its product may fall short of a whole number.
    return math.floor(size * scale + 1e-6)


def _nearest(size: int, length: int, mode: str) -> Array:
    """Return the pixel nearest to each sample.

    ``DEFAULT`` goes by the centres of pixels here, which is what coremltools' TensorFlow frontend
    takes it for and checks on Macs (``half_pixel_centers``), and gives the first pixel to a single
    sample, which its tests of the size (1, 1) record as a mismatch.
    """
    if mode == "DEFAULT":
        mode = "UNALIGN_CORNERS" if length > 1 else mode
    coordinates = sample_places(size, length, mode)
    return np.clip(np.floor(coordinates + 0.5), 0, size - 1).astype(np.int64)


def _corners(boxes: Array, mode: str) -> Array:
    """Return boxes as top, left, bottom, right."""
    if mode.endswith("WIDTH_FIRST"):
        boxes = boxes[:, [1, 0, 3, 2]]
    if mode.startswith("CORNERS"):
        return boxes
    if not mode.startswith("CENTER_SIZE"):
        raise ValueError(f"the box_coordinate_mode {mode!r} is not known")
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def _crop_places(start: float, stop: float, length: int, mode: str) -> Array:
    steps = np.arange(length, dtype=np.float64)
    span = stop - start
    if mode == "ALIGN_CORNERS" and length == 1:
        return np.array([(start + stop) / 2])
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        return start + steps * (span / (length - 1) if length > 1 else 0.0)
    if mode == "DEFAULT":
        return start + steps * (
            (span + 1 - (span + 1) / length) / (length - 1) if length > 1 else 0.0
        )
    if mode == "OFFSET_CORNERS":
        delta = max(1.0, span) / length
        return start + steps * delta + 0.5 * delta
    if mode == "UNALIGN_CORNERS":
        spacing = (span + 1) / length
        return start + steps * spacing + 0.5 * spacing - 0.5
    raise ValueError(f"the sampling_mode {mode!r} is not known")


def _crop(image: Array, rows: Array, columns: Array, outside: float) -> Array:
    height, width = image.shape[-2:]
    sampled = linear_samples(linear_samples(image, image.ndim - 2, rows), image.ndim - 1, columns)
    inside = ((rows >= 0) & (rows <= height - 1))[:, None] & (
        (columns >= 0) & (columns <= width - 1)
    )
    return np.where(inside, sampled, np.float32(outside))
