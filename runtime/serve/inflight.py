"""Memory of all requests together: what one takes is counted, and waits where there is none left.

Limits of one request say nothing about a hundred at once. Bytes of a body count when they come, so
that somebody who announces much and sends little takes nothing; JSON counts as what it takes once
it is read, until the request is made of it. An answer counts from before it is made until its
client has read it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextvars import ContextVar

import numpy as np

from edgeinfer.runtime.serve.exchange import Exchange
from edgeinfer.runtime.serve.http import Message, Receive, RequestError, too_large
from edgeinfer.runtime.serve.keys import count_share, sharer

LARGE_BYTES = 64 << 10
"""What is as large is read and written in a thread, so that others do not wait for it; an answer
counts as memory."""

LIST_WEIGHT = 16
"""Bytes that a list of numbers takes for one of its array, or texts for one that was sent."""

_OBJECTS = tuple(zip(b'[{,":', (88, 264, 40, 32, 64), strict=True))
"""Bytes of memory that a mark of JSON stands for: lists, objects, values, half a text, fields."""

_RARE = 16

WAIT_S = 2.0
"""Seconds for which a request waits for others to end before it is refused with 503."""


_SHARES = 2
"""One key of several has one of so many parts of the memory; its only request may take more."""


class InFlight:
    """The memory of all requests.

    Args:
        limit: bytes; a request that is alone may take more.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.used = limit, 0
        self._of: Counter[bytes] = Counter()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def is_free(self, size: int, own: int, share: bytes = b"") -> bool:
        """Whether so many bytes more fit, and nobody waits before."""
        if self._waiting:
            return False
        # Most are nobody's, and fit.
        fits = not share and self.used + size <= self._limit
        return fits or not self._lacks(size, own, share)

    def _lacks(self, size: int, own: int, share: bytes) -> int:
        """Return the status that says why so many bytes more do not fit; 0 where they do."""
        if self.used > own and self.used + size > self._limit:
            return 503
        if not share:
            return 0
        others = self._of[share] - own
        return 429 if others > 0 and _SHARES * (others + own + size) > self._limit else 0

    async def take(self, size: int, own: int, share: bytes) -> None:
        """Count so many bytes more, once they fit; as ``wait``.

        Raises:
            RequestError: 503, they do not fit in time; 429 where the key's own are in the way.
        """
        if not self.is_free(size, own, share):
            await self.wait(size, own, share)
        self.add(size, share)

    def check(self, size: int, own: int, share: bytes) -> None:
        """Raise where so many bytes more do not fit; nothing is waited for.

        Raises:
            RequestError: 503, they do not fit; 429 where the key's own are in the way.
        """
        if status := self._lacks(size, own, share):
            raise _full(status)

    async def wait(self, size: int, own: int, share: bytes) -> None:
        """Wait until so many bytes more fit.

        Args:
            size: bytes.
            own: that the request has already; others' must go, not its own.
            share: whose share it is; empty for nobody's.

        Raises:
            RequestError: 503, they do not fit in time; 429 where the key's own are in the way.
        """
        end = asyncio.get_running_loop().time() + WAIT_S
        while status := self._lacks(size, own, share):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await asyncio.wait_for(turn, max(0.0, end - asyncio.get_running_loop().time()))
            except asyncio.TimeoutError as e:
                raise _full(status) from e
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)

    def add(self, size: int, share: bytes) -> None:
        """Count bytes that are there."""
        self.used += size
        count_share(self._of, share, size)

    def give(self, size: int, share: bytes) -> None:
        """Give bytes back; who waits looks again."""
        self.used -= size
        count_share(self._of, share, -size)
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)


def _full(status: int) -> RequestError:
    # No frame that an error passes may have a name for it: what is on the way, bodies and all,
    # would stay until somebody looks for circles.
    whose = "under way" if status == 503 else "of this key"
    return RequestError(status, f"requests {whose} take all the memory that they may", 1.0)


