"""What rounding alone decides: positions of scores that are equal but for their last bits.

A selection (the best so many, the largest, boxes by score) has no right order where scores are as
near as the rounding of what they are computed from. Engines add up in orders of their own, so each
gives another one, and all are right. Which elements of an answer hang on it is found by asking the
oracle again with inputs that differ by a few last bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.metrics import Budget, OutputMetrics, budget_for, check, compare
from edgeinfer.types import Array, Feeds

if TYPE_CHECKING:
    from edgeinfer.convert.verify.answers import Answer

DRAWS = 4
"""Perturbed inputs that are tried for each vector."""

MORE_DRAWS = 12
"""Further ones where the first moved anything: two scores that are equal change places in half of
the draws, and where there is one such pair there are often many."""

NOISE = 2.0**-21
"""Of an element: eight times a rounding, as sums inside a model are rounded more than once."""

MOST = 0.5
"""Share of an output's elements above which nothing of it is judged."""


def nearly(feeds: Feeds, seed: int) -> dict[str, Array]:
    """Return inputs that differ by a few last bits; integers stay."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, given in feeds.items():
        array = np.asarray(given)
        if array.dtype.kind == "f":
            step = max(NOISE, 2 * float(np.finfo(array.dtype).eps))
            noise = 1.0 + step * rng.uniform(-1, 1, array.shape)
            array = (array * noise).astype(array.dtype)
        found[name] = array
    return found


def undecided(answer: dict[str, Array], draws: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Return for each output which elements rounding alone moves; outputs without any are left out.

    Args:
        answer: Answer of the oracle.
        draws: its answers to inputs that hardly differ.
    """
    found = {}
    for name, value in answer.items():
        right = np.asarray(value) if not isinstance(value, list) else None
        if right is None or right.dtype.kind not in "iufb":
            continue
        mask = np.zeros(right.shape, bool)
        for draw in draws:
            other = np.asarray(draw[name])
            if other.shape != right.shape:
                mask[...] = True
                break
            mask |= _moved(right, other)
        if mask.any():
            found[name] = mask
    return found


def moved_by(answer: dict[str, Array], draws: Iterator[dict[str, Array] | str]) -> dict[str, Array]:
    """Return which elements draws move, as ``undecided`` does; ask for more where any did.

    Args:
        answer: Answer of the oracle.
        draws: its answers to scores that hardly differ, or why there is none; without an end.
    """
    held: list[dict[str, Array]] = []
    found: dict[str, Array] = {}
    for count in (DRAWS, MORE_DRAWS):
        held += [d for d in islice(draws, count) if not isinstance(d, str)]
        found = undecided(answer, held)
        if not found:
            break
    return found


def _moved(right: Array, other: Array) -> Array:
    if right.dtype.kind != "f":
        return np.asarray(right != other)
    wide, near = right.astype(np.float64), other.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    scale = float(np.abs(finite).max(initial=0.0))
    same = (wide == near) | (np.isnan(wide) & np.isnan(near))
    with np.errstate(invalid="ignore"):
        moved = np.abs(wide - near) > 0.5 * budget_for("fp32").max_rel * scale
    return np.asarray(~same & (moved | (np.isfinite(wide) != np.isfinite(near))))


def compared(
    name: str, right: Answer, found: Mapping[str, Array], budget: Budget
) -> OutputMetrics | None:
    """Measure an output in what rounding alone does not decide; None where that is too little.

    What moving the scores themselves changes is left out only where that mends it, and from then
    on: an engine has shown that it is so.
    """
    if name not in found:
        return OutputMetrics(problem="the artifact does not give this output")
    mask = right.undecided.get(name)
    expected = either(right.outputs[name], right.overflown.get(name), found[name])
    metrics = _measured(expected, found[name], mask, budget)
    if metrics is None or not check(metrics, budget) or name not in right.shaky:
        return metrics
    wider = right.shaky[name] if mask is None else mask | right.shaky[name]
    fewer = _measured(expected, found[name], wider, budget)
    if fewer is not None and check(fewer, budget):
        return metrics
    right.undecided[name] = wider
    return fewer


def either(right: Array, overflown: Array | None, found: Array) -> Array:
    """Return what is expected of an answer that may be another where float32 is left inside.

    Args:
        right: what the model's own types give.
        overflown: what float64 gives where those overflow, NaN elsewhere; None for nowhere.
        found: the answer.
    """
    if overflown is None or np.shape(found) != overflown.shape:
        return right
    return np.where(np.isfinite(found) & ~np.isnan(overflown), overflown, right)


def _measured(
    right: Array, found: Array, mask: Array | None, budget: Budget
) -> OutputMetrics | None:
    parts = judged_part(right, found, mask)
    return None if parts is None else compare(*parts, channel_floor=budget.channel_floor)


def judged_part(right: Array, found: Array, mask: Array | None) -> tuple[Array, Array] | None:
    """Return an expected and an actual output without what rounding decides; None for nothing left.

    Args:
        right: expected.
        found: actual.
        mask: elements that rounding alone moves; None for none.
    """
    if mask is None or not mask.any():
        return right, found
    if float(mask.mean()) > MOST:
        return None
    if np.shape(found) != np.shape(right):
        return right, found
    return right, np.where(mask, right, found).astype(np.asarray(found).dtype)
