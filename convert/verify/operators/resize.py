"""Resize, one axis after the other, each by a small matrix of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.numerics.interpolation import Coordinates, cubic, linear
from edgeinfer.types import Array


def resize(attrs: Mapping[str, Any], version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Resize by nearest, linear or cubic interpolation; antialias and crops are left."""
    x = inputs[0]
    mode = attrs.get("mode", "nearest")
    default = "half_pixel" if version > 10 else "asymmetric"
    how = attrs.get("coordinate_transformation_mode", default)
    policy = attrs.get("keep_aspect_ratio_policy", "stretch")
    special = attrs.get("antialias") or policy != "stretch" or how == "tf_crop_and_resize"
    if x is None or special or x.dtype.kind != "f":
        raise Unhandled
    padded = [*inputs, None, None, None]
    scales, sizes = padded[1 if version == 10 else 2], padded[3]
    axes = [a % x.ndim for a in attrs.get("axes") or range(x.ndim)]
    rounding = attrs.get("nearest_mode", "round_prefer_floor" if version > 10 else "floor")
    y = x
    for i, axis in enumerate(axes):
        length = x.shape[axis]
        if sizes is not None and sizes.size:
            out = int(sizes[i])
            scale = out / length
        elif scales is not None and scales.size:
            scale = float(scales[i])
            out = int(np.floor(np.float32(length) * np.float32(scale)))
        else:
            raise Unhandled
        if out != length or scale != 1.0:
            y = _resize_axis(y, axis, out, scale, mode, how, rounding, attrs)
    return (np.ascontiguousarray(y),)


def upsample(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """Upsample, Resize's predecessor."""
    scales = np.asarray(attrs["scales"]) if "scales" in attrs else inputs[1]
    given = {
        "mode": attrs.get("mode", "nearest"),
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return resize(given, 11, [inputs[0], None, scales])


def _resize_axis(
    x: Array,
    axis: int,
    out: int,
    scale: float,
    mode: str,
    how: str,
    rounding: str,
    attrs: Mapping[str, Any],
) -> Array:
    length = x.shape[axis]
    place = _coordinates(how, np.arange(out, dtype=np.float64), length, out, scale)
    if mode == "nearest":
        if how == "asymmetric":
            # Scales are float32: 32 / (64 / 26) lies just below 13 there, and engines floor that.
            place = np.arange(out, dtype=np.float32) / np.float32(scale)
        picked = np.clip(_round(rounding, place), 0, length - 1).astype(np.int64)
        taken: Array = x.take(picked, axis=axis)
        return taken
    if mode == "linear":
        taps, weights = linear(place)
    elif mode == "cubic":
        taps, weights = cubic(place, float(attrs.get("cubic_coeff_a", -0.75)))
    else:
        raise Unhandled
    if mode == "cubic" and attrs.get("exclude_outside"):
        weights = np.where((taps < 0) | (taps >= length), 0.0, weights)
        weights = weights / weights.sum(axis=0)
    matrix = np.zeros((out, length))
    for tap, weight in zip(taps, weights, strict=True):
        np.add.at(matrix, (np.arange(out), np.clip(tap, 0, length - 1)), weight)
    moved = np.moveaxis(x, axis, -1) @ matrix.T.astype(x.dtype)
    return np.moveaxis(moved, -1, axis)


def _coordinates(how: str, at: Coordinates, length: int, out: int, scale: Any) -> Coordinates:
    """Where each output element lies in the input (Resize, coordinate_transformation_mode)."""
    place: Coordinates
    match how:
        case "half_pixel":
            place = (at + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            adjustment = out / (scale * length)
            place = length / 2 * (1 - adjustment) + (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            place = (at + 0.5) / scale - 0.5 if out > 1 else np.zeros_like(at)
        case "align_corners":
            place = at * (length - 1) / (out - 1) if out > 1 else np.zeros_like(at)
        case "asymmetric":
            place = at / scale
        case _:
            raise Unhandled
    return place


def _round(rounding: str, place: Coordinates) -> Coordinates:
    match rounding:
        case "floor":
            return np.floor(place)
        case "ceil":
            return np.ceil(place)
        case "round_prefer_ceil":
            return np.asarray(np.floor(place + 0.5))
        case _:
            return np.asarray(np.ceil(place - 0.5))
