"""Measuring loaded candidates against each other on the bundled vectors."""

from __future__ import annotations

import math
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

from edgeinfer.backends.base import Executable
from edgeinfer.bundle.manifest import VectorRecord
from edgeinfer.errors import BackendError, InputError
from edgeinfer.metrics import Budget, check, compare
from edgeinfer.runtime.select import Measured
from edgeinfer.types import Array

K = TypeVar("K")
Vector = tuple[dict[str, Array], dict[str, Array]]

MAX_RUNS = 200
MIN_RUNS = 3
_HOPELESS = 4.0
"""Times the fastest first run above which a candidate is not timed any further."""


def accuracy_problem(
    executable: Executable,
    vectors: Sequence[Vector],
    budget: Budget,
    seconds: float = math.inf,
    records: Sequence[VectorRecord] = (),
) -> str:
    """Say what leaves the budget, with the figure; empty when nothing does.

    Args:
        executable: loaded.
        vectors: run in turn.
        budget: of the variant's precision.
        seconds: after which no further vector is begun; the first one always is.
        records: of the vectors, which may widen the budget.
    """
    deadline = time.perf_counter() + seconds
    for number, (feeds, expected) in enumerate(vectors):
        if number and time.perf_counter() > deadline:
            break
        try:
            actual = executable.run(feeds)
        except (BackendError, InputError) as e:
            return str(e)
        for name, want in expected.items():
            if name not in actual:
                return f"output {name!r} is missing"
            allowed = records[number].budget(budget, name) if records else budget
            breaches = check(compare(want, actual[name]), allowed)
            if breaches:
                return f"wrong numbers in vector {number}, output {name!r}: {breaches[0]}"
    return ""


def measure(
    executables: Mapping[K, Executable],
    vectors: Sequence[Vector],
    *,
    seconds: float = 2.0,
    callers: int = 0,
) -> dict[K, Measured]:
    """Time candidates in turns, A B A B, so that a change of the machine's load hits all alike.

    Args:
        executables: loaded and known to give right numbers.
        vectors: run in turn; at least one.
        seconds: what the whole measurement may take, apart from the first run of each.
        callers: threads for runs a second; 0 derives the figure from the latency.
    """
    wall: dict[K, list[float]] = {key: [] for key in executables}
    cpu: dict[K, float] = dict.fromkeys(executables, 0.0)
    failed: dict[K, str] = {}
    deadline = time.perf_counter() + seconds
    feeds = cycle([feeds for feeds, _ in vectors])
    for round_number in range(MAX_RUNS):
        current = next(feeds)
        alive = [key for key in executables if key not in failed]
        if round_number == 1:
            first = {key: wall[key][0] for key in alive}
            limit = _HOPELESS * min(first.values(), default=0.0)
        for key in alive:
            if round_number > 1 and wall[key][0] > limit and len(wall[key]) >= MIN_RUNS:
                continue
            try:
                spent, busy = _timed(executables[key], current)
            except (BackendError, InputError) as e:
                failed[key] = str(e)
                continue
            wall[key].append(spent)
            cpu[key] += busy
        if round_number >= MIN_RUNS - 1 and time.perf_counter() > deadline:
            break
    results = {}
    for key, executable in executables.items():
        if key in failed:
            results[key] = Measured(problem=failed[key])
            continue
        results[key] = _summary(wall[key], cpu[key])
        if callers:
            try:
                rate = _rate(executable, vectors, callers, seconds / 4)
            except (BackendError, InputError) as e:
                results[key] = Measured(problem=str(e))
                continue
            results[key] = replace(results[key], per_second=rate)
    return results


def resident_mb() -> float:
    """Return this process's resident memory; 0 where the system does not say cheaply."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        import resource

        return pages * resource.getpagesize() / 2**20
    return 0.0


def _timed(executable: Executable, feeds: Mapping[str, Array]) -> tuple[float, float]:
    busy, start = time.process_time(), time.perf_counter()
    executable.run(feeds)
    return time.perf_counter() - start, time.process_time() - busy


def _summary(wall: Sequence[float], cpu: float) -> Measured:
    ordered = sorted(wall)
    median = statistics.median(ordered)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    rate = 1.0 / median if median > 0 else 0.0
    return Measured(median * 1e3, p95 * 1e3, cpu / len(wall) * 1e3, rate, runs=len(wall))


def _rate(executable: Executable, vectors: Sequence[Vector], callers: int, seconds: float) -> float:
    """Return runs a second of several callers at once."""
    stop = threading.Event()
    feeds = [feeds for feeds, _ in islice(cycle(vectors), callers)]

    def work(own: Mapping[str, Array]) -> int:
        done = 0
        while not stop.is_set():
            executable.run(own)
            done += 1
        return done

    with ThreadPoolExecutor(callers) as pool:
        start = time.perf_counter()
        jobs = [pool.submit(work, own) for own in feeds]
        try:
            stop.wait(seconds)
        finally:
            # Also on Ctrl-C: leaving the pool waits for its threads.
            stop.set()
        done = sum(job.result() for job in jobs)
        return done / (time.perf_counter() - start)
