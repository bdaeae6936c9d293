"""Threads of one kind of work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError
from functools import partial

import pytest

from edgeinfer.errors import QueueFullError
from edgeinfer.runtime import pool as module
from edgeinfer.runtime.pool import Pool


def test_work_is_done_in_order_by_few_threads() -> None:
    pool, done = Pool("few", threads=1, waiting=100), list[int]()
    for future in [pool.submit(partial(done.append, n)) for n in range(50)]:
        future.result(10)
    assert done == [*range(50)]
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("few") == 1


def test_what_goes_wrong_is_for_who_waits() -> None:
    pool = Pool("wrong", threads=1, waiting=1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(10)
    assert pool.submit(lambda: 3).result(10) == 3


def test_nothing_of_what_was_called_is_left_when_who_waits_goes_on() -> None:
    """A request's data were dropped before its answer began, or a moment later."""

    class Work:
        def __call__(self) -> int:
            begun.wait(30)
            return 3

    pool, begun, left = Pool("left", threads=1, waiting=1), threading.Event(), list[bool]()
    work = Work()
    kept, future = weakref.ref(work), pool.submit(work)
    del work
    future.add_done_callback(lambda _: left.append(kept() is not None))
    begun.set()
    assert future.result(30) == 3
    pool.submit(int).result(30)
    assert left == [False]


def test_what_waits_has_a_bound_and_what_is_cancelled_waits_no_more() -> None:
    pool, gate = Pool("full", threads=1, waiting=2), threading.Event()
    first = pool.submit(lambda: gate.wait(30))
    while not first.running():
        time.sleep(0.001)
    waiting = [pool.submit(lambda: 1) for _ in range(2)]
    with pytest.raises(QueueFullError, match="2 requests wait already"):
        pool.submit(lambda: 1)
    assert waiting[0].cancel()
    last = pool.submit(lambda: 2)
    gate.set()
    assert (waiting[1].result(10), last.result(10)) == (1, 2)
    with pytest.raises(CancelledError):
        waiting[0].result(0)


def test_places_are_left_for_other_owners() -> None:
    pool, gate = Pool("owners", threads=2, waiting=8), threading.Event()
    first = pool.submit(lambda: gate.wait(30), b"a")
    while not first.running():
        time.sleep(0.001)
    waiting = [pool.submit(lambda: None, b"a") for _ in range(6)]
    with pytest.raises(QueueFullError):
        pool.submit(lambda: None, b"a")
    assert pool.submit(lambda: 3, b"b").result(10) == 3
    assert pool.submit(lambda: 3, b"").result(10) == 3
    gate.set()
    for future in waiting:
        future.result(10)


def test_task_that_is_cancelled_takes_back_what_has_not_begun() -> None:
    pool, gate, done = Pool("tasks", threads=1, waiting=2), threading.Event(), list[int]()

    async def main() -> None:
        first = asyncio.ensure_future(pool.run(lambda: gate.wait(30)))
        second = asyncio.ensure_future(pool.run(lambda: done.append(2)))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.wait((second,))
        gate.set()
        assert await first
        assert await pool.run(lambda: 4) == 4

    asyncio.run(main())
    assert done == []


def test_threads_without_work_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REST_S", 0.01)
    pool = Pool("resting", threads=2, waiting=2)
    assert pool.submit(lambda: 1).result(10) == 1
    end = time.monotonic() + 10
    while any(thread.name == "resting" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.005)
    assert pool.submit(lambda: 2).result(10) == 2


def test_process_ends_while_work_goes_on() -> None:
    code = """if True:
        import asyncio, time
        from edgeinfer.runtime.pool import Pool
        async def main():
            asyncio.ensure_future(Pool("long", 1, 1).run(lambda: time.sleep(300)))
            await asyncio.sleep(0.1)
        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_one_owner_leaves_a_thread_to_others() -> None:
    pool, go_on = Pool("test", 2, 8), threading.Event()
    try:
        first = [pool.submit(go_on.wait, b"a") for _ in range(3)]
        # Others, and what is nobody's, do not wait for the three.
        assert pool.submit(lambda: 1, b"b").result(30) == 1
        assert pool.submit(lambda: 2).result(30) == 2
        assert [each.running() for each in first[1:]] == [False, False]
    finally:
        go_on.set()
    assert [each.result(30) for each in first] == [True] * 3
    assert pool.submit(lambda: 3, b"a").result(30) == 3
