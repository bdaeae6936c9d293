"""Where the pixels of an image go on their way into a model: pure arithmetic, no pixels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edgeinfer.errors import InputError, UsageError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, ImageInput

Size = tuple[int, int]

MOST_PIXELS, MOST_GROWTH = 1 << 25, 8
"""Of an image on its way: so many, or so many times what it has itself.

Beyond that are images of one line, which become as high as the input and as much wider.
"""

MOST_TENSOR, MOST_OWN = 6 << 20, 1 << 24
"""Pixels of the model's input where the image decides: so many, or its own up to the second."""

TENSOR_BYTES = 30
"""Of a pixel while it becomes numbers: three channels of float32, two and a half times."""


@dataclass(frozen=True, slots=True)
class ImagePlacement:
    """Where a source image lies in the model's input: input = source * scale + offset.

    Attributes:
        scale: Scale of x and y.
        offset: Offset of x and y, in pixels of the input.
        source: width and height of the image, upright.
        size: width and height of the input.
    """

    scale: tuple[float, float]
    offset: tuple[float, float]
    source: Size
    size: Size

    def to_source(self, points: Array) -> Array:
        """Turn points (..., 2) of the input into points of the source."""
        found: Array = (np.asarray(points, np.float64) - self.offset) / self.scale
        return found


@dataclass(frozen=True, slots=True)
class Laid:
    """An image on a ground of one colour.

    Attributes:
        size: Size of the ground.
        at: left and top of the image.
    """

    size: Size
    at: Size


@dataclass(frozen=True, slots=True)
class Steps:
    """What happens to an image, in this order.

    Attributes:
        before: it is laid on a ground.
        scaled: it is resized to this width and height.
        cut: left, top, right and bottom of what is kept.
        after: it is laid on a ground.
        placement: what all of it amounts to.
    """

    scaled: Size
    placement: ImagePlacement
    before: Laid | None = None
    cut: tuple[int, int, int, int] | None = None
    after: Laid | None = None


def check_scaled(size: Size, wanted: Size) -> None:
    """Refuse to scale an image that would grow out of proportion; one side follows the other.

    Raises:
        InputError: it would.
    """
    wide, high = wanted[0], max(wanted[1], size[1])
    if wide * high > max(MOST_PIXELS, MOST_GROWTH * math.prod(size)):
        raise _without_room(size, (wide, high))


def _without_room(size: Size, made: Size) -> InputError:
    received = f"{size[0]} by {size[1]} pixels, of which it would make {made[0]} by {made[1]}"
    return InputError("image", "one that the model's input has room for", received, "cut it")


def steps(size: Size, record: ImageInput) -> Steps:
    """Say how an image of a size fills the input of a record.

    Of a line the part that is filled up is not among the steps: it comes later, as numbers.

    Raises:
        InputError: the image is so narrow that it would grow out of proportion, or so large.
        UsageError: the record contradicts itself.
    """
    found = _steps(size, record)
    grounds = [laid.size for laid in (found.before, found.after) if laid is not None]
    # One side is scaled after the other.
    half = (found.scaled[0], size[1] if found.before is None else found.before.size[1])
    wide, high = max((found.scaled, half, *grounds), key=math.prod)
    if math.prod(found.placement.size) > max(
        MOST_TENSOR, min(math.prod(size), MOST_OWN), (record.width or 1) * (record.height or 1)
    ):
        wide, high = found.placement.size
    elif wide * high <= max(MOST_PIXELS, MOST_GROWTH * math.prod(size)):
        return found
    raise _without_room(size, (wide, high))


def _steps(size: Size, record: ImageInput) -> Steps:
    width, height = record.width or size[0], record.height or size[1]
    if record.resize == "stretch":
        return _plain(size, (width, height))
    if record.resize == "limit":
        return _plain(size, _limited(size, record))
    if record.width is None or record.height is None:
        raise UsageError(f"preprocessing: resize={record.resize!r} needs width and height")
    if record.resize == "line":
        long = math.ceil(height * size[0] / size[1])
        found = _plain(size, (long if record.grow else min(long, width), height))
        filled = (max(found.scaled[0], width), height)
        return replace(found, placement=replace(found.placement, size=filled))
    if record.resize == "crop":
        found = _plain(size, _covering(size, record, width, height))
        left = round((found.scaled[0] - width) / 2)
        top = round((found.scaled[1] - height) / 2)
        whole = replace(found.placement, offset=(-left, -top), size=(width, height))
        return replace(found, cut=(left, top, left + width, top + height), placement=whole)
    if record.resize == "pad":
        share = max(size[0] / width, size[1] / height)
        before = _laid(size, (round(width * share), round(height * share)), record)
        found = _plain(before.size, (width, height))
        scale = found.placement.scale
        offset = (before.at[0] * scale[0], before.at[1] * scale[1])
        whole = replace(found.placement, offset=offset, source=size)
        return replace(found, before=before, placement=whole)
    found = _plain(size, _fitting(size, min(width / size[0], height / size[1]), (width, height)))
    after = _laid(found.scaled, (width, height), record)
    whole = replace(found.placement, offset=after.at, size=(width, height))
    return replace(found, after=after, placement=whole)


def _plain(old: Size, new: Size) -> Steps:
    scale = (new[0] / old[0], new[1] / old[1])
    return Steps(new, ImagePlacement(scale, (0.0, 0.0), old, new))


def _laid(size: Size, ground: Size, record: ImageInput) -> Laid:
    at = ((ground[0] - size[0]) // 2, (ground[1] - size[1]) // 2)
    return Laid(ground, at if record.align == "center" else (0, 0))


def _limited(size: Size, record: ImageInput) -> Size:
    """Return both sides after one is brought to its limit, to the nearest multiple."""
    if record.side is None:
        raise UsageError("preprocessing: resize='limit' needs side")
    short, long = sorted(size)
    ratio = 1.0
    if record.side_rule == "min" and short < record.side:
        ratio = record.side / short
    if record.side_rule == "max" and long > record.side:
        ratio = record.side / long
    if record.longest is not None:
        ratio = min(ratio, record.longest / long)
    width, height = (
        max(round(int(side * ratio) / record.multiple), 1) * record.multiple for side in size
    )
    return width, height


def _covering(size: Size, record: ImageInput, width: int, height: int) -> Size:
    """Return the size before a centre crop: the tighter side rounded, the other one cut off.

    The same whole numbers as torchvision's ``Resize``, with which most classifiers are evaluated.
    """
    if width * size[1] >= height * size[0]:
        new_width = round(width / record.crop_ratio)
        return new_width, new_width * size[1] // size[0]
    new_height = round(height / record.crop_ratio)
    return new_height * size[0] // size[1], new_height


def _fitting(size: Size, scale: float, most: Size) -> Size:
    """Return the size inside a letterbox; a thin image keeps at least one pixel."""
    new_width, new_height = round(size[0] * scale), round(size[1] * scale)
    return max(min(new_width, most[0]), 1), max(min(new_height, most[1]), 1)
