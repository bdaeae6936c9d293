"""Which boxes are worth decoding, and which of them are one object: the part that takes time."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from edgeinfer.types import Array

_MARGIN = 0.1
"""Of a raw score: more than the exponential of any library is wrong by."""

_SATURATED = 14.0
"""Raw scores above it may have a share of 1 in float32, which is rounded."""


class Grouping(Protocol):
    """What can be done by compiled code."""

    def peaks(self, scores: Array, first: int, axis: int) -> Array:
        """Return the largest raw score of each box, NaN left out.

        Args:
            scores: (boxes, numbers) or (numbers, boxes), float32.
            first: number of the first score.
            axis: along which the numbers lie.
        """
        ...

    def groups(
        self, corners: Array, classes: Array, overlap: float, most: int, *, per_class: bool
    ) -> Array:
        """Return the number of the object of each box (n,); -1 where there are enough before it.

        A box is the same object as a better one that it overlaps by more than the share.

        Args:
            corners: (n, 4), float32, the best box first.
            classes: (n,).
            overlap: the share.
            most: objects.
            per_class: boxes of two classes are two objects.
        """
        ...


class ByNumpy:
    """The definition, in NumPy."""

    def peaks(self, scores: Array, first: int, axis: int) -> Array:
        """Return the largest raw score of each box."""
        part = scores[:, first:] if axis == 1 else scores[first:]
        return np.asarray(np.fmax.reduce(part, axis=axis))

    def groups(
        self, corners: Array, classes: Array, overlap: float, most: int, *, per_class: bool
    ) -> Array:
        """Return the number of the object of each box."""
        found = np.full(len(corners), -1, np.int64)
        rest = np.arange(len(corners))
        number = 0
        while len(rest) and number < most:
            same = overlaps(corners[rest[0]], corners[rest]) > overlap
            if per_class:
                same &= classes[rest] == classes[rest[0]]
            same[0] = True
            found[rest[same]] = number
            rest, number = rest[~same], number + 1
        return found


def overlaps(box: Array, others: Array) -> Array:
    """Return intersection over union of one box (4,) and others (n, 4)."""
    low = np.maximum(box[:2], others[:, :2])
    high = np.minimum(box[2:], others[:, 2:])
    both = (high - low).clip(0.0, None).prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + areas - both
    return np.asarray(np.divide(both, union, out=np.zeros_like(both), where=union > 0))


def least_raw(threshold: float, activation: str) -> float:
    """Return a raw score below which none reaches a threshold; -inf where that is not known."""
    if activation == "none":
        return threshold
    if activation != "sigmoid" or threshold <= 0:
        return -math.inf
    raw = math.log(threshold / (1 - threshold)) if threshold < 1 else math.inf
    return min(raw, _SATURATED) - _MARGIN


def least_above_background(threshold: float) -> float:
    """Return by how much a raw score exceeds the background's if its softmax reaches a threshold.

    The share of a class is at most that of it and the background alone.
    """
    return least_raw(threshold, "sigmoid")
