"""Rotated boxes: their corners, and which of them are one object."""

from __future__ import annotations

import numpy as np

from edgeinfer.types import Array

_LEAST = 1e-7
"""Keeps quotients of boxes without an area finite."""

_MOST = 1 << 18
"""Pairs of boxes that are looked at together: a dozen arrays of that many numbers in float64."""


def cornered(corners: Array, angles: Array) -> Array:
    """Return the corners of boxes (n, 4, 2), clockwise from the top left one of the upright box.

    Args:
        corners: (n, 4): the boxes before they are rotated.
        angles: (n,): radians, clockwise.
    """
    middle = (corners[:, :2] + corners[:, 2:]) / 2
    half = (corners[:, 2:] - corners[:, :2]) / 2
    along = half[:, :1] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    across = half[:, 1:] * np.stack([-np.sin(angles), np.cos(angles)], axis=1)
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    return np.stack([middle + x * along + y * across for x, y in signs], axis=1)


def thinned(corners: Array, angles: Array, classes: Array, overlap: float) -> Array:
    """Return the boxes that no better one of their class overlaps by more than the share.

    Args:
        corners: (n, 4): the boxes before they are rotated, the best first.
        angles: (n,): radians.
        classes: (n,).
        overlap: Largest overlap, 0..1, of two boxes that are both kept.
    """
    kept = []
    count, step = len(corners), max(1, _MOST // max(len(corners), 1))
    forms = _distributions(np.asarray(corners, np.float64), np.asarray(angles, np.float64))
    for start in range(0, count, step):
        rows = np.arange(start, min(start + step, count))
        same = (classes[rows, np.newaxis] == classes) & (rows[:, np.newaxis] > np.arange(count))
        alike = _likeness(forms[rows, np.newaxis], forms[np.newaxis]) > overlap
        kept.append(rows[~(alike & same).any(axis=1)])
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)


def _distributions(corners: Array, angles: Array) -> Array:
    """Return middle, variances and covariance of each box: (n, 5)."""
    middle = (corners[:, :2] + corners[:, 2:]) / 2
    wide, high = ((corners[:, 2:] - corners[:, :2]) ** 2 / 12).T
    cos, sin = np.cos(angles), np.sin(angles)
    x, y = wide * cos**2 + high * sin**2, wide * sin**2 + high * cos**2
    return np.stack([*middle.T, x, y, (wide - high) * cos * sin], axis=1)


def _likeness(one: Array, other: Array) -> Array:
    """Return how far pairs of normal distributions overlap: 1 less their Hellinger distance.

    Source: Llerena et al. 2021, eq. 9 to 12.
    """
    x, y, a, b, c = (one[..., i] + (-1 if i < 2 else 1) * other[..., i] for i in range(5))
    both = a * b - c**2
    apart = (a * y**2 + b * x**2 - 2 * c * x * y) / (4 * (both + _LEAST))
    sizes = np.sqrt(_area(one) * _area(other))
    distance = apart + np.log(both / (4 * sizes + _LEAST) + _LEAST) / 2
    return np.asarray(1 - np.sqrt(1 - np.exp(-distance.clip(_LEAST, 100.0)) + _LEAST))


def _area(form: Array) -> Array:
    return np.asarray((form[..., 2] * form[..., 3] - form[..., 4] ** 2).clip(0.0, None))
