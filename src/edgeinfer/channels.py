"""Channels held against what they themselves vary by, over all vectors together.

A score next to coordinates in pixels is lost without a trace in any figure of the whole output:
with one scale for both it takes one value. A channel may have one element in a run, as in an output
``[1, 5]``; what it varies by shows over several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edgeinfer.metrics import Budget
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_MOST = 256
"""Sizes up to which an axis is one of channels, each with a meaning and a magnitude of its own."""

_ENOUGH = 16
"""Elements that tell what a channel varies by."""

_FEW_CHANNELS, _FEW = 16, 4
"""Among so few channels none is nearly constant by chance, even with this many elements."""

Floats = npt.NDArray[np.float64]
Of = TypeVar("Of", bound=Array)


@dataclass(frozen=True, slots=True)
class Lost:
    """The channel of which least is left.

    Attributes:
        axis: Axis of the output.
        index: along it.
        kept_db: what it varies by, to its error, in dB.
        error: the largest.
        span: distance of its lowest and highest value.
    """

    axis: int
    index: int
    kept_db: float
    error: float
    span: float


def worst_channel(
    expected: Sequence[Array], actual: Sequence[Array], budget: Budget
) -> Lost | None:
    """Return the channel that kept least of what it varies by; None where none can be judged.

    Args:
        expected: one output of several runs.
        actual: the same as it came out.
        budget: errors up to its floor are no loss; of an output that reaches beyond one the floor
            of a channel goes by the channel's own values, as its channels may have other units.
    """
    pairs = [
        (np.asarray(e, np.float64), np.asarray(a, np.float64))
        for e, a in zip(expected, actual, strict=True)
        if _comparable(e, a)
    ]
    ranks = {e.ndim for e, _ in pairs}
    if not pairs or len(ranks) != 1 or ranks == {0}:
        return None
    runs = of_one_shape(pairs)
    found: list[Lost] = []
    for axis in range(ranks.pop()):
        sizes = {e.shape[1 + axis] for e, _ in runs}
        if len(sizes) == 1 and max(sizes) <= _MOST:
            found += _along(runs, axis, budget)
    return min(found, key=lambda lost: lost.kept_db, default=None)


def of_one_shape(pairs: Iterable[tuple[Of, Of]]) -> list[tuple[Of, Of]]:
    """Return the runs of each shape as one array, what was expected and what came out."""
    shapes: dict[tuple[int, ...], list[tuple[Of, Of]]] = {}
    for pair in pairs:
        shapes.setdefault(pair[0].shape, []).append(pair)
    return [
        (np.stack([e for e, _ in runs]), np.stack([a for _, a in runs]))  # type: ignore[misc]
        for runs in shapes.values()
    ]


def breaches(expected: Sequence[Array], actual: Sequence[Array], budget: Budget) -> list[str]:
    """Say which channel lost too much; empty where none did."""
    if math.isinf(budget.spread_db):
        return []
    lost = worst_channel(expected, actual, budget)
    if lost is None or lost.kept_db >= budget.spread_db:
        return []
    return [
        f"channel {lost.index} of axis {lost.axis} keeps {lost.kept_db:.1f} dB of what it varies "
        f"by, at least {budget.spread_db:.1f} dB required: it spans {lost.span:.3g} and is up to "
        f"{lost.error:.3g} off"
    ]


def _comparable(expected: object, actual: object) -> bool:
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return False
    if expected.dtype.kind != "f" or expected.shape != actual.shape or not expected.size:
        return False
    return bool(np.isfinite(expected).all() and np.isfinite(actual).all())


def _along(runs: Sequence[tuple[Floats, Floats]], axis: int, budget: Budget) -> list[Lost]:
    right = np.concatenate([_rows(e, axis) for e, _ in runs], axis=1)
    error = np.concatenate([_rows(a - e, axis) for e, a in runs], axis=1)
    channels, count = right.shape
    if count < (_ENOUGH if channels > _FEW_CHANNELS else _FEW):
        return []
    largest = np.abs(right).max(axis=1)
    overall = float(largest.max(initial=0.0))
    # Where nothing reaches beyond one, all channels have one unit: shares, scores.
    own = largest if overall > 1.0 else np.full(channels, overall)
    floor = budget.channel_floor * np.minimum(1.0, own / min(1.0, overall or 1.0))
    # What is large is rounded in proportion, whatever little it varies by.
    floor = np.maximum(floor, budget.max_abs * own)
    spread = np.sum(np.square(right - right.mean(axis=1, keepdims=True)), axis=1)
    noise, peak = np.sum(np.square(error), axis=1), np.abs(error).max(axis=1)
    heard = (peak > floor) & (spread > 0.0)
    return [
        Lost(
            axis,
            int(i),
            10.0 * math.log10(float(spread[i] / noise[i])),
            float(peak[i]),
            float(np.ptp(right[i])),
        )
        for i in np.flatnonzero(heard)
    ]


def _rows(array: Floats, axis: int) -> Floats:
    """Return a row a channel; the first axis is that of the runs."""
    return np.moveaxis(array, 1 + axis, 0).reshape(array.shape[1 + axis], -1)
