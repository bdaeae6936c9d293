"""Boxes behind a detector by compiled code, where the bundle has some for this machine."""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.tvm.plain_functions import Functions
from edgeinfer.decode.grouping import ByNumpy, Grouping
from edgeinfer.errors import EdgeInferError
from edgeinfer.types import Array

_LANES = 8
_FREE = -1


class GroupingByCode:
    """Compiled code; what it has no function for is left to NumPy.

    Args:
        functions: Functions of the library.
    """

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._plain = ByNumpy()

    def peaks(self, scores: Array, first: int, axis: int) -> Array:
        """See ``decode.grouping.Grouping``."""
        if scores.dtype != np.float32 or not scores.flags.c_contiguous or not scores.size:
            return self._plain.peaks(scores, first, axis)
        out = np.empty(scores.shape[1 - axis], np.float32)
        name = "peaks_across" if axis == 1 else "peaks_down"
        self._functions.call(name, (scores, np.array([first], np.int32), out))
        return out

    def groups(
        self, corners: Array, classes: Array, overlap: float, most: int, *, per_class: bool
    ) -> Array:
        """See ``decode.grouping.Grouping``."""
        if corners.dtype != np.float32 or not len(corners):
            return self._plain.groups(corners, classes, overlap, most, per_class=per_class)
        count = len(corners)
        padded = -(-count // _LANES) * _LANES
        sides = np.zeros((4, padded), np.float32)
        sides[:, :count] = corners.T
        areas = np.zeros(padded, np.float32)
        with np.errstate(over="ignore"):
            areas[:count] = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
        kinds = np.zeros(padded, np.int32)
        kinds[:count] = classes
        out = np.zeros(padded, np.int32)
        out[:count] = _FREE
        limit = np.array([overlap], np.float32)
        asked = np.array([most, per_class], np.int32)
        self._functions.call("groups", (sides, areas, kinds, limit, asked, out))
        return out[:count]


def grouping(functions: Functions | None, without: str) -> tuple[Grouping, str]:
    """Choose what finds and groups boxes.

    Args:
        functions: Functions of the bundle for this CPU; None if it has none that can be used.
        without: why.

    Returns:
        It, and a line about it for people.
    """
    if functions is None:
        return ByNumpy(), f"boxes by NumPy: {without}"
    made = GroupingByCode(functions)
    try:
        same = _is_same(made)
    except EdgeInferError as e:
        return ByNumpy(), f"boxes by NumPy: the bundle's code cannot be used: {e}"
    if not same:
        return ByNumpy(), "boxes by NumPy: the bundle's code gives other boxes here"
    return made, f"boxes by compiled code for {functions.machine}"


def _is_same(made: GroupingByCode) -> bool:
    """Hold the code against NumPy."""
    rng, plain = np.random.default_rng(0), ByNumpy()
    for count, most, per_class in ((1, 5, True), (37, 100, True), (90, 7, False)):
        corners = rng.uniform(0, 60, (count, 4)).astype(np.float32)
        corners[:, 2:] += corners[:, :2] + 1
        # Halves of boxes and whole ones again, which lie at a limit.
        corners[1::3] = corners[::3][: len(corners[1::3])]
        corners[2::3, 2] = (corners[2::3, 0] + corners[2::3, 2]) / 2
        classes = rng.integers(0, 3, count)
        for overlap in (0.3, 0.5):
            given = corners, classes, overlap, most
            found = made.groups(*given, per_class=per_class)
            if not np.array_equal(found, plain.groups(*given, per_class=per_class)):
                return False
    for shape in ((1, 5), (40, 85), (84, 70)):
        scores = rng.normal(0, 3, shape).astype(np.float32)
        for axis in (0, 1):
            first = min(4, shape[axis] - 1)
            found = made.peaks(scores, first, axis)
            if not np.array_equal(found, plain.peaks(scores, first, axis)):
                return False
    return True
