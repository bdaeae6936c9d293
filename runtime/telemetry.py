"""Counters and latency histograms of a session: local, off unless requested.

Nothing leaves the process by itself. Where the OpenTelemetry API is installed each run is reported
to its meter as well, which does nothing until the application sets up an exporter of its own.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, ParamSpec, TypeVar

from edgeinfer import forks
from edgeinfer.records import dataclass

P = ParamSpec("P")
R = TypeVar("R")

_STEPS = 16
_LARGEST = 64 * _STEPS


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session did since it was loaded or since ``reset``.

    Times are wall-clock milliseconds of whole calls, checks included. Percentiles come from a
    histogram with 16 buckets an octave, so they are right to 4.5 %; mean, smallest and largest
    are exact.

    Attributes:
        runs: calls that gave a result.
        failures: calls that raised, by the error's name.
        seconds: since counting began.
        mean_ms: Mean time in milliseconds of a run; None before the first.
        min_ms: the fastest.
        p50_ms: the median.
        p95_ms: 95 of 100 were faster.
        p99_ms: 99 of 100 were faster.
        max_ms: the slowest.
        per_second: runs a second since counting began.
        labels: model, variant, backend and device of the session.
    """

    runs: int
    failures: dict[str, int]
    seconds: float
    mean_ms: float | None = None
    min_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    per_second: float = 0.0
    labels: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lost = "".join(f", {count} {name}" for name, count in self.failures.items())
        text = f"{self.runs} runs in {self.seconds:.3g} s{lost}"
        if self.runs:
            text += (
                f"; mean {self.mean_ms:.3g} ms, p50 {self.p50_ms:.3g}, p95 {self.p95_ms:.3g}, "
                f"p99 {self.p99_ms:.3g}, max {self.max_ms:.3g}"
            )
        return text


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Times of something that was done many times, in milliseconds.

    Attributes:
        count: Number of them.
        mean: Mean of all; exact.
        min: the shortest; exact.
        p50: the median, right to 4.5 %, as are the other percentiles.
        p95: 95 of 100 were shorter.
        p99: 99 of 100 were shorter.
        max: the longest; exact.
    """

    count: int
    mean: float
    min: float
    p50: float
    p95: float
    p99: float
    max: float


class SizeHistogram:
    """How large things were, each bound exact, of one writer at a time."""

    BOUNDS = tuple(n * 10**power for power in range(5) for n in (1, 2, 5))

    def __init__(self) -> None:
        self._buckets = [0] * (len(self.BOUNDS) + 1)
        self._sum = 0

    def add(self, size: int) -> None:
        """Count one."""
        self._buckets[bisect_left(self.BOUNDS, size)] += 1
        self._sum += size

    def cumulative(self) -> tuple[list[int], float]:
        """Return how many were at most as large as each bound, all at the end; and the sum."""
        return [*accumulate(self._buckets)], float(self._sum)


class TimeHistogram:
    """Times in 16 buckets an octave, of one writer at a time."""

    def __init__(self) -> None:
        self._buckets = [0] * _LARGEST
        self._sum = self._largest = 0
        self._smallest = 1 << 64

    def add(self, nanoseconds: int, count: int = 1) -> None:
        """Count one, or several that took as long."""
        # As ``_bucket``, of each run.
        self._buckets[int(math.log2(nanoseconds or 1) * _STEPS)] += count
        self._sum += count * nanoseconds
        if nanoseconds < self._smallest:
            self._smallest = nanoseconds
        if nanoseconds > self._largest:
            self._largest = nanoseconds

    def cumulative(self, bounds_s: Sequence[float]) -> tuple[list[int], float]:
        """Return how many were shorter than each bound, all at the end; and the sum of all.

        Args:
            bounds_s: ascending, in seconds; a bound is right to 4.5 %.
        """
        buckets, total = list(self._buckets), self._sum
        counts = [sum(buckets[: _bucket(int(bound * 1e9)) + 1]) for bound in bounds_s]
        return [*counts, sum(buckets)], total / 1e9

    def percentiles(self) -> Percentiles | None:
        """Return the figures of now; None before the first."""
        buckets, total = list(self._buckets), self._sum
        smallest, largest = self._smallest, self._largest
        count = sum(buckets)
        if not count:
            return None

        def percentile(share: float) -> float:
            at = _quantile(buckets, math.ceil(share * count))
            return min(max(at, smallest), largest) / 1e6

        return Percentiles(
            count=count,
            mean=total / count / 1e6,
            min=smallest / 1e6,
            p50=percentile(0.5),
            p95=percentile(0.95),
            p99=percentile(0.99),
            max=largest / 1e6,
        )


class Recorder:
    """Counts runs and their times; threads may share it.

    Args:
        labels: Labels of the session, reported with each run to OpenTelemetry.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._lock = forks.lock()
        self._tell = _opentelemetry(labels)
        self._reset()
        forks.watch(self)

    def forked(self) -> None:
        """Count what this process does."""
        self._reset()

    def _reset(self) -> None:
        self._times = TimeHistogram()
        self._failures: Counter[str] = Counter()
        self._since = time.perf_counter()

    def watch(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return the call with its time and its errors counted."""
        clock = time.perf_counter_ns

        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            start = clock()
            try:
                result = call(*args, **kwargs)
            except Exception as error:
                self.failed(type(error).__name__)
                raise
            self.took(clock() - start)
            return result

        return watched

    def stats(self, reset: bool = False) -> SessionStats:
        """Return the figures of now, and begin to count anew if asked to."""
        with self._lock:
            times, failures = self._times.percentiles(), dict(self._failures)
            seconds = time.perf_counter() - self._since
            if reset:
                self._reset()
        if times is None:
            return SessionStats(0, failures, seconds, labels=self._labels)
        return SessionStats(
            runs=times.count,
            failures=failures,
            seconds=seconds,
            mean_ms=times.mean,
            min_ms=times.min,
            p50_ms=times.p50,
            p95_ms=times.p95,
            p99_ms=times.p99,
            max_ms=times.max,
            per_second=times.count / seconds,
            labels=self._labels,
        )

    def took(self, nanoseconds: int, count: int = 1) -> None:
        """Count a run that gave a result, or several that took as long."""
        with self._lock:
            self._times.add(nanoseconds, count)
        if self._tell is not None:
            for _ in range(count):
                self._tell(nanoseconds / 1e9, "")

    def failed(self, error: str) -> None:
        """Count a run that raised, by the error's name."""
        with self._lock:
            self._failures[error] += 1
        if self._tell is not None:
            self._tell(0.0, error)


def _bucket(nanoseconds: int) -> int:
    """Return the octave and the sixteenth of it that a time lies in."""
    return int(math.log2(max(nanoseconds, 1)) * _STEPS)


def _quantile(buckets: list[int], rank: int) -> float:
    """Return the middle, in nanoseconds, of the bucket that holds the run of that rank."""
    seen = 0
    for index, count in enumerate(buckets):
        seen += count
        if seen >= rank:
            return float(2 ** ((index + 0.5) / _STEPS))
    raise ValueError(f"rank {rank} of {seen}")


def _opentelemetry(labels: dict[str, str]) -> Callable[[float, str], None] | None:
    """Return what tells a run to the application's meter; None without the API."""
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    meter: Any = metrics.get_meter("edgeinfer")
    duration = meter.create_histogram("edgeinfer.run.duration", unit="s", description="of a run")
    failures = meter.create_counter("edgeinfer.run.failures", description="runs that raised")
    attributes = {f"edgeinfer.{key}": value for key, value in labels.items()}

    def tell(seconds: float, error: str) -> None:
        if error:
            failures.add(1, {**attributes, "error.type": error})
        else:
            duration.record(seconds, attributes)

    return tell
