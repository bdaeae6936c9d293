"""Closing while others run: the last one out frees the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edgeinfer import forks


class Lifetime:
    """Counts runs without a lock, so that a run costs two appends and not two acquisitions.

    A run appends to ``running``, then looks at ``closed``; ``close`` sets ``closed``, then looks at
    ``running``. Whichever comes second sees the other, and a run that leaves after ``close`` tries
    to release again.

    Args:
        free: frees the engine; called once.
    """

    __slots__ = ("__weakref__", "_elsewhere", "_free", "_lock", "closed", "running")

    def __init__(self, free: Callable[[], None]) -> None:
        self.closed = False
        self.running: deque[None] = deque()
        self._free: Callable[[], None] | None = free
        self._lock = forks.rlock()
        self._elsewhere = 0
        forks.watch(self)

    def forked(self) -> None:
        """Wait for none of the runs that other threads of the parent were in."""
        self._elsewhere = len(self.running)

    def close(self) -> None:
        """Let no new run in; free the engine now or when the last run leaves."""
        self.closed = True
        self.release()

    def release(self) -> None:
        """Free the engine if nothing runs any more and nobody else did."""
        with self._lock:
            if len(self.running) > self._elsewhere or self._free is None:
                return
            free, self._free = self._free, None
        free()
