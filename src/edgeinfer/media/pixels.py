"""The bytes of an opened image, where they lie."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from edgeinfer.types import Array

_CHANNELS = {"RGB": 4, "L": 1}
"""Bytes of a pixel in Pillow's memory; the fourth has no meaning."""

_NAME = b"arrow_array"


class _ArrowArray(ctypes.Structure):
    """Of the Arrow C data interface, as far as it is read."""


_ArrowArray._fields_ = (
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
)


class _Held:
    """Memory of a capsule, which lives as long as an array over it does."""

    def __init__(self, capsule: Any, address: int, shape: tuple[int, ...]) -> None:
        self._capsule = capsule
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": shape,
            "data": (address, True),
        }


def pixels_of(picture: Any) -> Array:
    """Return the bytes of an image (height, width, 1, 3 or 4), read-only or to be read only.

    An image of Pillow's is not copied where its rows lie one behind the other, which they do up to
    16 MB, and where Pillow gives them out (11.2 and later).

    Args:
        picture: Image of ``image.open_image``, or an array (height, width, 3) of uint8.
    """
    if isinstance(picture, np.ndarray):
        return np.ascontiguousarray(picture)
    channels = _CHANNELS[picture.mode]
    shape = (picture.height, picture.width, channels)
    found = _arrow(picture, shape)
    if found is not None:
        return found
    copied = np.asarray(picture)
    return copied.reshape(*copied.shape[:2], -1)


def _arrow(picture: Any, shape: tuple[int, ...]) -> Array | None:
    export = getattr(picture, "__arrow_c_array__", None)
    if export is None:
        return None
    picture.load()
    try:
        _, capsule = export()
    except ValueError:
        # Several blocks of memory.
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    array = _ArrowArray.from_address(pointer(capsule, _NAME))
    if array.n_children == 1:
        array = array.children[0].contents
    count = int(np.prod(shape))
    if array.length != count or array.offset or array.n_buffers != 2:
        return None
    return np.asarray(_Held(capsule, array.buffers[1], shape))
