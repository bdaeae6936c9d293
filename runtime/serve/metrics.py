"""Counters of the server: what is counted for each model, and who reads the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.runtime.fleet import ModelStats
    from edgeinfer.runtime.llm.stats import EngineStats
    from edgeinfer.runtime.serve.answers import Answers
    from edgeinfer.runtime.telemetry import SizeHistogram, TimeHistogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

SECONDS = (*(x * 10.0**e for e in range(-4, 1) for x in (1, 2, 5)), 10.0, 30.0, 60.0)
"""Bounds of the times that are counted."""

Engine = tuple[str, "EngineStats", "Mapping[str, TimeHistogram]", "Mapping[str, SizeHistogram]"]
"""A language model: its name, figures, times, and tokens of texts."""


class ModelMetrics:
    """What is counted for one model, by the event loop alone: no lock, and no label to look up.

    Attributes:
        statuses: answers by status.
        buckets: answers by time; the last for those above all bounds.
        seconds: Duration in seconds of all answers together.
        good_us: microseconds of those with a status below 400.
        passed_on: requests that its fallback answered.
    """

    __slots__ = ("buckets", "good_us", "passed_on", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(SECONDS) + 1)
        self.seconds = self.good_us = 0.0
        self.passed_on = 0

    def ended(self, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds
        if status < 400:
            self.good_us += seconds * 1e6


class Metrics:
    """All counters of a server.

    Args:
        engines: gives the language models' figures when they are requested; loads nothing.
        waiting: gives the requests of each model that have no answer yet.
        runs: gives what each model of tensors did.

    Attributes:
        models: Counters of each model.
        answers: Answers that are kept; None for none.
    """

    def __init__(
        self,
        engines: Callable[[], Iterable[Engine]],
        waiting: Callable[[], Iterable[tuple[str, int]]],
        runs: Callable[[], Iterable[tuple[str, ModelStats]]],
    ) -> None:
        self.models: dict[str, ModelMetrics] = {}
        self.engines, self.waiting, self.runs = engines, waiting, runs
        self.answers: Answers | None = None

    def of(self, name: str) -> ModelMetrics:
        """Return the counters of a model."""
        return self.models.setdefault(name, ModelMetrics())

    def text(self, names: Container[str]) -> bytes:
        """Return the page that Prometheus reads, of some models."""
        # Where nobody reads it, its library would take megabytes for nothing.
        from edgeinfer.runtime.serve.prometheus import page

        return page(self, names)
