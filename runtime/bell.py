"""Calls from other threads into an event loop: it is woken once for all that come meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from edgeinfer import forks


class Bell:
    """Wakes a loop.

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
