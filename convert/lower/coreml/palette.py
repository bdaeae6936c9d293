"""Palettes: the few values that stand for all weights of a tensor, and which is whose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edgeinfer.errors import UsageError
from edgeinfer.types import Array

_ROUNDS = 30
_PER_ENTRY = 32
"""Bins for each entry of a palette. Wu (1991, "Optimal quantization by matrix searching"): the best
palette of sorted values is found exactly; binning them first costs a thousandth of the error."""

_FEWEST = 512

Floats = npt.NDArray[np.float64]


def palette(weights: Array, bits: int) -> tuple[Array, npt.NDArray[np.uint8]]:
    """Return ``2**bits`` values of least squared error and the index of each weight, flattened.

    There is no chance in it. Weights with no more distinct values than that keep them exactly.

    Args:
        weights: floats or integers of any shape; palette entries are of their type.
        bits: Number of bits of an index.

    Raises:
        UsageError: a weight is NaN or infinite.
    """
    if not np.isfinite(weights).all():
        raise UsageError("weights with NaN or infinities have no palette")
    flat = weights.reshape(-1)
    count = 1 << bits
    values, codes = np.unique(flat, return_inverse=True)
    if len(values) <= count:
        table = np.zeros(count, weights.dtype)
        table[: len(values)] = values
        return table, codes.astype(np.uint8)
    values, numbers = values.astype(np.float64), np.bincount(codes.reshape(-1)).astype(np.float64)
    bins = _bins(values, numbers, max(_FEWEST, _PER_ENTRY * count))
    centres = _settled(values, numbers, _best(*bins, count))
    if np.issubdtype(weights.dtype, np.integer):
        centres = np.rint(centres)
    table = np.resize(centres[-1], count)
    table[: len(centres)] = centres
    table = table.astype(weights.dtype)
    # The table's own rounding moves the borders between its entries.
    borders = (table[1:].astype(np.float64) + table[:-1].astype(np.float64)) / 2
    return table, np.searchsorted(borders, flat.astype(np.float64)).astype(np.uint8)


def _bins(values: Floats, numbers: Floats, most: int) -> tuple[Floats, Floats]:
    """Take neighbours together until few enough are left.

    Bins are fine where values are many, and never wider than a share of the whole range.
    """
    if len(values) <= most:
        return values, numbers
    ranks = np.arange(len(values)) / len(values)
    span = (values - values[0]) / (values[-1] - values[0])
    # Half of the bins follow the values, half the range.
    codes = ((ranks + span) * (most / 2)).astype(np.int64)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    held = np.add.reduceat(numbers, starts)
    return np.add.reduceat(values * numbers, starts) / held, held


def _best(values: Floats, numbers: Floats, count: int) -> Floats:
    """Return the means of the ``count`` intervals of sorted values that have the least error."""
    size = len(values)
    shifted = values - np.average(values, weights=numbers)
    sums = [np.concatenate([[0.0], np.cumsum(numbers * shifted**power)]) for power in (0, 1, 2)]

    def error(first: Array, end: Array) -> Floats:
        held, total, squares = (s[end] - s[first] for s in sums)
        return np.asarray(squares - total**2 / np.maximum(held, 1e-300))

    ends = np.arange(size + 1)
    least = error(np.zeros_like(ends), ends)
    choices = []
    for _ in range(count - 1):
        least, choice = _next(least, error, size)
        choices.append(choice)
    borders = [size]
    for choice in reversed(choices):
        borders.append(int(choice[borders[-1]]))
    edges = np.array([0, *borders[::-1]])
    held = np.diff(sums[0][edges])
    total = np.diff(np.concatenate([[0.0], np.cumsum(numbers * values)])[edges])
    return np.sort(total[held > 0] / held[held > 0])


def _next(
    least: Floats, error: Callable[[Array, Array], Floats], size: int
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Allow one interval more: for each end, where the last one begins and the error then.

    The best beginning grows with the end, so that those of half of the ends bound the others'.
    """
    choice = np.zeros(size + 2, np.int64)
    choice[size + 1] = size
    found = np.zeros(size + 1)
    step = 1 << (size + 1).bit_length()
    while step > 1:
        half = step // 2
        ends = np.arange(half, size + 1, step)
        step = half
        if not len(ends):
            continue
        first = choice[ends - half]
        last = np.minimum(choice[np.minimum(ends + half, size + 1)], ends)
        lengths = last - first + 1
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        tried = np.arange(lengths.sum()) - np.repeat(starts - first, lengths)
        whole = least[tried] + error(tried, np.repeat(ends, lengths))
        found[ends] = np.minimum.reduceat(whole, starts)
        hits = np.flatnonzero(whole == np.repeat(found[ends], lengths))
        choice[ends] = tried[hits[np.searchsorted(hits, starts)]]
    return found, choice[: size + 1]


def _settled(values: Floats, numbers: Floats, centres: Floats) -> Floats:
    """Move centres to the mean of what is nearest to them, on all values."""
    held = np.concatenate([[0.0], np.cumsum(numbers)])
    totals = np.concatenate([[0.0], np.cumsum(values * numbers)])
    for _ in range(_ROUNDS):
        edges = np.searchsorted(values, (centres[1:] + centres[:-1]) / 2)
        edges = np.concatenate([[0], edges, [len(values)]])
        number = np.diff(held[edges])
        moved = np.where(number > 0, np.diff(totals[edges]) / np.maximum(number, 1.0), centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres
