"""The tensors that images are written into."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from edgeinfer.media.geometry import Steps
from edgeinfer.media.image import arithmetic, behind_line, table
from edgeinfer.types import Array, ImageInput

_SIZES = (1, 2, 4)
"""Bytes of the elements that there is code for."""

_COUNTED = {"float32": "float32", "uint8": "uint8", "int8": "uint8"}
"""Elements whose values code computes, by what it makes; a table has those of all others."""


class UnfitError(Exception):
    """There is no code for an image or a record."""


class Canvas:
    """What surrounds an image in a tensor, and how it is written there.

    Args:
        plan: what happens to the image.
        record: Record of the input.
        dtype: Element type of the input.

    Attributes:
        table: what each value of a pixel becomes, by channel, as whole numbers.
        order: the byte of a pixel that each channel is made of.
        place: Place of the image in it, as the functions take it.
        size: bytes of an element.
        counted: the kind of elements whose values code can compute; empty where there is only the
            table.
        norm: scale, mean and std of each channel, for that.
        shifts: where in a pixel each channel lies, in bits.

    Raises:
        UnfitError: there is no code for it.
        UsageError: the record contradicts itself or the dtype.
    """

    def __init__(self, plan: Steps, record: ImageInput, dtype: np.dtype[Any]) -> None:
        if dtype.itemsize not in _SIZES:
            raise UnfitError(f"there is no code for elements {dtype}")
        values, channels = _table(record, dtype), 1 if record.color == "GRAY" else 3
        kept = plan.cut or (0, 0, *plan.scaled)
        inner = kept[2] - kept[0], kept[3] - kept[1]
        left, top = (0, 0) if plan.after is None else plan.after.at
        size = inner if plan.after is None else plan.after.size
        line = record.resize == "line"
        if line:
            size = plan.placement.size
        shape = (channels, size[1], size[0])
        first = record.layout == "NCHW"
        self._shape = shape if first else (size[1], size[0], channels)
        self._dtype, self._around = dtype, None
        if size != inner:
            around = behind_line(record, dtype) if line else values[:, level_of(record)]
            self._around = around.reshape(-1, 1, 1) if first else around
        self.size, self.counted = dtype.itemsize, _COUNTED.get(dtype.name, "")
        self.table = values.view(f"u{self.size}")
        self.norm, self.shifts = _norm(record)
        self.order = np.arange(channels, dtype=np.int32)
        if record.color == "BGR":
            self.order = self.order[::-1].copy()
        by_channel, by_row, by_column = size[0] * size[1], size[0], 1
        if not first:
            by_channel, by_row, by_column = 1, size[0] * channels, channels
        start, pixel = top * by_row + left * by_column, 1 if channels == 1 else 4
        place = start, inner[0], pixel, by_channel, by_row, by_column
        self.place = np.array(place, np.int32)

    def blank(self) -> Array:
        """Return a tensor with everything but the image in it, without its batch."""
        out: Array = np.empty(self._shape, self._dtype)
        if self._around is not None:
            out[...] = self._around
        return out


def level_of(record: ImageInput) -> int:
    """Return what a ground consists of.

    Raises:
        UnfitError: it is no colour.
    """
    level = round(record.pad)
    if not 0 <= level <= 255:
        raise UnfitError("a ground that is no colour")
    return level


@lru_cache(maxsize=32)
def _norm(record: ImageInput) -> tuple[Array, Array]:
    channels = 1 if record.color == "GRAY" else 3
    norm, shifts = np.zeros((3, 4), np.float32), np.zeros(4, np.int32)
    # What is computed of the fourth byte of a pixel is not kept.
    norm[2, channels:] = 1
    for row, values in zip(norm, arithmetic(record, channels), strict=True):
        row[:channels] = values
    shifts[:channels] = np.arange(channels) * 8
    if record.color == "BGR":
        shifts[:3] = shifts[2::-1]
    return norm, shifts


_table = lru_cache(maxsize=32)(table)
