"""Batches are as large as they gain, and only where no row changes another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edgeinfer.runtime import batches
from edgeinfer.runtime.rows import Run
from edgeinfer.runtime.scheduler import Outputs
from edgeinfer.runtime.serve import batching
from edgeinfer.runtime.serve.batching import clock_for, measure
from edgeinfer.types import Array, Feeds

ROWS = [{"x": np.full((1, 2), float(v))} for v in range(3)]


class Engine:
    """Doubles; a run of n rows takes ``cost[n]``."""

    def __init__(self, cost: dict[int, float]) -> None:
        self.cost, self.now = cost, 0.0

    def run(self, feeds: Feeds) -> dict[str, Array]:
        self.now += self.cost[len(feeds["x"])]
        return {"y": feeds["x"] * 2}

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("cost", "size"),
    [
        ({1: 1e-3, 2: 1.2e-3, 4: 1.5e-3, 8: 2e-3, 16: 3e-3}, 16),
        ({1: 1e-3, 2: 1.2e-3, 4: 1.5e-3, 8: 4e-3, 16: 8e-3}, 4),
        ({1: 1e-3, 2: 2e-3, 4: 4e-3, 8: 8e-3, 16: 1.6e-2}, 1),
        ({1: 1e-3, 2: 1.98e-3, 4: 4e-3, 8: 8e-3, 16: 1.6e-2}, 1),
        # What a batch costs besides its run is more than so little.
        ({1: 1e-3, 2: 1.86e-3, 4: 3.7e-3, 8: 7.4e-3, 16: 1.5e-2}, 1),
        ({1: 1e-3, 2: 1.78e-3, 4: 3.6e-3, 8: 7.2e-3, 16: 1.5e-2}, 2),
        # One size that other work hit stops nothing.
        ({1: 1e-3, 2: 5e-3, 4: 1.5e-3, 8: 2e-3, 16: 3e-3}, 16),
        ({1: 1e-3, 2: 1e-3, 4: 1e-3, 8: 1e-3, 16: 1.99e-3}, 8),
        ({1: 0.2, 2: 0.26}, 2),
    ],
)
def test_size_is_where_the_gain_ends(cost: dict[int, float], size: int) -> None:
    engine = Engine(cost)
    assert measure(engine.run, ROWS, 16, engine.clock).size == size


def test_rows_that_depend_on_each_other_are_never_put_together() -> None:
    def run(feeds: Feeds) -> dict[str, Array]:
        return {"y": feeds["x"] - feeds["x"].mean(axis=0)}

    table = measure(run, ROWS, 16)
    assert table.size == 1
    assert "depends on the others" in table.reason


def test_no_vectors_no_batches() -> None:
    assert measure(lambda feeds: {}, [], 16).size == 1


class BusyEngine(Engine):
    """Runs on a machine with other work, which disturbs long runs more often."""

    def __init__(self, cost: dict[int, float], seed: int) -> None:
        super().__init__(cost)
        self.chance = np.random.default_rng(seed)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        size = len(feeds["x"])
        if self.chance.random() < 0.5 + 0.02 * size:
            self.now += self.cost[size] * 3 * self.chance.random()
        return super().run(feeds)


def test_other_work_does_not_choose_the_size() -> None:
    cost = {1: 1e-3, 2: 1.2e-3, 4: 1.5e-3, 8: 2e-3, 16: 3e-3}
    engines = [BusyEngine(cost, seed) for seed in range(40)]
    sizes = [measure(engine.run, ROWS, 16, engine.clock).size for engine in engines]
    assert sizes.count(16) >= 38
    # It ends, and soon where nothing disturbs it.
    assert max(engine.now for engine in engines) < 1.1
    quiet = Engine(cost)
    measure(quiet.run, ROWS, 16, quiet.clock)
    assert quiet.now < 0.08


def test_joining_the_requests_counts_too() -> None:
    """Large inputs take longer to put together than some engines need for them."""

    class Joined(Engine):
        def __init__(self) -> None:
            super().__init__({1: 1e-3, 2: 1.2e-3})

    engine = Joined()

    def together(run: Run, several: Sequence[Feeds]) -> list[Outputs]:
        engine.now += 1e-3 * (len(several) - 1)
        return batches.together(run, several)

    assert measure(engine.run, ROWS, 2, engine.clock).size == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "together", together)
        assert measure(engine.run, ROWS, 2, engine.clock).size == 1


def spin() -> None:
    end = time.thread_time() + 2e-3
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("counts", [True, False])
def test_time_is_that_of_the_thread_that_works(
    monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    if not counts:
        monkeypatch.setattr(batching, "_waits", lambda: None)
        # Of many tries one is not disturbed.
        monkeypatch.setattr(batching, "_TRIES", 2000)
    assert clock_for(spin) is time.thread_time
    monkeypatch.setattr(batching, "_TRIES", 5)
    with ThreadPoolExecutor(1) as pool:
        assert clock_for(lambda: pool.submit(spin).result()) is time.perf_counter
    assert clock_for(lambda: time.sleep(0.01)) is time.perf_counter
    monkeypatch.setattr(batching, "_FINE_S", 0.0)
    assert clock_for(spin) is time.perf_counter
