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

from edgeinfer.records import dataclass
from edgeinfer.runtime.batches import together
from edgeinfer.runtime.rows import Run, are_apart
from edgeinfer.types import Feeds

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
    if most > 1 and not are_apart(run, rows):
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
