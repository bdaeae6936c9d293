"""Memory of all requests together: what one takes is counted, and waits where there is none left.

Limits of one request say nothing about a hundred at once. Bytes of a body count when they come, so
that somebody who announces much and sends little takes nothing; JSON counts as what it takes once
it is read, until the request is made of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar

from edgeinfer.runtime.serve.http import Message, Receive, RequestError

LENGTH = b"inference-header-content-length"

LIST_WEIGHT = 12
"""Bytes that a list of a message of gRPC takes for one of its own."""

_OBJECTS = ((b"[", 88), (b"{", 264), (b",", 40), (b'"', 32), (b":", 64))
"""Bytes of memory that a mark of JSON stands for: lists, objects, values, half a text, fields."""

WAIT_S = 2.0
"""Seconds for which a request waits for others to end before it is told to come back."""


class InFlight:
    """The memory of all requests.

    Args:
        limit: bytes; a request that is alone may take more.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def is_free(self, size: int) -> bool:
        """Whether so many bytes more fit, and nobody waits before."""
        return not self._waiting and self.used + size <= self._limit

    async def wait(self, size: int, own: int) -> None:
        """Wait until so many bytes more fit.

        Args:
            size: bytes.
            own: that the request has already; others' must go, not its own.

        Raises:
            RequestError: 503, they do not fit in time.
        """
        end = asyncio.get_running_loop().time() + WAIT_S
        while self.used > own and self.used + size > self._limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await asyncio.wait_for(turn, max(0.0, end - asyncio.get_running_loop().time()))
            except TimeoutError as e:
                raise RequestError(
                    503, "requests under way take all the memory that they may", 1.0
                ) from e
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)

    def give(self, size: int) -> None:
        """Give bytes back; who waits looks again."""
        self.used -= size
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)


class Held:
    """What one request holds.

    Args:
        memory: of all.
    """

    __slots__ = ("_data", "_memory", "_size")

    def __init__(self, memory: InFlight) -> None:
        self._memory, self._size, self._data = memory, 0, 0

    async def take(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            RequestError: 503, they do not fit in time.
        """
        if not self._memory.is_free(size):
            await self._memory.wait(size, self._size)
        self._memory.used += size
        self._size += size

    async def take_data(self, size: int) -> None:
        """Likewise for JSON that is to be read, until ``drop_data``.

        Raises:
            RequestError: 503, they do not fit in time.
        """
        await self.take(size)
        self._data += size

    def drop_data(self) -> None:
        """Give back what was read of JSON: nobody has it any more."""
        self._size -= self._data
        self._memory.give(self._data)
        self._data = 0

    def received(self, receive: Receive) -> Receive:
        """Return what receives the body, and holds it."""

        async def counted() -> Message:
            message = await receive()
            if size := len(message.get("body", b"")):
                await self.take(size)
            return message

        return counted

    def release(self) -> None:
        """Give all of it back."""
        if self._size:
            self._memory.give(self._size)
            self._size = self._data = 0


def weigh(text: bytes) -> int:
    """Return how many bytes JSON takes once it is read, or a little more.

    Texts take what they are, or four times that where one character of them is wide.
    """
    wide = 1 if text.isascii() and b"\\u" not in text else 4
    return wide * len(text) + sum(text.count(mark) * size for mark, size in _OBJECTS)


_HELD: ContextVar[Held] = ContextVar("held")


def hold(memory: InFlight) -> Held:
    """Return what a request holds, nothing yet; ``held`` finds it."""
    made = Held(memory)
    _HELD.set(made)
    return made


def held() -> Held:
    """Return what the request holds that is answered."""
    return _HELD.get()
