"""Memory that two processes share, and how tensors lie in it."""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

HEAD = 4096
"""Bytes before the first tensor; they hold how long the last run took."""

_ALIGN = 64
_SECONDS = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor lies.

    Attributes:
        name: its name.
        dtype: Element type of the array.
        shape: Shape of the array.
        offset: Offset of its first byte.
        text: the array itself, where its elements are objects; they cannot be shared.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    text: Array | None = field(default=None, compare=False)

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.dtype.itemsize * math.prod(self.shape)


def lay_out(arrays: Mapping[str, Array], start: int) -> tuple[list[Slot], int]:
    """Lay the arrays out from ``start`` on; return where each is, and the first free byte."""
    slots = []
    for name, array in arrays.items():
        text = array if array.dtype.hasobject else None
        slots.append(Slot(name, array.dtype, array.shape, start, text))
        if text is None:
            start += -(-array.nbytes // _ALIGN) * _ALIGN
    return slots, start


def alike(arrays: Mapping[str, Array], buffers: Mapping[str, Array]) -> bool:
    """Whether arrays fit into these buffers exactly; there are none for text."""
    if len(arrays) != len(buffers):
        return False
    for name, buffer in buffers.items():
        array = arrays.get(name)
        if array is None or array.shape != buffer.shape or array.dtype != buffer.dtype:
            return False
    return True


class SharedMemory:
    """A file without a name, mapped; both ends make it longer when they need to.

    The descriptor is the owner's to close; the memory is gone when both ends and all views are.

    Args:
        descriptor: Descriptor of the other end's, or None to make one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _anonymous() if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, HEAD)
        self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)

    def reserve(self, size: int) -> bool:
        """Make room for so many bytes; return whether earlier views are of another mapping now."""
        if size <= len(self._map):
            return False
        if os.fstat(self.descriptor).st_size < size:
            os.ftruncate(self.descriptor, max(size, 2 * len(self._map)))
        # Views keep the old mapping alive as long as they need it.
        self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return True

    def view(self, slots: Sequence[Slot]) -> dict[str, Array]:
        """Return the tensors, in place."""
        found = {}
        for slot in slots:
            if slot.text is not None:
                found[slot.name] = slot.text
                continue
            count = math.prod(slot.shape)
            flat = np.frombuffer(self._map, slot.dtype, count, slot.offset) if count else None
            empty = np.empty(slot.shape, slot.dtype)
            found[slot.name] = empty if flat is None else flat.reshape(slot.shape)
        return found

    @property
    def seconds(self) -> float:
        """How long the last run took inside the other process."""
        value: float = _SECONDS.unpack_from(self._map)[0]
        return value

    @seconds.setter
    def seconds(self, value: float) -> None:
        _SECONDS.pack_into(self._map, 0, value)


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("edgeinfer")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
