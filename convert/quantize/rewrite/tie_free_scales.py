"""Scales with which engines compute alike: nothing lies halfway between two steps of a result.

An engine multiplies an integer sum by ``input scale * weight scale / result scale`` and rounds.
Where the product is halfway between two integers, or within the last bits of float32 of it,
engines decide differently, and in a deep net one such step moves thousands behind it. A factor
``p / q`` with an odd ``q`` leaves every product at least ``1 / 2q`` away: ``2 * sum * p``
is even and ``q * (2n + 1)`` is odd. Weights may have such scales, as they are near to any scale.

Where floats are made of integers, engines multiply the difference of integer and zero point, or add
a shift behind the product. Both are exact if the scale has 16 binary digits.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LARGEST = 4999
"""Of a ``q``: half a step of it is a few times what float32 is off by at 255."""

SMALLEST_FACTOR = 1.0 / 16383
"""Half a step of it is what float32 is off by at 255. So small factors are one part of a ``q``: odd
numbers are dense enough there."""

_BIN = 2e-3
"""Relative width of a bin of factors; one factor stands for all in it. A thousandth of a weight is
an eighth of a step of the largest, and far less of the others."""

_SUM_Q = np.arange(511, 1024, 2)
"""What the two factors of a sum of integers may be fractions of; some engines know such factors to
21 bits only."""

_LEAST_P = 16
"""Parts that a factor of a sum has at least: below, its scale would have to move too far."""

_DIGITS = 16
"""Of a scale, binary: with eight of an integer they fill a float32."""

_LEAST, _MOST = np.log(1.0 / LARGEST), np.log(4.0)


def off_ties(factors: Floats) -> Floats:
    """Return the nearest factors that have no ties; those that are too small stay as they are."""
    factors = np.asarray(factors, np.float64)
    known, table = _table()
    logs = np.log(np.maximum(factors, 1e-300))
    positions = np.searchsorted(known, logs)
    left, right = np.clip(positions - 1, 0, len(known) - 1), np.clip(positions, 0, len(known) - 1)
    nearer = np.where(logs - known[left] <= known[right] - logs, left, right)
    usable = (logs >= _LEAST) & (logs <= _MOST)
    small = (factors < 1.0 / LARGEST) & (factors >= SMALLEST_FACTOR)
    parts = 1.0 / np.where(small, factors, 1.0)
    odd = 1.0 / (2.0 * np.rint((parts - 1.0) / 2.0) + 1.0)
    return np.where(small, odd, np.where(usable, table[nearer], factors))


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
    covered. None where an operand is too small compared with the result.

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


def exact_multiples(scale: float, shift: int = 0) -> float:
    """Return a scale just below, by 32 of its last digits at most, with exact multiples.

    It is an odd number of 16 binary digits: with few digits multiples of one scale would lie
    halfway between those of another. Of the nearest ones it is the one whose reciprocal has the
    least error in float32, so that a product with that is rounded as the division is. What needs
    eight digits was chosen so, as the scale of images is, and stays.

    Args:
        scale: to begin with.
        shift: steps from the least integer to zero, see ``_keeps``.
    """
    digits, exponent = math.frexp(scale)
    if (digits * 2**8).is_integer():
        return scale
    most = (math.floor(digits * 2**_DIGITS) - 1) | 1
    numbers = _keeps(np.arange(most, most - 32, -2, dtype=np.float64), shift)
    off = np.abs(numbers * (1.0 / numbers).astype(np.float32).astype(np.float64) - 1.0)
    return math.ldexp(float(numbers[off.argmin()]), exponent - _DIGITS)


def _keeps(numbers: Floats, shift: int) -> Floats:
    """Return the numbers, all if none is one, with which OpenVINO knows where zero is.

    It takes the range in float32, and of it the shift in steps; that is to be a whole number, for
    all integers are made floats with it.
    """
    ends = np.multiply(numbers, shift).astype(np.float32) * np.float32(255.0)
    whole = ends / (numbers * 255.0).astype(np.float32) == np.float32(shift)
    return numbers[whole] if whole.any() else numbers


def curve_off_ties(values: npt.NDArray[np.floating[Any]], scale: float, shift: int = 0) -> float:
    """Return a scale, larger by a five-hundredth at most, by which no value is near to halfway.

    Args:
        values: all that are to be rounded.
        scale: with exact multiples, as the result is.
        shift: steps from the least integer to zero, see ``_keeps``.
    """
    digits, exponent = math.frexp(scale)
    least = math.ceil(digits * 2**_DIGITS)
    numbers = np.arange(least, least + max(1, least // 500) + 1, dtype=np.float64)
    if least < 2**_DIGITS:
        numbers = numbers[numbers < 2**_DIGITS]
    numbers = _keeps(numbers, shift)
    scales = np.ldexp(numbers, exponent - _DIGITS)
    steps = values.astype(np.float64)[:, None] / scales
    away = np.abs(steps - np.floor(steps) - 0.5).min(axis=0)
    return float(scales[away.argmax()])