class Held:
    """What one request holds.

    Args:
        memory: Memory of all requests.
        share: whose share it counts for; None: of whoever asks when the first bytes are taken.
        copies: Copies of an answer that are there until it is read.
    """

    __slots__ = ("_answer", "_copies", "_data", "_memory", "_share", "_size")

    def __init__(self, memory: InFlight, share: bytes | None = None, copies: int = 1) -> None:
        self._memory, self._size, self._data, self._answer = memory, 0, 0, 0
        self._share, self._copies = share, copies

    async def take(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            RequestError: 503, they do not fit in time; 429 where the key's own are in the way.
        """
        await self._memory.take(size, self._size, self._whose())
        self._size += size

    def add(self, size: int) -> None:
        """Hold so many bytes more, which are there."""
        self._memory.add(size, self._whose())
        self._size += size

    def _whose(self) -> bytes:
        # Nothing is taken before it is known who asks.
        if self._share is None:
            self._share = sharer()
        return self._share

    async def reserve(self, size: int) -> None:
        """Hold memory for an answer that is not made yet.

        Args:
            size: Bytes of the answer; a small one is none of memory's.

        Raises:
            RequestError: 503, it does not fit in time; 429 where the key's own are in the way.
        """
        if size >= LARGE_BYTES:
            await self.take(size * self._copies)
            self._answer = size * self._copies

    def expect(self, size: int) -> None:
        """Likewise where it is known to fit."""
        if size >= LARGE_BYTES:
            self.add(size * self._copies)
            self._answer = size * self._copies

    def made(self, size: int) -> None:
        """Hold an answer that is there, as far as nothing was reserved for it.

        Nothing is waited for: answers that wait would take the memory that they wait for.

        Args:
            size: Bytes of the answer.

        Raises:
            RequestError: 503, it does not fit; 429 where the key's own are in the way.
        """
        more = size * self._copies - self._answer
        if more > 0:
            self._memory.check(more, self._size, self._whose())
            self.add(more)
            self._answer += more

    def keep_answer(self) -> None:
        """Give back all but the answer."""
        gone = self._size - self._answer
        self._memory.give(gone, self._whose())
        self._size, self._data = self._answer, 0

    async def take_data(self, size: int) -> None:
        """Likewise for JSON that is to be read, until ``drop_data``.

        Raises:
            RequestError: 503, they do not fit in time.
        """
        await self.take(size)
        self._data += size

    def drop_data(self, kept: int = 0) -> None:
        """Give back what was read of JSON: nobody has it any more, but for so many bytes."""
        gone = max(0, self._data - kept)
        self._size -= gone
        self._memory.give(gone, self._whose())
        self._data -= gone

    def release(self) -> None:
        """Give all of it back."""
        if self._size:
            self._memory.give(self._size, self._whose())
            self._size = self._data = self._answer = 0


class Received:
    """Receives the body of a request, and holds it.

    Args:
        receive: ASGI's receive function.
        held: by the request.
        exchange: Exchange of the request, where the server is ours.
    """

    __slots__ = ("_exchange", "_held", "_receive")

    def __init__(self, receive: Receive, held: Held, exchange: Exchange | None) -> None:
        self._receive, self._held, self._exchange = receive, held, exchange

    async def __call__(self) -> Message:
        """Receive a part."""
        message = await self._receive()
        if size := len(message.get("body", b"")):
            await self._held.take(size)
        return message

    async def whole(self, limit: int) -> bytes | None:
        """Receive all of it at once; None where it has not come yet.

        Raises:
            RequestError: 413, it is larger than the limit.
        """
        exchange = self._exchange
        if exchange is None or (body := exchange.body()) is None:
            return None
        if len(body) > limit:
            raise too_large(limit)
        if body:
            await self._held.take(len(body))
        return body


def weigh(text: bytes) -> int:
    """Return how many bytes JSON takes once it is read, or a little more.

    Texts take what they are, or four times that where one character of them is wide.
    """
    objects = sum(size * _count(text, mark) for mark, size in _OBJECTS)
    # To look for two letters takes a hundred times as long as for the first of them.
    is_narrow = text.isascii() and not (b"\\" in text and b"\\u" in text)
    return (1 if is_narrow else 4) * len(text) + objects


def _count(text: bytes, mark: int) -> int:
    """Count a mark; a rare one by finding each, which is faster than to compare every letter."""
    at = -1
    for found in range(_RARE):
        at = text.find(mark, at + 1)
        if at < 0:
            return found
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == mark))


_HELD: ContextVar[Held] = ContextVar("held")


def hold(memory: InFlight, copies: int = 1) -> Held:
    """Return what a request holds, nothing yet; ``held`` finds it."""
    made = Held(memory, copies=copies)
    use(made)
    return made


def use(held: Held) -> None:
    """Let ``held`` find what a request holds in this task."""
    _HELD.set(held)


def held() -> Held:
    """Return what the request holds that is answered."""
    return _HELD.get()
