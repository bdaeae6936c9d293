"""Four pixels blended, normalised and laid out in one pass: what the code for it is given."""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.tvm.plain_functions import Functions, HeldArray
from edgeinfer.media.windows import Neighbours
from edgeinfer.records import dataclass
from edgeinfer.runtime.pipelines.canvas import Canvas
from edgeinfer.runtime.pipelines.resizing import READABLE
from edgeinfer.types import Array


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of the output.

    Attributes:
        copied: the first row of the image that is copied, with bytes behind the last one; None
            where pixels are read where they lie.
        picks: the two rows of the image, for each.
        by_row: their shares.
        place: Place of the first row in the output.
    """

    copied: int | None
    picks: HeldArray
    by_row: HeldArray
    place: HeldArray


class Blending:
    """How images of one size are blended, which every image of it uses again.

    Args:
        samples: neighbours of columns and rows.
        height: Height of the image.
        channels: Channels of its pixels.
        canvas: what is written.
    """

    def __init__(
        self, samples: tuple[Neighbours, Neighbours], height: int, channels: int, canvas: Canvas
    ) -> None:
        across, down = samples
        self._name = f"blend_{channels}_{canvas.counted}"
        self._columns = HeldArray(across.pixels * np.int32(channels)), _shares(across, channels)
        self._norm = HeldArray(canvas.norm), HeldArray(canvas.shifts)
        self._line = len(across.pixels) * (1 if channels == 1 else 4)
        count = done = len(down.pixels)
        # Three bytes are read as four; what lies behind the last row is not ours to read.
        if channels == 3 and (ends := down.pixels[:, 1] == height - 1).any():
            done = int(np.argmax(ends))
        self._parts = []
        for begin, end, copied in ((0, done, False), (done, count, True)):
            if begin == end:
                continue
            picks, place = down.pixels[begin:end], canvas.place.copy()
            first = int(picks.min()) if copied else None
            place[0] += begin * place[4]
            numbers = HeldArray(picks - np.int32(first or 0)), HeldArray(down.shares[begin:end])
            self._parts.append(_Part(first, *numbers, HeldArray(place)))

    def __call__(self, functions: Functions, pixels: Array, out: Array) -> None:
        """Blend an image.

        Args:
            functions: Functions of the library.
            pixels: (height, width, channels).
            out: the tensor as the code writes it.
        """
        rows = pixels.reshape(pixels.shape[0], -1)
        line = np.empty(self._line, np.uint8)
        for part in self._parts:
            source = rows if part.copied is None else _with_bytes_behind(rows[part.copied :])
            given = (source, part.picks, *self._columns, part.by_row, *self._norm)
            functions.call(self._name, (*given, part.place, line, out))


def _shares(across: Neighbours, channels: int) -> HeldArray:
    """The shares of two pixels, for each of their bytes."""
    if channels == 1:
        return HeldArray(across.shares)
    spread = np.zeros((len(across.shares), 8), np.float32)
    spread[:, : 2 * channels] = across.shares.repeat(channels, axis=1)
    return HeldArray(spread)


def _with_bytes_behind(rows: Array) -> Array:
    copied = np.zeros(rows.size + READABLE, np.uint8)[: rows.size].reshape(rows.shape)
    copied[:] = rows
    return copied
