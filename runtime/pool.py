"""A few threads for one kind of work: no other kind waits for them, nor a process that ends."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from edgeinfer import forks
from edgeinfer.errors import QueueFullError

T = TypeVar("T")

_REST_S = 5.0
"""Seconds without work after which a thread ends; the next work starts another."""


class Pool:
    """Runs functions in threads of its own, in the order in which they came.

    A process that ends does not wait for them, as it does for the threads of
    ``concurrent.futures`` and for asyncio's default executor; and who waits for one kind of work
    does not wait for another.

    Args:
        name: Name of its threads.
        threads: at most.
        waiting: functions that may wait; more are refused.
    """

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._most, self._room = name, threads, waiting
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = self._resting = 0
        forks.watch(self)

    def forked(self) -> None:
        """Begin without threads, and without what waits for the parent's."""
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        self._waiting = deque()
        self._threads = self._resting = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Have a function called; one whose future is cancelled before is not.

        Raises:
            QueueFullError: as many wait as may.
        """
        future: Future[T] = forks.Pending()
        with self._lock:
            if len(self._waiting) >= self._room:
                self._waiting = deque(each for each in self._waiting if not each[0].cancelled())
            if len(self._waiting) >= self._room:
                raise QueueFullError(f"{self._room} requests wait already; try again later")
            self._waiting.append((future, function))
            if self._resting < len(self._waiting) and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._wanted.notify()
        return future

    async def run(self, function: Callable[[], T]) -> T:
        """Likewise, and wait for it; a task that is cancelled takes back what has not begun.

        Raises:
            QueueFullError: as many wait as may.
        """
        found: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                found.append(function())
            except BaseException as e:
                failed.append(e)

        # The two futures hold each other until the collector comes, so neither has what was made.
        await asyncio.wrap_future(self.submit(work))
        if failed:
            raise failed.pop()
        return found.pop()

    def _work(self) -> None:
        while (each := self._next()) is not None:
            future, function = each
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as e:
                future.set_exception(e)
            # What it holds is not kept until the next one comes.
            del each, future, function

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            self._resting += 1
            there = self._wanted.wait_for(lambda: self._waiting, _REST_S)
            self._resting -= 1
            if there:
                return self._waiting.popleft()
            self._threads -= 1
            return None
