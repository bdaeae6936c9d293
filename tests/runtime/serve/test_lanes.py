"""Brief runs on the event loop: what came together runs together, errors stay apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError
from edgeinfer.runtime.fleet import FleetModel, Runtime
from edgeinfer.runtime.serve import lanes
from edgeinfer.runtime.serve.lanes import BRIEF_S, LATE, LATE_S, REST_S, Lane, Ran
from edgeinfer.types import Feeds
from tests.runtime.conftest import Fakes, MakeBundle

BRIEF = {1: BRIEF_S / 4, 2: BRIEF_S / 3, 4: 2 * BRIEF_S, 8: 4 * BRIEF_S}
ONE: Feeds = {"x": np.zeros((1, 3), np.float32), "k": np.zeros(1, np.int64)}


@pytest.fixture
def model(fakes: Fakes, make_bundle: MakeBundle) -> Iterator[FleetModel]:
    fakes.add("fake")
    with Runtime(threads=1) as runtime:
        made = runtime.add(make_bundle("fake"), pinned=True)
        yield made


def feeds(value: float, columns: int = 3) -> Feeds:
    return {"x": np.full((1, columns), value, np.float32), "k": np.array([int(value)])}


def submitted(lane: Lane, given: Feeds, priority: float | None = None) -> asyncio.Future[Ran]:
    answer: asyncio.Future[Ran] = asyncio.get_running_loop().create_future()
    lane.submit(given, priority, None, answer)
    return answer


def ask(
    model: FleetModel, several: list[Feeds], priorities: list[float] | None = None
) -> list[Any]:
    async def run() -> list[Any]:
        lane = Lane(model, BRIEF, ONE)
        order = priorities or [0.0] * len(several)
        futures = [submitted(lane, f, p) for f, p in zip(several, order, strict=True)]
        return await asyncio.gather(*futures, return_exceptions=True)

    return asyncio.run(run())


def test_what_came_together_runs_together(model: FleetModel) -> None:
    before = model.stats().batches
    found = ask(model, [feeds(v) for v in range(10)])
    assert [f["double"].tolist() for f in found] == [[[2.0 * v] * 3] for v in range(10)]
    # Four are the most that keep the loop for less than they would one by one.
    assert model.stats().batches - before == 3
    assert model.stats().dispatched["full"] == 2
    assert model.stats().calls.runs >= 10


def test_too_few_for_a_batch_wait_for_who_came_during_the_run_before(model: FleetModel) -> None:
    """They ran at once, and those who had come meanwhile after them: two runs for one."""

    async def run() -> list[Any]:
        lane, late = Lane(model, BRIEF, ONE), list[asyncio.Future[Ran]]()
        first = [submitted(lane, feeds(v)) for v in range(6)]
        first[0].add_done_callback(
            lambda _: late.extend(submitted(lane, feeds(v)) for v in range(6, 8))
        )
        return [*await asyncio.gather(*first), *await asyncio.gather(*late)]

    before = model.stats().batches
    found = asyncio.run(run())
    assert [f["double"].tolist() for f in found] == [[[2.0 * v] * 3] for v in range(8)]
    assert model.stats().batches - before == 2


def test_who_is_alone_is_run_at_once(model: FleetModel) -> None:
    async def run() -> Any:
        lane = Lane(model, BRIEF, ONE)
        found = lane.run_now(feeds(1.0))
        waits = submitted(lane, feeds(2.0))
        # Who came before does not wait for it; what is larger goes to a thread.
        assert lane.run_now(feeds(3.0)) is None
        await waits
        lane._largest = 1
        assert lane.run_now(feeds(1.0)) is None
        return found

    before = model.stats().batches
    assert asyncio.run(run())["double"].tolist() == [[2.0] * 3]
    assert model.stats().batches - before == 2


def test_what_takes_long_goes_to_threads(model: FleetModel) -> None:
    assert Lane(model, BRIEF, ONE).is_brief
    assert not Lane(model, {1: 2 * BRIEF_S}, ONE).is_brief
    assert not Lane(model, {}, ONE).is_brief


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        ({1: 4.4e-4, 2: 4.5e-4, 4: 4.6e-4, 8: 4.8e-4, 16: 6e-4}, 16),
        ({1: 4.4e-4, 2: 4.5e-4, 4: 4.6e-4, 8: 4.8e-4, 16: 1.1e-3}, 8),
        ({1: 4.4e-4, 2: 4.5e-4, 4: 4.6e-4, 8: 7.9e-4}, 8),
        ({1: 4.4e-4, 2: 4.5e-4, 4: 3.9e-4, 8: 8.1e-4}, 4),
        ({1: 4.4e-4, 2: 4.5e-4, 4: 4.6e-4}, 0),
        ({1: 5.1e-4, 2: 5.1e-4, 4: 5.1e-4, 8: 5.2e-4}, 0),
        ({1: 2.4e-4}, 1),
        ({1: 2.6e-4}, 0),
        ({1: 2.4e-4, 2: 4.6e-4, 4: 9e-4}, 2),
        ({8: 1e-4}, 0),
    ],
)
def test_a_run_that_a_batch_makes_brief_is_brief(
    model: FleetModel, seconds: dict[int, float], size: int
) -> None:
    """To hand each of its requests to a thread would cost more than its part of the run."""
    assert Lane(model, seconds, ONE)._size == size


def test_one_bad_request_does_not_spoil_the_others(model: FleetModel, fakes: Fakes) -> None:
    fakes["fake"].poison = 2.0
    found = ask(model, [feeds(v) for v in range(4)])
    assert [isinstance(f, Exception) for f in found] == [False, False, True, False]
    with pytest.raises(InputError, match="'x'"):
        ask(model, [feeds(1, columns=2)])


def test_an_engine_that_is_not_free_is_waited_for_elsewhere(model: FleetModel) -> None:
    async def run() -> Any:
        lane = Lane(model, BRIEF, ONE)
        entered, over = threading.Event(), threading.Event()

        def occupy(_: object) -> bool:
            entered.set()
            return over.wait(10)

        scheduler = model._runtime._scheduler
        other = threading.Thread(target=lambda: scheduler.here(model, occupy, None))
        other.start()
        assert entered.wait(10)
        try:
            future = await submitted(lane, feeds(3))
            assert not isinstance(future, dict)
        finally:
            over.set()
            other.join()
        return await asyncio.wrap_future(future)

    assert asyncio.run(run())["k'"].tolist() == [3]


def test_owners_take_turns(model: FleetModel) -> None:
    ended: list[str] = []

    def note(owner: str, _: object) -> None:
        ended.append(owner)

    async def run() -> None:
        lane = Lane(model, BRIEF, ONE)
        for _ in range(2):
            futures = []
            for owner in "aaaaaabbcaaaB":
                future: asyncio.Future[Ran] = asyncio.get_running_loop().create_future()
                future.add_done_callback(partial(note, owner))
                priority = float(owner.isupper())
                lane.submit(feeds(1), priority, None, future, owner.lower().encode())
                futures.append(future)
            await asyncio.gather(*futures)

    asyncio.run(run())
    # Whose last run is the longest ago begins the second time.
    assert "".join(ended) == "Babcabaaaaaaa" + "Bbcabaaaaaaaa"


def test_larger_inputs_than_were_measured_go_to_threads(model: FleetModel) -> None:
    async def run() -> Any:
        lane = Lane(model, BRIEF, ONE)
        two = {name: np.concatenate([array, array]) for name, array in feeds(3).items()}
        future = await submitted(lane, two)
        assert not isinstance(future, dict)
        return await asyncio.wrap_future(future)

    assert asyncio.run(run())["k'"].tolist() == [3, 3]


class Clock:
    """A clock that each look puts forward."""

    def __init__(self) -> None:
        self.now = self.step = 0.0

    def perf_counter(self) -> float:
        self.now += self.step
        return self.now


def test_runs_that_are_late_go_to_threads_for_a_while(
    model: FleetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(lanes, "time", clock)

    async def run() -> None:
        lane = Lane(model, BRIEF, ONE)

        async def is_here() -> bool:
            found = await submitted(lane, feeds(1))
            if isinstance(found, dict):
                return True
            await asyncio.wrap_future(found)
            # The thread gives its place back after it has answered.
            while model._runtime._scheduler._running:
                await asyncio.sleep(0.001)
            return False

        clock.step = 2 * LATE_S
        assert [await is_here() for _ in range(LATE + 2)] == [True] * LATE + [False] * 2
        clock.now += REST_S
        # One that is late again is enough.
        assert [await is_here() for _ in range(3)] == [True, False, False]
        clock.now, clock.step = clock.now + REST_S, 0.0
        assert [await is_here() for _ in range(3)] == [True] * 3
        clock.step = 2 * LATE_S
        assert [await is_here() for _ in range(LATE + 1)] == [True] * LATE + [False]

    asyncio.run(run())


def test_who_left_is_not_run(model: FleetModel) -> None:
    async def run() -> None:
        lane = Lane(model, BRIEF, ONE)
        gone, stays = submitted(lane, feeds(1)), submitted(lane, feeds(2))
        gone.cancel()
        found = await stays
        assert isinstance(found, dict)
        assert found["k'"].tolist() == [2]

    before = model.stats().calls.runs
    asyncio.run(run())
    assert model.stats().calls.runs == before + 1
