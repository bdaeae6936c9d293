"""Callers of threads and of asyncio share one engine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edgeinfer.errors import ClosedError, InputError
from edgeinfer.runtime.llm.params import Event
from edgeinfer.runtime.llm.thread import SILENCE, EngineThread
from tests.forked import in_fork
from tests.runtime.llm.toy import ToyExecutor, generate, request, toy_engine


@pytest.fixture
def running() -> Iterator[tuple[EngineThread, ToyExecutor]]:
    engine, executor = toy_engine()
    thread = EngineThread(engine)
    yield thread, executor
    thread.close()


def test_stream_is_the_same_as_in_one_thread(running: tuple[EngineThread, ToyExecutor]) -> None:
    thread, _ = running
    asked: dict[str, Any] = {"max_tokens": 20, "seed": 4, "n": 2}
    expected = generate(toy_engine()[0], request("a", [1, 2, 3], **asked))
    found: dict[int, str] = {0: "", 1: ""}
    for event in thread.open(request("a", [1, 2, 3], **asked)):
        found[event.index] += event.text
    assert found == {index: expected.text["a", index] for index in (0, 1)}


def test_threads_stream_at_once(running: tuple[EngineThread, ToyExecutor]) -> None:
    thread, _ = running
    found: dict[int, list[int]] = {}

    def read(number: int) -> None:
        events = thread.open(request(str(number), [number], max_tokens=30, seed=number))
        found[number] = [t for event in events for t in event.tokens]

    readers = [threading.Thread(target=read, args=(i,)) for i in range(12)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for number in range(12):
        alone = generate(toy_engine()[0], request("a", [number], max_tokens=30, seed=number))
        assert found[number] == alone.tokens["a", 0]


def test_refusal_comes_at_once(running: tuple[EngineThread, ToyExecutor]) -> None:
    thread, _ = running
    with pytest.raises(InputError, match="at least one token"):
        thread.open(request("a", []))


def test_reader_that_leaves_cancels(running: tuple[EngineThread, ToyExecutor]) -> None:
    thread, executor = running
    executor.held_after = 3
    for _ in thread.open(request("a", [1], max_tokens=100, ignore_eos=True)):
        break
    executor.released.set()
    stats = thread.stats()
    assert stats.running == stats.pages_used == 0
    assert stats.finished == {"cancelled": 1}


def test_tasks_stream_at_once(running: tuple[EngineThread, ToyExecutor]) -> None:
    thread, _ = running

    async def read(number: int) -> list[Event]:
        asked = request(str(number), [number], max_tokens=25, seed=number)
        return [event async for event in await thread.submit_async(asked)]

    async def all_of_them() -> list[list[Event]]:
        return await asyncio.gather(*(read(i) for i in range(12)))

    for number, events in enumerate(asyncio.run(all_of_them())):
        alone = generate(toy_engine()[0], request("a", [number], max_tokens=25, seed=number))
        assert [t for e in events for t in e.tokens] == alone.tokens["a", 0]
        assert "".join(e.text for e in events) == alone.text["a", 0]
        assert events[-1].usage is not None


def test_task_that_is_cancelled_frees_its_pages(
    running: tuple[EngineThread, ToyExecutor],
) -> None:
    thread, executor = running
    executor.held_after = 3

    async def read() -> None:
        events = await thread.submit_async(request("a", [1], max_tokens=120, ignore_eos=True))
        async for _ in events:
            asyncio.current_task().cancel()  # type: ignore[union-attr]

    async def main() -> None:
        task = asyncio.create_task(read())
        with pytest.raises(asyncio.CancelledError):
            await task
        executor.released.set()
        stats = await thread.stats_async()
        assert stats.finished == {"cancelled": 1}
        assert stats.pages_used == 0

    asyncio.run(main())


def test_silence_is_told_where_that_is_asked_for(
    running: tuple[EngineThread, ToyExecutor],
) -> None:
    thread, executor = running
    executor.held_after = 0

    async def main() -> list[Event]:
        asked = request("a", [1], max_tokens=5, ignore_eos=True)
        events = await thread.submit_async(asked, 0.01)
        silent = [await anext(events) for _ in range(3)]
        executor.released.set()
        assert all(event is SILENCE for event in silent)
        return [event async for event in events if event is not SILENCE]

    assert sum(len(event.tokens) for event in asyncio.run(main())) == 5


def test_refusal_reaches_a_task(running: tuple[EngineThread, ToyExecutor]) -> None:
    thread, _ = running

    async def main() -> None:
        with pytest.raises(InputError, match="prompt"):
            await thread.submit_async(request("a", [500]))

    asyncio.run(main())


def test_one_client_cannot_cancel_another(running: tuple[EngineThread, ToyExecutor]) -> None:
    thread, _ = running
    first = thread.open(request("a", [1], max_tokens=30, ignore_eos=True))
    next(first)
    for _ in thread.open(request("b", [1], max_tokens=90, ignore_eos=True)):
        break
    assert sum(len(e.tokens) for e in first) == 29


def test_fault_of_an_executor_ends_requests_and_not_the_engine(
    running: tuple[EngineThread, ToyExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, executor = running

    def broken(batch: object) -> None:
        raise ZeroDivisionError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(executor, "step", broken)
        (event,) = thread.open(request("a", [1]))
    assert event.finish == "error"
    assert isinstance(event.error, ZeroDivisionError)
    events = list(thread.open(request("b", [1], max_tokens=3, ignore_eos=True)))
    assert events[-1].finish == "length"
    assert thread.stats().pages_used == 0


def test_closing_ends_what_runs() -> None:
    engine, executor = toy_engine()
    executor.held_after = 3
    thread = EngineThread(engine)
    stream = thread.open(request("a", [1], max_tokens=120, ignore_eos=True))
    next(stream)
    asleep = thread.call(lambda engine: engine.sleep())
    executor.released.set()
    asleep.result()
    thread.close()
    with pytest.raises(ClosedError):
        list(stream)
    with pytest.raises(ClosedError):
        thread.open(request("b", [1]))
    thread.close()


def test_request_wakes_and_a_question_does_not() -> None:
    made: list[ToyExecutor] = []
    from edgeinfer.runtime.llm.engine import Engine
    from edgeinfer.runtime.llm.options import EngineOptions
    from tests.runtime.llm.toy import EOS, VOCABULARY

    def make() -> ToyExecutor:
        made.append(ToyExecutor())
        return made[-1]

    thread = EngineThread(Engine(make, VOCABULARY, (EOS,), options=EngineOptions(calibrate=False)))
    try:
        thread.sleep()
        assert thread.stats().asleep
        assert made[0].closed
        assert len(made) == 1
        events = list(thread.open(request("a", [1], max_tokens=3, ignore_eos=True)))
        assert len(made) == 2
        assert sum(len(e.tokens) for e in events) == 3
        assert not thread.stats().asleep
    finally:
        thread.close()
    assert made[1].closed


def test_thread_does_not_come_along_into_a_child() -> None:
    engine, _ = toy_engine()
    thread = EngineThread(engine)
    child = os.fork()
    if not child:
        try:
            thread.stats()
        except ClosedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    thread.close()


def test_a_forked_process_does_not_wait_for_the_engine_of_its_parent(
    running: tuple[EngineThread, ToyExecutor],
) -> None:
    thread, _ = running
    gate = threading.Event()
    held = thread.call(lambda _: gate.wait(60))
    asked = thread.call(lambda _: 1)
    try:
        assert "run it here" in str(in_fork(lambda: asked.exception()))
        assert not asked.done()
    finally:
        gate.set()
    assert held.result()
    assert asked.result() == 1
