"""Connections of a server: how many there may be, whose they are, and which of them give way.

Who connects takes a descriptor before anybody knows a key of his. So one network has a share of
them, and where nearly all are taken the oldest one that has asked nothing is closed for each that
comes, then the one that has rested longest: a client that is answered keeps its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from edgeinfer.runtime.serve.reading import feed

_log = logging.getLogger("edgeinfer.serve")

_LEAST, _MANY = 512, 1 << 16

_SOON_S, _LATER_S = 0.002, 0.25
"""Seconds until it is looked whether a client of TLS has taken what it was sent; doubled."""

_MOST_LENT = 16 << 20
"""Bytes of all bodies that are waited for, whose senders have shown no key yet."""


class Door(Protocol):
    """A connection that can be ended."""

    def end(self) -> None:
        """End it at once."""
        ...


class Connections:
    """Those of one server, on its event loop.

    Args:
        files: that this process may open.

    Attributes:
        share: Connections that one network may have.
        most: Connections in all.
        lent: Bytes of bodies that are waited for.
        is_single: whether one is open, and no more.
    """

    def __init__(self, files: int) -> None:
        self.share, self.most, self.lent = files // 4, files * 3 // 4, 0
        self.is_single = False
        self._networks: Counter[str] = Counter()
        self._open: dict[Door, str] = {}
        # In the order in which they began to be so.
        self._silent: dict[Door, None] = {}
        self._resting: dict[Door, None] = {}
        self._is_told = False

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, door: Door, address: str) -> bool:
        """Take in a connection that has asked nothing yet; False where it may not come."""
        whose = network(address)
        if self._networks[whose] >= self.share:
            return False
        if len(self._open) >= self.most and not self._made_room():
            return False
        self._networks[whose] += 1
        self._open[door] = whose
        self.is_single = len(self._open) == 1
        self._silent[door] = None
        return True

    def leave(self, door: Door) -> None:
        """Forget a connection; may be called again."""
        whose = self._open.pop(door, None)
        if whose is None:
            return
        self.is_single = len(self._open) == 1
        self._silent.pop(door, None)
        self._resting.pop(door, None)
        self._networks[whose] -= 1
        if not self._networks[whose]:
            del self._networks[whose]

    def asks(self, door: Door) -> None:
        """Note that the head of a request has come."""
        self._silent.pop(door, None)
        self._resting.pop(door, None)

    def rests(self, door: Door) -> None:
        """Note that all that a connection requested is answered."""
        if door in self._open:
            self._resting[door] = None

    def lend(self, size: int) -> bool:
        """Let a body be waited for; False where others take what memory there is for that."""
        if self.lent + size > _MOST_LENT:
            return False
        self.lent += size
        return True

    def _made_room(self) -> bool:
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "%d connections are open, as many as may be: for each that comes from now on, the "
                "oldest that asks nothing is closed",
                self.most,
            )
        for idle in (self._silent, self._resting):
            if idle:
                door = next(iter(idle))
                self.leave(door)
                door.end()
                return True
        return False


def network(address: str) -> str:
    """Return whose an address is: who has one of IPv6 has the 2^64 next to it."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or int(found) >> 64)


def files() -> int:
    """Return how many files this process may open, which is raised to what the system lets it."""
    try:
        import resource
    except ImportError:  # Windows
        return _LEAST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY if hard == resource.RLIM_INFINITY else min(hard, _MANY)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(_LEAST, _MANY if soft == resource.RLIM_INFINITY else min(soft, _MANY))


class Handshake(asyncio.Protocol):
    """A connection until TLS is agreed upon; from then on another protocol has it.

    asyncio's own servers of TLS tell nobody of a connection before that, so that those which never
    end their handshakes would be counted nowhere.

    Args:
        connections: Connections of the server.
        context: the certificate and its key.
        seconds: until it must be there.
        make: makes the protocol behind it.
    """

    def __init__(
        self,
        connections: Connections,
        context: ssl.SSLContext,
        seconds: float,
        make: Callable[[], Any],
    ) -> None:
        self._connections, self._context, self._seconds = connections, context, seconds
        self._make, self._loop = make, asyncio.get_running_loop()
        self._transport: Any = None
        self._early = b""
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin, unless there are too many."""
        self._transport = transport
        if not self._connections.enter(self, address_of(transport)):
            transport.abort()
            return
        # TLS reads from the next turn on; uvloop begins to read now whatever it is asked.
        transport.pause_reading()
        self._shaking = self._loop.create_task(self._shake())

    def data_received(self, data: bytes) -> None:
        """Keep what came before TLS reads."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; from TLS on its own protocol takes its place."""
        self._connections.leave(self)

    def end(self) -> None:
        """End it at once."""
        self._transport.abort()

    async def _shake(self) -> None:
        waiting = _Waiting()
        try:
            begun = asyncio.ensure_future(
                self._loop.start_tls(
                    self._transport,
                    waiting,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=self._seconds,
                )
            )
            await asyncio.sleep(0)
            if self._early:
                feed(self._transport.get_protocol(), self._early)
            secured: Any = await begun
        except (OSError, RuntimeError, asyncio.TimeoutError):
            # Errors of TLS concern nobody; the client has left.
            self._transport.abort()
            return
        finally:
            self._connections.leave(self)
        if secured is None or waiting.is_lost:
            return
        protocol = self._make()
        secured.set_protocol(protocol)
        protocol.connection_made(_Secured(secured, self._transport, protocol))
        feed(protocol, waiting.parts)


class _Secured:
    """A transport of TLS, and the one below it: what a client leaves unread waits there.

    Args:
        transport: that is written to.
        below: where it writes; it tells TLS alone when it is full.
        protocol: that writes.
    """

    def __init__(self, transport: Any, below: Any, protocol: asyncio.BufferedProtocol) -> None:
        self._transport, self._below, self._protocol = transport, below, protocol
        self._loop, self._waits_s = asyncio.get_running_loop(), 0.0

    def set_write_buffer_limits(self, high: int) -> None:
        """Set from how many bytes on ``pause_writing`` is called."""
        self._transport.set_write_buffer_limits(high=high)
        self._below.set_write_buffer_limits(high=high)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are written and not sent."""
        both = self._transport, self._below
        return sum(int(each.get_write_buffer_size()) for each in both)

    def write(self, data: bytes) -> None:
        """Write."""
        self._transport.write(data)
        self._look()

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Write several parts."""
        self._transport.writelines(parts)
        self._look()

    def _look(self) -> None:
        if not self._waits_s and self._below.get_write_buffer_size():
            self._protocol.pause_writing()
            self._wait(_SOON_S)

    def _wait(self, seconds: float) -> None:
        self._waits_s = seconds
        self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        if self.get_write_buffer_size() and not self._below.is_closing():
            self._wait(min(2 * self._waits_s, _LATER_S))
        else:
            self._waits_s = 0.0
            self._protocol.resume_writing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Waiting(asyncio.Protocol):
    """Keeps what came together with the end of a handshake."""

    def __init__(self) -> None:
        self.parts, self.is_lost = b"", False

    def data_received(self, data: bytes) -> None:
        self.parts += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def address_of(transport: Any) -> str:
    """Return the address of who is at the other end; empty where there is none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
