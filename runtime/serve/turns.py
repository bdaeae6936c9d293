"""What so many requests do at once, of which one key of several has a half at most."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from edgeinfer.runtime.pool import Pool
from edgeinfer.runtime.serve.http import RequestError, in_time
from edgeinfer.runtime.serve.inflight import WAIT_S
from edgeinfer.runtime.serve.keys import sharer

T = TypeVar("T")

_SHARES = 2
"""One key of several has one of so many parts."""

_OPEN = "streams are open (--max-requests-mb)"


def own_of(most: int) -> int:
    """Return how many of so many slots one key of several may have."""
    return max(1, most // _SHARES)


class SharedPool(Pool):
    """Threads of which each key of several has its share."""

    async def run(self, function: Callable[[], T], owner: bytes = b"") -> T:
        """Call a function for the key of the request that is answered."""
        return await super().run(function, owner or sharer())


class Turns:
    """Slots that are waited for a while.

    Args:
        most: Number of slots.
        what: is done in them.
    """

    def __init__(self, most: int, what: str) -> None:
        self._all, self._most, self._what = _Slots(most), most, what
        self._of: dict[bytes, _Slots] = {}

    async def take(self, share: bytes) -> None:
        """Take a place, which ``give`` gives back.

        Args:
            share: whose share it is; empty for nobody's.

        Raises:
            RequestError: none becomes free in time: 503; 429 where the key has its share.
        """
        if share:
            own = self._of.setdefault(share, _Slots(own_of(self._most)))
            if not own.is_taken():
                await own.wait(RequestError(429, f"too many {self._what} of this key at once", 1.0))
        if self._all.is_taken():
            return
        try:
            await self._all.wait(RequestError(503, f"too many {self._what} at once", 1.0))
        except BaseException:
            if share:
                self._of[share].give()
            raise

    def give(self, share: bytes) -> None:
        """Give a place back."""
        self._all.give()
        if share:
            self._of[share].give()


class _Slots:
    """As a semaphore of asyncio, without a coroutine where one is free.

    Args:
        count: Number of slots.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def is_taken(self) -> bool:
        """Take one that is free, which ``give`` gives back; False where none is."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self, late: RequestError) -> None:
        """Take the next one that is given back to nobody before.

        Raises:
            RequestError: ``late``, none was in time.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await in_time(turn, WAIT_S, late)
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                # It came together with the end of the wait.
                self.give()
            raise

    def give(self) -> None:
        """Give one back, to who waits for the longest time."""
        while self._waiting:
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(None)
                return
        self._free += 1


class Callers:
    """Those whose key nobody has checked: whoever waits the longest gives way to one that comes.

    Args:
        most: that may wait; those of one network, a half of them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[asyncio.Task[object], str] = {}

    @contextlib.contextmanager
    def waiting(self, network: str) -> Iterator[None]:
        """Be one of them, in a task that is cancelled when it gives way.

        Raises:
            RequestError: 503, it gave way.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("requests are received within tasks")
        own = [each for each, whose in self._waiting.items() if whose == network]
        if len(own) >= own_of(self._most):
            self._end(own[0])
        elif len(self._waiting) >= self._most:
            self._end(next(iter(self._waiting)))
        self._waiting[task] = network
        try:
            yield
        except asyncio.CancelledError as e:
            if task in self._waiting:
                raise
            # Before Python 3.11 to catch it is enough.
            getattr(task, "uncancel", int)()
            raise RequestError(503, "others came meanwhile, and this one sent nothing", 1.0) from e
        finally:
            self._waiting.pop(task, None)

    def _end(self, task: asyncio.Task[object]) -> None:
        del self._waiting[task]
        task.cancel()


class StreamSteps:
    """The requests of one stream, of which those of a sequence run in the order they came in."""

    def __init__(self) -> None:
        self.latest: asyncio.Future[None] | None = None
        self.of: dict[object, asyncio.Future[None]] = {}

    def next(self) -> StreamStep:
        """Return the place of the request that has come."""
        return StreamStep(self)


class StreamStep:
    """The place of one request.

    It is read along with others, and a large one is read after those that came behind it.

    Args:
        steps: Requests of its stream.
    """

    def __init__(self, steps: StreamSteps) -> None:
        loop = asyncio.get_running_loop()
        self._steps, self._before = steps, steps.latest
        self._is_read, self._is_over = loop.create_future(), loop.create_future()
        self._sequence: object = None
        steps.latest = self._is_read

    async def begin(self, sequence: object) -> None:
        """Wait for what came before it in its sequence.

        Args:
            sequence: that it is a step of; None for none, which waits for nothing.
        """
        if sequence is None:
            return
        if self._before is not None:
            await self._before
        earlier, self._sequence = self._steps.of.get(sequence), sequence
        self._steps.of[sequence] = self._is_over
        _end(self._is_read)
        if earlier is not None:
            await earlier

    def end(self) -> None:
        """Let those behind it run: it was run, or never will be."""
        _end(self._is_over)
        if self._steps.of.get(self._sequence) is self._is_over:
            del self._steps.of[self._sequence]
        if self._before is None or self._before.done():
            _end(self._is_read)
        else:
            self._before.add_done_callback(lambda _: _end(self._is_read))


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class OpenStream:
    """A stream that is open.

    Args:
        share: whose share it counts for.
        end: ends it, while nothing is under way in it.

    Attributes:
        under_way: messages without an answer.
        since: time of the loop at which it last took or gave one.
    """

    def __init__(self, share: bytes, end: Callable[[], None]) -> None:
        self.share, self.end, self.under_way = share, end, 0
        self.since = asyncio.get_running_loop().time()

    def asks(self) -> None:
        """Note that a message came."""
        self.under_way += 1

    def answers(self) -> None:
        """Note that one was answered."""
        self.under_way -= 1
        self.since = asyncio.get_running_loop().time()


class OpenStreams:
    """The streams that are open; nobody waits for a place.

    Args:
        most: that may be.
        rest_s: after so much silence a stream gives way where there is no other place.
    """

    def __init__(self, most: int, rest_s: float) -> None:
        self._most, self._rest_s = most, rest_s
        self._open: set[OpenStream] = set()

    def take(self, share: bytes, end: Callable[[], None]) -> OpenStream:
        """Take a place, which ``give`` gives back.

        Raises:
            RequestError: none is free: 503; 429 where the key has its share.
        """
        own = [stream for stream in self._open if stream.share == share]
        if share and len(own) >= own_of(self._most):
            text = f"{own_of(self._most)} {_OPEN}, all that one key of several may have"
            self._make_room(own, RequestError(429, text, 1.0))
        elif len(self._open) >= self._most:
            self._make_room([*self._open], RequestError(503, f"{self._most} {_OPEN}", 1.0))
        self._open.add(stream := OpenStream(share, end))
        return stream

    def _make_room(self, streams: list[OpenStream], problem: RequestError) -> None:
        late = asyncio.get_running_loop().time() - self._rest_s
        silent = [each for each in streams if not each.under_way and each.since <= late]
        if not silent:
            raise problem
        longest = min(silent, key=lambda each: each.since)
        self.give(longest)
        longest.end()

    def give(self, stream: OpenStream) -> None:
        """Give a place back; twice is harmless."""
        self._open.discard(stream)
