"""A few threads for one kind of work: no other kind waits for them, nor a process that ends."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from edgeinfer import forks
from edgeinfer.errors import QueueFullError
from edgeinfer.pending import Pending
from edgeinfer.runtime.bell import awaited

T = TypeVar("T")

_REST_S = 5.0
"""Seconds without work after which a thread ends; the next work starts another."""


_Entry = tuple[Future[Any], Callable[[], Any], bytes]


class Pool:
    """Runs functions in threads of its own, in the order in which they came.

    A process that ends does not wait for them, as it does for the threads of
    ``concurrent.futures`` and for asyncio's default executor; and who waits for one kind of work
    does not wait for another. Functions of one owner have all threads but one, where there are
    several, so that no one keeps all others waiting.

    Args:
        name: Name of its threads.
        threads: at most.
        waiting: functions that may wait; more are refused, and of one owner three quarters of them.
    """

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._most, self._room = name, threads, waiting
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        self._waiting: deque[_Entry] = deque()
        self._running: Counter[bytes] = Counter()
        self._threads = self._resting = 0
        forks.watch(self)

    def forked(self) -> None:
        """Begin without threads, and without what waits for the parent's."""
        self._lock = threading.RLock()
        self._wanted = threading.Condition(self._lock)
        self._waiting, self._running = deque(), Counter()
        self._threads = self._resting = 0

    def submit(self, function: Callable[[], T], owner: bytes = b"") -> Future[T]:
        """Have a function called; one whose future is cancelled before is not.

        Args:
            function: Function to call.
            owner: whose it is; empty for nobody's.

        Raises:
            QueueFullError: as many wait as may.
        """
        future: Future[T] = Pending()
        with self._lock:
            if len(self._waiting) >= self._room:
                self._waiting = deque(each for each in self._waiting if not each[0].cancelled())
            if self._is_full(owner):
                raise QueueFullError(f"{self._room} requests wait already; try again later")
            self._waiting.append((future, function, owner))
            if self._resting < len(self._waiting) and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._wanted.notify()
        return future

    def _is_full(self, owner: bytes) -> bool:
        count, most = len(self._waiting), self._room - self._room // 4
        if count >= self._room:
            return True
        return bool(owner) and count >= most and sum(o == owner for *_, o in self._waiting) >= most

    async def run(self, function: Callable[[], T], owner: bytes = b"") -> T:
        """Likewise, and wait for it; a task that is cancelled takes back what has not begun.

        Raises:
            QueueFullError: as many wait as may.
        """
        return await awaited(self.submit(function, owner))

    def _work(self) -> None:
        while (each := self._next()) is not None:
            future, function, owner = each
            made: Any = None
            failed: BaseException | None = None
            if future.set_running_or_notify_cancel():
                try:
                    made = function()
                except BaseException as e:
                    failed = e
                # Who waits goes on at once: nothing of what was called is held here by then.
                del each, function
                if failed is None:
                    future.set_result(made)
                else:
                    future.set_exception(failed)
            else:
                del each, function
            # Nor is what it gave, until the next one comes.
            del future, made, failed
            self._ended(owner)

    def _next(self) -> _Entry | None:
        with self._lock:
            self._resting += 1
            there = self._wanted.wait_for(lambda: self._place() is not None, _REST_S)
            self._resting -= 1
            if there and (place := self._place()) is not None:
                each = self._waiting[place]
                del self._waiting[place]
                if each[2]:
                    self._running[each[2]] += 1
                return each
            self._threads -= 1
            return None

    def _place(self) -> int | None:
        """Return the place of the first that may run."""
        most = max(1, self._most - 1)
        positions = (i for i, each in enumerate(self._waiting) if self._running[each[2]] < most)
        return next(positions, None)

    def _ended(self, owner: bytes) -> None:
        if not owner:
            return
        with self._lock:
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]
            self._wanted.notify()
