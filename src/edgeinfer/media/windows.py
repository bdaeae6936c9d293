"""The weights with which Pillow resizes, asked of Pillow itself.

What Pillow weighs is a window of pixels, in whole numbers of 22 bits. Computing them anew would be
right nearly always: a compiler may have joined a product and a sum. So Pillow resizes impulses of
2**22 in its 32-bit mode, which it weighs with the same numbers before they are rounded, and rounds
the same way: what comes out are the weights.
"""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.media.image import neighbours_of
from edgeinfer.media.kept import by_bytes
from edgeinfer.records import dataclass
from edgeinfer.types import Array

ONE = 1 << 22
"""A weight of 1."""

_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}
"""Pixels to either side that a filter reaches where nothing is made smaller."""

_MOST = 1 << 23
"""Impulses; an image that is made thousands of times smaller has more, and is left to Pillow."""


class TooManyError(Exception):
    """The windows are too wide to be requested."""


@dataclass(frozen=True, slots=True)
class ResizeWindows:
    """What each pixel of a resized row is made of.

    Attributes:
        first: pixel of each window (n,), int32.
        weights: (n, taps), int32; windows never reach beyond the row.
    """

    first: Array
    weights: Array

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.first.nbytes + self.weights.nbytes


@by_bytes
def windows(old: int, new: int, interpolation: str) -> ResizeWindows:
    """Return the windows by which Pillow makes ``new`` pixels of ``old``.

    Raises:
        TooManyError: they are too wide.
    """
    from PIL import Image

    if old == new:
        return ResizeWindows(np.arange(old, dtype=np.int32), np.full((old, 1), ONE, np.int32))
    method = Image.Resampling[interpolation.upper()]
    if interpolation == "nearest":
        positions = Image.fromarray(np.arange(old, dtype=np.int32)[np.newaxis])
        found = np.asarray(positions.resize((new, 1), method))[0]
        return ResizeWindows(found.astype(np.int32), np.full((new, 1), ONE, np.int32))
    scale = old / new
    reach = _SUPPORT[interpolation] * max(scale, 1.0)
    # One more on either side than the widest window can have.
    period = min(2 * math.ceil(reach) + 3, old)
    if period * max(old, new) > _MOST:
        raise TooManyError
    impulses = np.zeros((period, old), np.int32)
    place = np.arange(old)
    impulses[place % period, place] = ONE
    answers = np.asarray(Image.fromarray(impulses).resize((new, period), method))
    middle = (np.arange(new) + 0.5) * scale
    begin = np.floor(middle - reach).astype(np.int64) - 1
    return _trimmed(answers, begin.clip(0, old - period), old)


def _trimmed(answers: Array, begin: Array, old: int) -> ResizeWindows:
    """Give each window its weights in order, without the zeros at its ends.

    Args:
        answers: (period, new): what became of every ``period``-th pixel.
        begin: where a run of ``period`` pixels begins that holds the window.
        old: pixels there are.
    """
    period, new = answers.shape
    pixels = begin[:, np.newaxis] + np.arange(period)
    weights = answers[pixels % period, np.arange(new)[:, np.newaxis]]
    used = weights != 0
    lead = used.argmax(axis=1)
    taps = int((period - used[:, ::-1].argmax(axis=1) - lead).max())
    first = np.minimum(begin + lead, old - taps)
    wanted = first[:, np.newaxis] + np.arange(taps) - begin[:, np.newaxis]
    inside = (wanted >= 0) & (wanted < period)
    held = np.take_along_axis(weights, wanted.clip(0, period - 1), axis=1)
    return ResizeWindows(first.astype(np.int32), np.where(inside, held, 0).astype(np.int32))


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The two pixels that each resized one lies between.

    Attributes:
        pixels: (n, 2), int32.
        shares: (n, 2), float32.
    """

    pixels: Array
    shares: Array

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.pixels.nbytes + self.shares.nbytes


@by_bytes
def neighbours(old: int, new: int) -> Neighbours:
    """Return what ``image.sampled`` blends along one side."""
    pair, share = neighbours_of(old, new)
    both = np.stack([1 - share, share], axis=1)
    return Neighbours(np.stack(pair, axis=1).astype(np.int32), both.astype(np.float32))
