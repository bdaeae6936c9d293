"""What threads tell a loop: it is woken once for many calls, and futures hold nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from edgeinfer.runtime.bell import Bell, awaited


def test_a_loop_is_woken_once_for_many_calls() -> None:
    woken: list[Callable[[], None]] = []
    loop: Any = SimpleNamespace(call_soon_threadsafe=woken.append)
    bell, called = Bell(loop), list[int]()
    for turn in range(2):
        for number in range(16):
            bell.ring(lambda n=number: called.append(n))  # type: ignore[misc]
        assert len(woken) == turn + 1
        woken[turn]()
        assert called == [*range(16)] * (turn + 1)


def test_a_closed_loop_is_let_be() -> None:
    def closed(_: Any) -> None:
        raise RuntimeError("Event loop is closed")

    loop: Any = SimpleNamespace(call_soon_threadsafe=closed)
    Bell(loop).ring(lambda: None)


class Outputs: ...


def test_what_a_thread_made_goes_with_who_waited_for_it() -> None:
    """The two futures of asyncio's own way hold each other until the collector comes."""

    async def main() -> None:
        running: Future[Outputs] = Future()
        answer, outputs = awaited(running), Outputs()
        kept = weakref.ref(outputs)
        running.set_result(outputs)
        assert await answer is outputs
        del running, answer, outputs
        await asyncio.sleep(0)
        assert kept() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_errors_and_cancellation_reach_the_other_side() -> None:
    async def main() -> None:
        failed: Future[int] = Future()
        answer = awaited(failed)
        failed.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await answer
        left, taken_back = Future[int](), Future[int]()
        answer = awaited(left)
        answer.cancel()
        await asyncio.sleep(0)
        assert left.cancelled()
        answer = awaited(taken_back)
        taken_back.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        done: Future[int] = Future()
        done.set_result(3)
        assert await awaited(done) == 3

    asyncio.run(main())
