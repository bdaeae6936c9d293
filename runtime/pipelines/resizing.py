"""How one size of images becomes another, as compiled code takes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgeinfer.backends.tvm.plain_functions import HeldArray
from edgeinfer.media.kept import by_bytes
from edgeinfer.media.windows import ONE, Neighbours, ResizeWindows, neighbours, windows
from edgeinfer.records import dataclass
from edgeinfer.types import Array

READABLE = 32
"""Bytes behind a window that the code may read."""

_COLUMNS = 32
"""Pixels of a row are made in groups of this many: whole vectors, also of one byte a pixel."""

_LOW = 12
"""Bits of the lower half of a weight."""


@dataclass(frozen=True, slots=True, eq=False)
class Resizing:
    """What the code reads of an image, and how it weighs it.

    Attributes:
        across: windows of the columns, filled up to whole vectors.
        rows: first row of each output row's window, counted from the first one needed.
        down: their weights.
        needed: the first row that is read and the one behind the last.
        samples: neighbours of columns and rows, instead of windows across.
    """

    across: ResizeWindows
    rows: Array
    down: Array
    needed: tuple[int, int]
    samples: tuple[Neighbours, Neighbours] | None = None

    @property
    def columns(self) -> int:
        """Pixels of a row that are made."""
        return len(self.across.first)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        samples = sum(side.nbytes for side in self.samples or ())
        return self.across.nbytes + self.rows.nbytes + self.down.nbytes + samples


class WindowsAcross(NamedTuple):
    """Windows of the columns, as a function takes them.

    Attributes:
        pair: the byte at which each begins, and the weights.
        nbytes: bytes that keeping them takes, what they were made of included.
    """

    pair: tuple[HeldArray, HeldArray]
    nbytes: int


@by_bytes
def windows_across(by: Resizing, channels: int, *, paired: bool) -> WindowsAcross:
    """Return the byte at which each window begins, and the weights as the function takes them.

    Args:
        by: how images are resized.
        channels: Channels of their pixels.
        paired: the function multiplies neighbours.
    """
    if channels == 1:
        weights = _grouped(by.across, 8)
    else:
        weights = _halves(by.across) if paired else by.across.weights
    first = by.across.first * np.int32(channels)
    nbytes = by.nbytes + first.nbytes + weights.nbytes
    return WindowsAcross((HeldArray(first), HeldArray(weights)), nbytes)


def resizing(
    old: tuple[int, int], new: tuple[int, int], kept: tuple[int, int, int, int], method: str
) -> Resizing:
    """Describe one.

    Args:
        old: width and height of the image.
        new: that it is resized to.
        kept: left, top, right and bottom of the part that is wanted.
        method: Method of Pillow, or ``sampled``.

    Raises:
        TooManyError: the windows are too wide.
    """
    left, top, right, bottom = kept
    if method == "sampled":
        wide, tall = neighbours(old[0], new[0]), neighbours(old[1], new[1])
        filled = _filled(np.arange(left, right))
        both = (
            Neighbours(wide.pixels[filled], wide.shares[filled]),
            Neighbours(tall.pixels[top:bottom], tall.shares[top:bottom]),
        )
        rows = np.arange(bottom - top, dtype=np.int32)
        plain = np.full((bottom - top, 1), ONE, np.int32)
        nothing = ResizeWindows(wide.pixels[filled, 0], np.zeros((len(filled), 1), np.int32))
        return Resizing(nothing, rows, plain, (0, bottom - top), both)
    all_across, all_down = windows(old[0], new[0], method), windows(old[1], new[1], method)
    filled = _filled(np.arange(left, right))
    across = ResizeWindows(all_across.first[filled], all_across.weights[filled])
    down = ResizeWindows(all_down.first[top:bottom], all_down.weights[top:bottom])
    begin = int(down.first.min())
    end = int(down.first.max()) + down.weights.shape[1]
    rows = down.first - np.int32(begin)
    return Resizing(across, rows, np.ascontiguousarray(down.weights), (begin, end))


def _filled(columns: Array) -> Array:
    """Repeat the last column until the row is a whole number of vectors."""
    return np.pad(columns, (0, -len(columns) % _COLUMNS), mode="edge")


def _grouped(windows: ResizeWindows, taps: int) -> Array:
    """Weights (columns, groups, taps), with zeros behind the last."""
    columns, count = windows.weights.shape
    padded = np.pad(windows.weights, ((0, 0), (0, -count % taps)))
    return np.ascontiguousarray(padded.reshape(columns, -1, taps))


def _halves(windows: ResizeWindows) -> Array:
    """Weights of four taps, their lower bits first, then the upper ones, as 16-bit numbers."""
    grouped = _grouped(windows, 4)
    low, high = grouped & ((1 << _LOW) - 1), grouped >> _LOW
    return np.ascontiguousarray(np.concatenate([low, high], axis=2).astype(np.int16))
