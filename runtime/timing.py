"""Timing several calls in turns, so that a change of the machine's load hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from edgeinfer.records import dataclass

K = TypeVar("K")

MIN_ROUNDS = 5
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """What a call took, in milliseconds.

    Attributes:
        median_ms: half of the runs were faster.
        p95_ms: 95 of 100 runs were faster.
        min_ms: the fastest run.
        spread: distance between the quartiles, as a share of the median.
        runs: how many were timed.
    """

    median_ms: float
    p95_ms: float
    min_ms: float
    spread: float
    runs: int


def interleave(
    calls: Mapping[K, Callable[[], object]],
    *,
    runs: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[float], None] | None = None,
) -> dict[K, Timing]:
    """Time the calls A B C, C B A, A B C, ... after a few untimed runs of each.

    Args:
        calls: what to time.
        runs: Runs of each, at most.
        seconds: for all of it, at most, once each had its first few runs.
        clock: gives seconds.
        progress: called with the share that is done.
    """
    spent: dict[K, list[float]] = {key: [] for key in calls}
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    order = list(calls.items())
    start = clock()
    for number in range(runs):
        for key, call in order:
            before = clock()
            call()
            spent[key].append(clock() - before)
        order.reverse()
        elapsed = clock() - start
        if progress is not None:
            progress(max((number + 1) / runs, min(1.0, elapsed / seconds)))
        if elapsed > seconds and number + 1 >= MIN_ROUNDS:
            break
    return {key: summary(times) for key, times in spent.items()}


def summary(times: list[float]) -> Timing:
    """Summarise times in seconds; at least one."""
    ordered = sorted(times)
    median = statistics.median(ordered)
    low, _, high = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else (median,) * 3
    return Timing(
        median_ms=median * 1e3,
        p95_ms=ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] * 1e3,
        min_ms=ordered[0] * 1e3,
        spread=(high - low) / median if median > 0 else 0.0,
        runs=len(ordered),
    )
