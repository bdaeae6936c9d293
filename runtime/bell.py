"""What other threads tell an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from edgeinfer import forks

T = TypeVar("T")


class Bell:
    """Wakes a loop once for all that comes meanwhile.

    Args:
        loop: that is woken.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = forks.lock()
        self._waiting: list[Callable[[], object]] = []

    def ring(self, call: Callable[[], object]) -> None:
        """Have a function called by the loop, soon; from any thread."""
        with self._lock:
            self._waiting.append(call)
            if len(self._waiting) > 1:
                return
        # A loop that was closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._rung)

    def _rung(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


def awaited(running: Future[T]) -> asyncio.Future[T]:
    """Return a future of the loop for one of a thread, as ``asyncio.wrap_future`` does.

    Its two futures hold each other, and so what was made, until the collector comes; these do only
    until they are settled. Where this one is cancelled the other one is.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    answer.add_done_callback(partial(_left, running))
    running.add_done_callback(partial(_came, loop, answer))
    return answer


def _left(running: Future[T], answer: asyncio.Future[T]) -> None:
    if answer.cancelled():
        running.cancel()


def _came(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], running: Future[T]) -> None:
    # A loop that was closed has nobody who waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, answer, running)


def _settle(answer: asyncio.Future[T], running: Future[T]) -> None:
    if answer.done():
        return
    if running.cancelled():
        answer.cancel()
    elif (error := running.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(running.result())
