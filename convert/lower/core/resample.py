"""Where each element of a resized axis comes from.

Coordinates are float32 throughout, as in ONNX Runtime: neighbours that lie equally near are chosen
by what rounding leaves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.records import dataclass
from edgeinfer.types import Array

F32 = np.float32

MOST_OF_AN_AXIS = 1 << 27
"""Elements of one resized axis, and weights for it: hours of audio."""

_FARTHEST = float(1 << 31)
"""No coordinate lies beyond it."""


@dataclass(frozen=True, slots=True)
class How:
    """The attributes of a resize."""

    mode: str
    transform: str
    rounding: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool


@dataclass(frozen=True, slots=True)
class Taps:
    """Each output element is the sum of ``weights * x[source]`` along the axis.

    Attributes:
        source: (out, taps), within the axis.
        weights: likewise.
        outside: outputs that lie beyond the input.
    """

    source: Array
    weights: Array
    outside: Array


def coordinates(
    transform: str,
    size: int,
    out: int,
    scale: float,
    roi: tuple[float, float] = (0.0, 1.0),
    kind: Any = F32,
) -> Array:
    """Where each output element lies in the input.

    Raises:
        Refusal: there is no such transform, or they lie where no tensor has elements.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = _coordinates(transform, size, out, scale, roi, kind)
    if not (np.abs(found) < _FARTHEST).all():
        raise Refusal(f"{transform} with scale {scale} and region {roi} reads beyond any tensor")
    return found


def _coordinates(
    transform: str, size: int, out: int, scale: float, roi: tuple[float, float], kind: Any
) -> Array:
    x: Array = np.arange(out, dtype=kind)
    s = kind(scale)
    half = (x + kind(0.5)) / s - kind(0.5)
    match transform:
        case "half_pixel":
            return np.asarray(half)
        case "pytorch_half_pixel":
            return np.asarray(half) if out > 1 else np.zeros_like(x)
        case "half_pixel_symmetric":
            adjustment = kind(out) / (s * kind(size))
            offset = kind(size / 2) * (kind(1) - adjustment)
            return np.asarray(offset + (x + kind(0.5)) / s - kind(0.5))
        case "asymmetric":
            return np.asarray(x / s)
        case "align_corners":
            return np.asarray(x * kind(size - 1) / kind(max(out - 1, 1)))
        case "tf_crop_and_resize":
            first, last = kind(roi[0]), kind(roi[1])
            if out == 1:
                return np.full(1, kind(0.5) * (first + last) * kind(size - 1), kind)
            step = (last - first) * kind(size - 1) / kind(out - 1)
            return np.asarray(first * kind(size - 1) + x * step)
    raise Refusal(f"coordinate_transformation_mode {transform!r}")


def rounded(rounding: str, place: Array) -> Array:
    """The neighbour that a coordinate stands for, as floats."""
    match rounding:
        case "floor":
            return np.floor(place)
        case "ceil":
            return np.ceil(place)
        case "round_prefer_floor":
            return np.asarray(np.ceil(place.astype(np.float64) - 0.5))
        case "round_prefer_ceil":
            return np.asarray(np.floor(place.astype(np.float64) + 0.5))
    raise Refusal(f"nearest_mode {rounding!r}")


def taps(
    how: How, size: int, out: int, scale: float, roi: tuple[float, float] = (0.0, 1.0)
) -> Taps:
    """Sources and weights of one axis."""
    place = coordinates(how.transform, size, out, scale, roi)
    outside = (place < 0) | (place > size - 1)
    if how.mode == "nearest":
        found = rounded(how.rounding, place)
        if _is_open(place, how.rounding) or _is_uneven(how, size, out, scale, roi, found):
            raise Refusal("two neighbours are equally near but for rounding: engines disagree")
        source = np.clip(found, 0, size - 1)[:, None]
        return Taps(source.astype(np.int32), np.ones((out, 1), F32), outside)
    if how.mode not in ("linear", "cubic"):
        raise Refusal(f"mode {how.mode!r}")
    shrink = min(scale, 1.0) if how.antialias else 1.0
    reach = 1 if how.mode == "linear" else 2
    if out * reach > MOST_OF_AN_AXIS * shrink:
        raise Refusal(f"{out} elements by scale {scale} need too many weights")
    first = math.floor(-reach / shrink) + 1
    offsets = np.arange(first, 2 - first)
    base = np.floor(place)
    distance = (offsets - (place - base)[:, None].astype(np.float64)) * shrink
    weights = _triangle(distance) if how.mode == "linear" else _cubic(distance, how.cubic_a)
    source = base[:, None].astype(np.int64) + offsets
    if how.exclude_outside:
        weights = np.where((source < 0) | (source >= size), 0.0, weights)
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    clipped = np.clip(source, 0, size - 1).astype(np.int32)
    return Taps(clipped, weights.astype(F32), outside)


def _is_open(place: Array, rounding: str) -> bool:
    """Whether a place lies next to the middle of two elements, but not on it."""
    off = np.abs(place.astype(np.float64) - np.floor(place) - 0.5)
    near = (off > 0) & (off < 1e-6 * np.maximum(np.abs(place), 1))
    return rounding.startswith("round") and bool(near.any())


def _is_uneven(
    how: How, size: int, out: int, scale: float, roi: tuple[float, float], found: Array
) -> bool:
    """Whether double precision finds other neighbours.

    Not asked where all engines agree: on the quotient of floats that is ``asymmetric``, and on what
    lies halfway in single precision.
    """
    crops = how.transform == "tf_crop_and_resize"
    if how.transform == "asymmetric" or (how.rounding.startswith("round") and not crops):
        return False
    exact = coordinates(how.transform, size, out, scale, roi, np.float64)
    return bool((found != rounded(how.rounding, exact)).any())


def _triangle(distance: Array) -> Array:
    return np.asarray(np.clip(1 - np.abs(distance), 0, 1))


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0.0)))


def matrix(t: Taps, size: int) -> Array:
    """The taps as (out, size) weights.

    Raises:
        Refusal: there are too many.
    """
    if len(t.source) * size > MOST_OF_AN_AXIS:
        raise Refusal(f"{len(t.source)} x {size} weights are too many")
    dense = np.zeros((len(t.source), size), F32)
    rows = np.arange(len(t.source))[:, None]
    np.add.at(dense, (np.broadcast_to(rows, t.source.shape), t.source), t.weights)
    return dense
