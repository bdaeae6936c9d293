"""Memory of all requests together: what one takes is counted, and waits where there is none left.

Limits of one request say nothing about a hundred at once. Bytes of a body count when they come, so
that somebody who announces much and sends little takes nothing; lists of JSON count as what they
take once they are read.
"""

from __future__ import annotations

import asyncio
from collections import deque

from edgeinfer.runtime.serve.http import Message, Receive, RequestError, Scope, header

LENGTH = b"inference-header-content-length"

JSON_WEIGHT = 12
"""Bytes that a list of numbers takes for one of its text: objects, their places, and the array."""

WAIT_S = 2.0
"""Seconds for which a request waits for others to end before it is told to come back."""

_HEAD = b"65536"
"""Bytes in front of raw tensors, from which on they count as a text."""

_HELD = "edgeinfer.held"


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
        weight: of a byte of its body.
    """

    __slots__ = ("_memory", "_size", "_weight")

    def __init__(self, memory: InFlight, weight: int = 1) -> None:
        self._memory, self._size, self._weight = memory, 0, weight

    async def take(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            RequestError: 503, they do not fit in time.
        """
        if not self._memory.is_free(size):
            await self._memory.wait(size, self._size)
        self._memory.used += size
        self._size += size

    def received(self, receive: Receive) -> Receive:
        """Return what receives the body, and holds it."""

        async def counted() -> Message:
            message = await receive()
            if size := len(message.get("body", b"")):
                await self.take(size * self._weight)
            return message

        return counted

    def release(self) -> None:
        """Give all of it back."""
        if self._size:
            self._memory.give(self._size)
            self._size = 0


def hold(memory: InFlight, scope: Scope) -> Held:
    """Return what a request holds, nothing yet; ``held`` finds it."""
    told = header(scope, LENGTH)
    # Who says that all of it is the head in front of raw tensors sends a text too.
    is_text = told is None or len(told) > len(_HEAD) or told.rjust(len(_HEAD), b"0") > _HEAD
    made = Held(memory, JSON_WEIGHT if is_text and scope["path"].startswith("/v2/") else 1)
    scope[_HELD] = made
    return made


def held(scope: Scope) -> Held:
    """Return what a request holds."""
    found: Held = scope[_HELD]
    return found
