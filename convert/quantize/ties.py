"""Scales with which no sum of products lies halfway between two steps of the result.

An engine multiplies an integer sum by ``input scale * weight scale / result scale`` and rounds.
Where the product is halfway between two integers, or within the last bits of float32 of it,
engines decide differently, and in a deep net one such step moves thousands behind it. A factor
``p / q`` with an odd ``q`` leaves every product at least ``1 / 2q`` away: ``2 * sum * p``
is even and ``q * (2n + 1)`` is odd. Weights may have such scales, as they are near to any scale.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LARGEST = 4999
"""Of a ``q``: half a step of it is a few times what float32 is off by at 255."""

_BIN = 2e-4
"""Relative width of a bin of factors; one factor stands for all in it."""

_LEAST, _MOST = np.log(1.0 / LARGEST), np.log(4.0)


def off_ties(factors: Floats) -> Floats:
    """Return the nearest factors that have no ties; those that are too small stay as they are."""
    known, table = _table()
    logs = np.log(np.maximum(factors, 1e-300))
    places = np.searchsorted(known, logs)
    left, right = np.clip(places - 1, 0, len(known) - 1), np.clip(places, 0, len(known) - 1)
    nearer = np.where(logs - known[left] <= known[right] - logs, left, right)
    usable = (logs >= _LEAST) & (logs <= _MOST)
    return np.where(usable, table[nearer], factors)


@functools.cache
def _table() -> tuple[Floats, Floats]:
    """Return a factor for each bin that has one, the one with the smallest q, and its logarithm."""
    found = np.zeros(int((_MOST - _LEAST) / _BIN) + 1)
    for q in range(1, LARGEST + 1, 2):
        factors = np.arange(1, 4 * q + 1) / q
        bins = ((np.log(factors) - _LEAST) / _BIN).astype(np.int64)
        inside = (bins >= 0) & (bins < len(found))
        bins, factors = bins[inside], factors[inside]
        free = found[bins] == 0.0
        found[bins[free]] = factors[free]
    factors = np.sort(found[found > 0.0])
    return np.log(factors), factors
