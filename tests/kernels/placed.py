"""Arrays at places that a kernel cannot hope for; imports nothing but NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def misaligned(array: Array) -> Array:
    """A copy that starts one element behind a cache line's start."""
    size = max(1, array.itemsize)
    raw = np.zeros(array.nbytes + 64 + size, np.uint8)
    start = -raw.ctypes.data % 64 + size
    found = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found
