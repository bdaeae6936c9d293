"""Whether the rows of a batch are apart: none changes what another gives.

A model may mix the rows of its batch: a mean over the first axis, a scale taken from all values. In
a batch of several callers' requests each would then get numbers that depend on what others ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.errors import EdgeInferError
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.types import Array, Feeds

Run = Callable[[Feeds], Outputs]

RELATIVE, ABSOLUTE = 1e-3, 1e-5
"""Difference of a row in a batch from the row alone: kernels of other shapes add in other orders.
Rows that are mixed differ by orders more."""

VECTORS = 4
"""Test vectors of a bundle with which a model is run before others' requests are."""

_ROWS = 4
_QUIET = (3, -7)
"""What the quieter partners of a row are divided by. Level, spread, largest and smallest value of
a batch are then those of the louder row, and no value leaves the range of the row's own."""


def rows_of(vectors: Sequence[Feeds]) -> list[Feeds]:
    """Cut test vectors into single rows, none like another; where there is one, make a second.

    Returns:
        Requests with a first axis of 1; none where a vector has no first axis.
    """
    rows: list[Feeds] = []
    for feeds in vectors:
        sizes = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
        count = sizes.pop() if len(sizes) == 1 else 0
        for i in range(min(count, _ROWS)):
            row = {name: array[i : i + 1] for name, array in feeds.items()}
            if not any(_are_same(row, other) for other in rows):
                rows.append(row)
    if len(rows) == 1:
        # The same values elsewhere are as fit as they were.
        rows.append({n: np.roll(a.ravel(), 1).reshape(a.shape) for n, a in rows[0].items()})
    shapes = {n: a.shape for n, a in rows[0].items()} if rows else {}
    return [row for row in rows if {n: a.shape for n, a in row.items()} == shapes]


def are_apart(run: Run, rows: Sequence[Feeds]) -> bool:
    """Run rows with others, louder, quieter and of another sign, and compare with each alone.

    Args:
        run: The run function of an engine.
        rows: as ``rows_of`` gives them.
    """
    first, last = rows[0], rows[-1]
    if not _are_alone(run, [first, last]):
        return False
    for kinds in ("fiu", "f"):
        # The louder one comes first in one batch and last in the other.
        pairs = [
            [first, _quieter(first, _QUIET[0], kinds)],
            [_quieter(last, _QUIET[1], kinds), last],
        ]
        try:
            return all(_are_alone(run, pair) for pair in pairs)
        except EdgeInferError:
            # A length of 0 or a bound of the model: what is not run says nothing.
            continue
    return not _are_same(first, last)


def _quieter(row: Feeds, divisor: int, kinds: str) -> Feeds:
    return {name: _divided(a, divisor) if a.dtype.kind in kinds else a for name, a in row.items()}


def _divided(array: Array, divisor: int) -> Array:
    if array.dtype.kind == "f":
        return np.asarray(array / divisor, array.dtype)
    # Towards zero: where a value may stand, a smaller one of its sign mostly may as well.
    return np.asarray(np.sign(array) * (np.abs(array) // abs(divisor)), array.dtype)


def _are_same(row: Feeds, other: Feeds) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in row.items())


def _are_alone(run: Run, pair: Sequence[Feeds]) -> bool:
    """Whether each row in a batch is what it is alone."""
    names = pair[0].keys()
    both = run({name: np.concatenate([row[name] for row in pair]) for name in names})
    for i, feeds in enumerate(pair):
        for name, array in run(feeds).items():
            row = np.asarray(both[name])[i : i + 1]
            if row.shape != array.shape:
                return False
            if array.dtype.kind != "f":
                if not np.array_equal(row, array):
                    return False
                continue
            near = ABSOLUTE * _largest(array)
            if not np.allclose(row, array, RELATIVE, near, equal_nan=True):
                return False
    return True


def _largest(array: Array) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))
