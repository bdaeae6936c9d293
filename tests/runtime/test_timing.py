"""Interleaved timing, on a clock that the test turns."""

from collections.abc import Callable

import pytest

from edgeinfer.runtime.timing import interleave, summary


class Clock:
    """Time that passes only when a call lets it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log = ""

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.log += name
            self.now += seconds

        return call


def test_calls_take_turns_in_both_directions() -> None:
    clock = Clock()
    calls = {"a": clock.work("a", 0.001), "b": clock.work("b", 0.002)}
    timings = interleave(calls, runs=4, seconds=100, clock=clock)
    assert clock.log == "aabb" + "abbaabba"
    assert timings["a"].median_ms == pytest.approx(1)
    assert timings["b"].median_ms == pytest.approx(2)
    assert timings["a"].runs == 4


def test_time_ends_it_but_not_before_five_rounds() -> None:
    clock = Clock()
    timings = interleave({"a": clock.work("a", 1.0)}, runs=100, seconds=0.5, clock=clock)
    assert timings["a"].runs == 5


def test_progress_is_told() -> None:
    clock = Clock()
    told: list[float] = []
    calls = {"a": clock.work("a", 0.001)}
    interleave(calls, runs=4, seconds=100, clock=clock, progress=told.append)
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_summary() -> None:
    timing = summary([0.001 * n for n in range(1, 101)])
    assert timing.median_ms == pytest.approx(50.5)
    assert timing.p95_ms == pytest.approx(96)
    assert timing.min_ms == pytest.approx(1)
    assert timing.spread == pytest.approx(1.0)  # quartiles at 25.25 and 75.75


def test_summary_of_one() -> None:
    timing = summary([0.002])
    assert (timing.median_ms, timing.spread, timing.runs) == (2.0, 0.0, 1)
