"""Results drawn onto the image that they are of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.media.image import AnyImage, open_image
from edgeinfer.results import (
    Classification,
    DepthMap,
    Detection,
    Mask,
    Result,
    Segmentation,
    Text,
)
from edgeinfer.types import Array

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

COLOURS = (
    (230, 60, 50),
    (60, 170, 80),
    (50, 110, 230),
    (240, 160, 30),
    (160, 70, 200),
    (20, 170, 190),
)
_MASK_SHARE = 0.45
_MARGIN = 3

_MOST, _LONGEST = 1000, 80
"""Results that are drawn, the first ones, and characters of a name."""

_ROWS = 64
"""Of an image that are tinted at once."""


def overlay(picture: AnyImage, results: Iterable[Result], note: str = "") -> Image.Image:
    """Return a copy of an image with boxes, masks and names drawn on it.

    Args:
        picture: as pipelines take it.
        results: what a pipeline gave for it.
        note: written into the lower left corner, such as a frame rate.

    Raises:
        InputError: it is no image.
        NotAvailableError: Pillow is not installed.
    """
    from PIL import ImageDraw

    found = [*itertools.islice(results, _MOST)]
    image = open_image(picture)
    for result in found:
        match result:
            case Segmentation():
                image = _tinted(image, result.mask)
            case DepthMap():
                image = _near_is_bright(image, result)
            case Detection(mask=Mask() as mask):
                colour = result.index % len(COLOURS)
                part = _tinted(image.crop(_part(mask)), mask.pixels * (1 + colour))
                image = image.copy()
                image.paste(part, _part(mask)[:2])
    image = image.copy()
    draw = ImageDraw.Draw(image)
    size = max(image.height // 40, 10)
    row = 0
    for result in found:
        match result:
            case Detection():
                _box(draw, result, size)
            case Text() if result.corners:
                corners = _near(draw, result.corners)
                draw.polygon(corners, outline=COLOURS[0], width=max(size // 8, 1))
                _label(draw, corners[0], result.text, COLOURS[0], size)
            case Classification():
                text = f"{result.label} {result.score:.2f}"
                _label(draw, (0.0, (row + 1.0) * (size + 2 * _MARGIN)), text, (0, 0, 0), size)
                row += 1
    if note:
        _label(draw, (0.0, float(image.height)), note, (0, 0, 0), size)
    return image


def _box(draw: ImageDraw.ImageDraw, found: Detection, size: int) -> None:
    colour = COLOURS[found.index % len(COLOURS)]
    left, top, right, bottom = found.box
    first, last = _near(draw, ((left, top), (right, bottom)))
    if found.corners:
        draw.polygon(_near(draw, found.corners), outline=colour, width=max(size // 6, 1))
    else:
        ends = (max(first[0], last[0]), max(first[1], last[1]))
        draw.rectangle((first, ends), outline=colour, width=max(size // 6, 1))
    for x, y in _near(draw, found.keypoints):
        radius = size / 6
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    number = "" if found.track is None else f"#{found.track} "
    _label(draw, first, f"{number}{found.label} {found.score:.2f}", colour, size)


def _near(
    draw: ImageDraw.ImageDraw, points: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return points where numbers can be drawn: at most an image away from it."""
    wide, high = draw.im.size
    found = np.nan_to_num(np.asarray([*points], np.float64).reshape(-1, 2))
    near = found.clip((-wide, -high), (2 * wide, 2 * high))
    return [(float(x), float(y)) for x, y in near]


def _part(mask: Mask) -> tuple[int, int, int, int]:
    rows, columns = mask.pixels.shape
    return (mask.left, mask.top, mask.left + columns, mask.top + rows)


def _near_is_bright(image: Image.Image, found: DepthMap) -> Image.Image:
    """Return the map itself, in grey: what is near is bright."""
    from PIL import Image

    low, high = float(found.values.min()), float(found.values.max())
    share = (found.values - low) / max(high - low, 1e-12)
    grey = (share if found.nearer_is_larger else 1 - share) * 255
    return Image.fromarray(grey.round().astype(np.uint8)).convert(image.mode)


def _label(
    draw: ImageDraw.ImageDraw,
    corner: Sequence[float],
    text: str,
    colour: tuple[int, int, int],
    size: int,
) -> None:
    """Write on a filled ground whose lower left corner is given; it stays in the image."""
    from PIL import ImageFont

    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    x, y = corner[0], max(corner[1] - (bottom - top) - 2 * _MARGIN, 0.0)
    ground = (x, y, x + right - left + 2 * _MARGIN, y + bottom - top + 2 * _MARGIN)
    draw.rectangle(ground, fill=colour)
    draw.text((x + _MARGIN - left, y + _MARGIN - top), text, fill=(255, 255, 255), font=font)


def _tinted(image: Image.Image, classes: Array) -> Image.Image:
    """Colour every class but the first, which is the background."""
    from PIL import Image

    palette = np.array(COLOURS, np.float32)
    tinted = image.copy()
    # A band at a time: the numbers are floats.
    for top in range(0, image.height, _ROWS):
        mask = classes[top : top + _ROWS]
        box = (0, top, image.width, top + len(mask))
        share = np.where(mask > 0, _MASK_SHARE, 0.0).astype(np.float32)[:, :, np.newaxis]
        mixed = (
            np.asarray(image.crop(box)) * (1 - share)
            + palette[(mask.astype(np.int64) - 1) % len(palette)] * share
        )
        tinted.paste(Image.fromarray(mixed.round().astype(np.uint8)), box)
    return tinted
