"""Answers that a client does not read: they count as its memory, and have their time."""

from __future__ import annotations

import asyncio
from typing import Any

from edgeinfer.runtime.serve.inflight import InFlight

_LOOKS = 10
"""Times that is looked, in the time that a client has."""


class Unread:
    """What one connection was answered and has not taken.

    Args:
        transport: Transport of the connection, which may write no more for now.
        memory: Memory of all requests.
        share: whose share it counts for.
        seconds: after so long in which nothing was taken the connection is ended.
    """

    def __init__(self, transport: Any, memory: InFlight, share: bytes, seconds: float) -> None:
        self._transport, self._memory, self._share = transport, memory, share
        self._seconds, self._loop = seconds, asyncio.get_running_loop()
        self._size = transport.get_write_buffer_size()
        self._memory.add(self._size, share)
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds / _LOOKS, self._look)

    def end(self) -> None:
        """Count it no more: it was taken, or the connection is gone."""
        self._timer.cancel()
        self._memory.give(self._size, self._share)
        self._size = 0

    def _look(self) -> None:
        size = self._transport.get_write_buffer_size()
        if size < self._size:
            self._since = self._loop.time()
        if self._loop.time() - self._since >= self._seconds:
            self._transport.abort()
            return
        if size > self._size:
            self._memory.add(size - self._size, self._share)
        elif size < self._size:
            self._memory.give(self._size - size, self._share)
        self._size = size
        self._timer = self._loop.call_later(self._seconds / _LOOKS, self._look)
