"""How many requests of a model one run may hold: what is measured, and only where rows are apart.

Many real models get slower per request in a batch, because their values leave the cache, and a
model may mix the rows of its batch. So both are tried with the bundle's test vectors before a model
is ready, and a model that fails either runs one request at a time.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.runtime.batches import together
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.types import Array, Feeds

Run = Callable[[Feeds], Outputs]

NEAR = 0.97
"""Of two sizes whose times are so near the smaller is taken."""

GAIN = 0.9
"""Of a request's time alone that a batch must stay below: to wait for others, and to keep what they
sent, costs something as well."""

LONGEST_S = 0.25
"""A run that takes longer keeps the others waiting; no larger ones are tried."""

STEADY, BUDGET_S = 6, 1.0
"""Sizes are run in turns, so that other work of the machine meets all alike, until so many rounds
found none of them faster; the fastest counts. Other work disturbs long runs more often than short
ones."""

_TRIES, _BUSY, _FINE_S = 8, 0.8, 1e-6

RELATIVE, ABSOLUTE = 1e-3, 1e-5
"""Difference of a row in a batch from the row alone: kernels of other shapes add in other orders.
Rows that are mixed differ by orders more."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """What runs of several requests cost.

    Attributes:
        seconds: Duration in seconds of a run, by the requests it holds.
        reason: why batches are not larger.
    """

    seconds: Mapping[int, float]
    reason: str

    @property
    def size(self) -> int:
        """Requests of a run from which more are no gain."""
        return max(self.seconds, default=1)


def measure(
    run: Run, rows: Sequence[Feeds], most: int, clock: Callable[[], float] | None = None
) -> CostTable:
    """Try batches of 1, 2, 4, ... requests while they gain.

    Args:
        run: The run function of the engine.
        rows: requests of one row each, none like the other.
        most: requests of a run.
        clock: in seconds; None takes ``clock_for``.
    """
    if not rows:
        return CostTable({}, "the bundle has no test vectors to measure with")
    clock = clock or clock_for(partial(run, rows[0]))
    sizes = [1]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    calls = {n: [rows[i % len(rows)] for i in range(n)] for n in sizes}
    reason = ""
    if most > 1 and not _apart(run(_joined(calls[2])), [run(calls[2][0]), run(calls[2][1])]):
        calls, reason = {1: calls[1]}, "a row's result depends on the others of its batch"
    seconds = _times(run, calls, clock)
    size = _best(seconds)
    shares = ", ".join(f"{n}: {s / n / seconds[1]:.2f}" for n, s in seconds.items())
    kept = {n: s for n, s in seconds.items() if n <= size}
    return CostTable(kept, reason or f"time per request by size, of one alone: {shares}")


def clock_for(work: Callable[[], object]) -> Callable[[], float]:
    """Return the clock of this thread's processor time where the work is done by it, else of time.

    Other work of the machine disturbs only the time that passes. Who waits for another thread, a
    process or a device gives the processor up, which the system counts.
    """
    if time.get_clock_info("thread_time").resolution > _FINE_S:
        return time.perf_counter
    own = 0
    for _ in range(_TRIES):
        start, busy, waits = time.perf_counter(), time.thread_time(), _waits()
        work()
        busy = time.thread_time() - busy
        if waits is not None:
            own += 2 * (_waits() == waits)
        elif busy >= _BUSY * (time.perf_counter() - start):
            own = _TRIES
        if own >= _TRIES:
            return time.thread_time
    return time.perf_counter


def _waits() -> int | None:
    """Return how often this thread gave the processor up; None where the system does not say."""
    if sys.platform != "linux":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _times(
    run: Run, calls: Mapping[int, Sequence[Feeds]], clock: Callable[[], float]
) -> dict[int, float]:
    """Return the shortest time of each size, with what it takes to join and to part the calls."""
    found: dict[int, float] = {}
    begin, steady = clock(), 0
    while steady < STEADY and clock() - begin <= BUDGET_S:
        before = dict(found)
        for size, several in calls.items():
            start = clock()
            together(run, several)
            spent = clock() - start
            found[size] = min(spent, found.get(size, math.inf))
            if found[size] > LONGEST_S:
                break
        is_steady = all(s > NEAR * before.get(size, math.inf) for size, s in found.items())
        steady = steady + 1 if is_steady else 0
    return found


def _best(seconds: Mapping[int, float]) -> int:
    """Return the smallest size whose time per request is near the least; 1 where none gains."""
    each = {size: spent / size for size, spent in seconds.items()}
    least = min(each.values())
    best = next(size for size, spent in each.items() if spent * NEAR <= least)
    return best if each[best] <= GAIN * each[1] else 1


def rows_of(vectors: Sequence[Feeds]) -> list[Feeds]:
    """Cut test vectors into single rows, with two that differ where there is only one.

    Returns:
        Requests with a first axis of 1; none where a vector has no first axis.
    """
    rows: list[Feeds] = []
    for feeds in vectors:
        sizes = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
        count = sizes.pop() if len(sizes) == 1 else 0
        rows += [{n: a[i : i + 1] for n, a in feeds.items()} for i in range(min(count, 4))]
    if len(rows) == 1:
        # The same values elsewhere are as fit as they were.
        rows.append({n: np.roll(a.ravel(), 1).reshape(a.shape) for n, a in rows[0].items()})
    shapes = {n: a.shape for n, a in rows[0].items()} if rows else {}
    return [row for row in rows if {n: a.shape for n, a in row.items()} == shapes]


def _joined(rows: Sequence[Feeds]) -> Feeds:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _apart(together: Mapping[str, Array], alone: Sequence[Mapping[str, Array]]) -> bool:
    """Whether each row in a batch is what it is alone."""
    for i, one in enumerate(alone):
        for name, array in one.items():
            row = np.asarray(together[name])[i : i + 1]
            if row.shape != array.shape:
                return False
            if array.dtype.kind != "f":
                if not np.array_equal(row, array):
                    return False
                continue
            near = np.allclose(row, array, RELATIVE, ABSOLUTE * _largest(array), equal_nan=True)
            if not near:
                return False
    return True


def _largest(array: Array) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))
