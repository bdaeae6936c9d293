"""The tensor that a picture is written into."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from edgeinfer.media.geometry import Steps
from edgeinfer.media.image import behind_line, table
from edgeinfer.types import Array, ImageInput

_SIZES = (1, 2, 4)
"""Bytes of the elements that there is code for."""


class UnfitError(Exception):
    """There is no code for a picture or a record."""


class Canvas:
    """A tensor with everything but the picture in it.

    Args:
        plan: what happens to the picture.
        record: of the input.
        dtype: of the input.

    Attributes:
        out: the tensor, without its batch.
        target: the same as whole numbers, which is what is written.
        table: what each value of a pixel becomes, by channel, likewise.
        order: the byte of a pixel that each channel is made of.
        place: of the picture in it, as the function takes it.
        function: that writes it.

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
        self.out: Array = np.empty(shape if first else (size[1], size[0], channels), dtype)
        if size != inner:
            around = behind_line(record, dtype) if line else values[:, level_of(record)]
            self.out[...] = around.reshape(-1, 1, 1) if first else around
        kind = np.dtype(f"u{dtype.itemsize}")
        self.target, self.table = self.out.reshape(-1).view(kind), values.view(kind)
        self.order = np.arange(channels, dtype=np.int32)
        if record.color == "BGR":
            self.order = self.order[::-1].copy()
        by_channel, by_row, by_column = size[0] * size[1], size[0], 1
        if not first:
            by_channel, by_row, by_column = 1, size[0] * channels, channels
        start, pixel = top * by_row + left * by_column, 1 if channels == 1 else 4
        place = start, inner[0], pixel, by_channel, by_row, by_column
        self.place = np.array(place, np.int32)
        self.function = f"down_{dtype.itemsize}"


def level_of(record: ImageInput) -> int:
    """Return what a ground consists of.

    Raises:
        UnfitError: it is no colour.
    """
    level = round(record.pad)
    if not 0 <= level <= 255:
        raise UnfitError("a ground that is no colour")
    return level


_table = lru_cache(maxsize=32)(table)
