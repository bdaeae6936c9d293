"""Who calls over gRPC: how many calls and connections one has, and which of them give way.

gRPC takes connections and calls by itself, as many as its options say for all together, so that one
client could have all of them. What a call takes is counted where it begins, for its key, or for its
network as long as no key is known. Connections are looked at as the system lists them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter

from edgeinfer.runtime.serve.connections import network
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.keys import count_share
from edgeinfer.runtime.serve.turns import own_of
from edgeinfer.runtime.serve.unread import caller_of, end, place_of, sockets_of

_log = logging.getLogger("edgeinfer.serve")

_LOOK_S, _SOON_S = 1.0, 0.1
"""Seconds between two looks, and where many connections are open."""


class CallPlaces:
    """Slots for calls that nobody waits for; one owner has a half of them at most.

    Args:
        most: Number of slots.
        what: takes them.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what, self._all = most, what, 0
        self._of: Counter[bytes] = Counter()

    def take(self, share: bytes) -> None:
        """Take a place, which ``give`` gives back.

        Args:
            share: whose share it is; empty for nobody's.

        Raises:
            RequestError: none is free: 503; 429 where it has its share.
        """
        if share and self._of[share] >= own_of(self._most):
            text = f"{own_of(self._most)} {self._what}, all that one client of several may have"
            raise RequestError(429, text, 1.0)
        if self._all >= self._most:
            raise RequestError(503, f"{self._most} {self._what}", 1.0)
        self._all += 1
        count_share(self._of, share, 1)

    @property
    def is_single(self) -> bool:
        """Whether one call has a place, and no more."""
        return self._all == 1

    def give(self, share: bytes) -> None:
        """Give a place back."""
        self._all -= 1
        count_share(self._of, share, -1)


class CallConnections:
    """The connections of gRPC, of which those without a call give way where there are many.

    One network keeps a half of them at most, and all together three quarters: first who has never
    called is closed, the oldest first, then who has rested longest.

    Args:
        most: that gRPC takes.

    Attributes:
        port: that they come to.
    """

    def __init__(self, most: int) -> None:
        self._most, self.port = most, 0
        self._busy: Counter[str] = Counter()
        # In the order in which they began to be so.
        self._rested: dict[str, None] = {}
        self._seen: dict[tuple[str, int], None] = {}
        self._looking: asyncio.Task[None] | None = None

    def asks(self, peer: str) -> None:
        """Note that a call began.

        Args:
            peer: whose, as gRPC says it.
        """
        self._busy[peer] += 1
        self._rested.pop(peer, None)

    def rests(self, peer: str) -> None:
        """Note that one ended."""
        self._busy[peer] -= 1
        if self._busy[peer]:
            return
        del self._busy[peer]
        self._rested[peer] = None
        if len(self._rested) > self._most:
            del self._rested[next(iter(self._rested))]

    def start(self, port: int) -> None:
        """Begin to look; ``stop`` ends it."""
        self.port = port
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            is_crowded = await loop.run_in_executor(None, self._is_crowded)
            if is_crowded and (count := await loop.run_in_executor(None, self._make_room)):
                _log.info("%d connections of gRPC without a call were ended for others", count)
            await asyncio.sleep(_SOON_S if is_crowded else _LOOK_S)

    def _is_crowded(self) -> bool:
        """Whether there may be many: files are fast to count."""
        for folder in ("/proc/self/fd", "/dev/fd"):
            with contextlib.suppress(OSError):
                return len(os.listdir(folder)) > own_of(self._most)
        return False

    def _make_room(self) -> int:
        """End connections until there is room; return how many."""
        with contextlib.ExitStack() as stack:
            found: dict[tuple[str, int], socket.socket] = {}
            for each in sockets_of(self.port):
                stack.enter_context(each)
                with contextlib.suppress(OSError):
                    found[caller_of(each)] = each
            ended = 0
            for place in self.surplus([*found]):
                ended += end(found[place])
            return ended

    def surplus(self, addresses: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return which connections give way.

        Args:
            addresses: all that are open, by address and port.
        """
        there = set(addresses)
        self._seen = {p: None for p in (*self._seen, *addresses) if p in there}
        rested = [p for p in map(place_of, [*self._rested]) if p in there]
        called = {*rested, *map(place_of, [*self._busy])}
        idle = [*(p for p in self._seen if p not in called), *rested]
        networks = Counter(network(host) for host, _ in there)
        left, given = len(there), []
        for place in idle:
            whose = network(place[0])
            if networks[whose] > own_of(self._most) or left > self._most * 3 // 4:
                networks[whose] -= 1
                left -= 1
                given.append(place)
        return given
