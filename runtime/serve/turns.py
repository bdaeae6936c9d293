"""What so many requests do at once, of which one key of several has a half at most."""

from __future__ import annotations

import asyncio
from collections import Counter

from edgeinfer.runtime.serve.http import RequestError, in_time
from edgeinfer.runtime.serve.inflight import WAIT_S

_SHARES = 2
"""One key of several has one of so many parts."""

_OPEN = "streams are open (--max-requests-mb)"


def _own(most: int) -> int:
    return max(1, most // _SHARES)


class Turns:
    """Places that are waited for a while.

    Args:
        most: places.
        what: is done in them.
    """

    def __init__(self, most: int, what: str) -> None:
        self._all, self._most, self._what = asyncio.Semaphore(most), most, what
        self._of: dict[bytes, asyncio.Semaphore] = {}

    async def take(self, share: bytes) -> None:
        """Take a place, which ``give`` gives back.

        Args:
            share: whose share it is; empty for nobody's.

        Raises:
            RequestError: none becomes free in time: 503; 429 where the key has its share.
        """
        if share:
            own = self._of.setdefault(share, asyncio.Semaphore(_own(self._most)))
            await _taken(own, 429, f"too many {self._what} of this key")
        try:
            await _taken(self._all, 503, f"too many {self._what}")
        except BaseException:
            if share:
                self._of[share].release()
            raise

    def give(self, share: bytes) -> None:
        """Give a place back."""
        self._all.release()
        if share:
            self._of[share].release()


async def _taken(places: asyncio.Semaphore, status: int, text: str) -> None:
    if places.locked():
        late = RequestError(status, f"{text} at once", 1.0)
        await in_time(places.acquire(), WAIT_S, late)
    else:
        await places.acquire()


class OpenStreams:
    """The streams that are open; nobody waits for a place.

    Args:
        most: that may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: Counter[bytes] = Counter()

    def take(self, share: bytes) -> None:
        """Take a place, which ``give`` gives back.

        Raises:
            RequestError: none is free: 503; 429 where the key has its share.
        """
        if share and self._of[share] >= _own(self._most):
            text = f"{_own(self._most)} {_OPEN}, all that one key of several may have"
            raise RequestError(429, text, 1.0)
        if self._of.total() >= self._most:
            raise RequestError(503, f"{self._most} {_OPEN}", 1.0)
        self._of[share] += 1

    def give(self, share: bytes) -> None:
        """Give a place back."""
        self._of[share] -= 1
