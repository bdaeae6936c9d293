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

_BIN = 2e-3
"""Relative width of a bin of factors; one factor stands for all in it. A thousandth of a weight is
an eighth of a step of the largest, and far less of the others."""

_SUM_Q = np.arange(511, 1024, 2)
"""What the two factors of a sum of integers may be fractions of; some engines know such factors to
21 bits only."""

_LEAST_P = 16
"""Parts that a factor of a sum has at least: below, its scale would have to move too far."""

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


def sum_off_ties(first: float, other: float, result: float) -> tuple[float, float] | None:
    """Return scales of a sum's other operand and of its result by which no sum is halfway.

    Both factors become fractions with the same odd ``q``. Scales only grow, so that ranges stay
    covered. None where an operand is too small beside the result.

    Args:
        first: scale of the operand that stays as it is.
        other: scale of the other one.
        result: scale of the result.
    """
    p = np.floor(first * _SUM_Q / result + 1e-9)
    usable = p >= _LEAST_P
    results = first * _SUM_Q / np.where(usable, p, np.nan)
    others_p = np.ceil(other * _SUM_Q / results - 1e-9)
    usable &= others_p >= _LEAST_P
    if not usable.any():
        return None
    others = others_p * results / _SUM_Q
    growth = np.where(usable, np.maximum(results / result, others / other), np.inf)
    best = int(growth.argmin())
    return float(others[best]), float(results[best])
