"""Answers that a client does not read: they count as its memory, and have their time."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from edgeinfer.runtime.serve.inflight import LARGE_BYTES, Held, InFlight

_log = logging.getLogger("edgeinfer.serve")

_LOOKS = 10
"""Times that is looked, in the time that a client has."""

LEAST = 64 << 10
"""Bytes that it takes in that time, or all that is left."""


class Unread:
    """What one connection was answered and has not taken.

    What was written at once stays until the last of it is taken, so that it counts until then.

    Args:
        transport: Transport of the connection, which may write no more for now.
        memory: Memory of all requests.
        share: whose share it counts for.
        seconds: after so long in which nothing was taken the connection is ended.
    """

    def __init__(self, transport: Any, memory: InFlight, share: bytes, seconds: float) -> None:
        self._transport, self._memory, self._share = transport, memory, share
        self._seconds, self._loop = seconds, asyncio.get_running_loop()
        self._size = self._left = transport.get_write_buffer_size()
        self._memory.add(self._size, share)
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds / _LOOKS, self._look)

    def end(self) -> None:
        """Count it no more: it was taken, or the connection is gone."""
        self._timer.cancel()
        self._memory.give(self._size, self._share)
        self._size = 0

    def _look(self) -> None:
        left = self._transport.get_write_buffer_size()
        if left <= self._left - LEAST:
            self._left, self._since = left, self._loop.time()
        if self._loop.time() - self._since >= self._seconds:
            self._transport.abort()
            return
        if left > self._size:
            self._memory.add(left - self._size, self._share)
            self._left += left - self._size
            self._size = left
        self._timer = self._loop.call_later(self._seconds / _LOOKS, self._look)


class UnreadCalls:
    """Calls of gRPC with an answer that is made and not taken.

    gRPC says neither how much of one was taken nor ends a call behind its answer, so that who does
    not take all of it in time loses the connection.

    Args:
        seconds: that a client has for an answer, and for each ``LEAST`` bytes of it.
        end: ends the connections to addresses as gRPC says them.
    """

    def __init__(self, seconds: float, end: Callable[[set[str]], None]) -> None:
        self._seconds, self._end = seconds, end
        self._until: dict[object, tuple[float, Callable[[], str]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, size: int, peer: Callable[[], str], most_s: float = math.inf) -> object:
        """Note that an answer was made; ``end`` takes what is returned.

        Args:
            size: Bytes of it.
            peer: says whose it is, until ``end``.
            most_s: seconds that it has at most, where that is less.
        """
        loop, call = asyncio.get_running_loop(), object()
        seconds = min(self._seconds * (1 + size // LEAST), most_s)
        self._until[call] = loop.time() + seconds, peer
        if self._timer is None:
            self._timer = loop.call_later(self._seconds / _LOOKS, self._look)
        return call

    def end(self, call: object) -> None:
        """Note that it was taken, or the client has left; twice is harmless."""
        self._until.pop(call, None)

    def _look(self) -> None:
        self._timer = None
        if not self._until:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if late := {peer() for until, peer in self._until.values() if until <= now}:
            self._end(late)
        self._timer = loop.call_later(self._seconds / _LOOKS, self._look)


class UnreadCall:
    """The memory of a call, given back when its answer was taken; a small one's when it is made.

    Args:
        context: Context of the call.
        held: its memory.
        calls: others.
    """

    __slots__ = ("_call", "_calls", "_context", "_held", "_is_over")

    def __init__(self, context: Any, held: Held, calls: UnreadCalls) -> None:
        self._context, self._held, self._calls = context, held, calls
        self._call: object = None
        self._is_over = False
        context.add_done_callback(self._over)

    def made(self, size: int, most_s: float = math.inf) -> None:
        """Hand an answer to gRPC.

        Args:
            size: Bytes of it; 0 for an error.
            most_s: seconds that it has at most until it is taken.

        Raises:
            RequestError: there is no memory for it.
        """
        if size >= LARGE_BYTES:
            self._held.made(size)
            self._held.keep_answer()
        else:
            self._held.release()
        if self._is_over:
            self._held.release()
        else:
            self._call = self._calls.begin(size, self._context.peer, most_s)

    def _over(self, _: Any) -> None:
        self._is_over = True
        self._calls.end(self._call)
        self._held.release()


def end_connections(port: int, peers: Iterable[str]) -> None:
    """End connections that this process has taken.

    Args:
        port: that it listens on.
        peers: whose, as gRPC says it: ``ipv4:1.2.3.4:5``, ``ipv6:[::1]:5``.
    """
    wanted = {place_of(peer) for peer in peers}
    for each in sockets_of(port):
        with each:
            is_wanted = False
            with contextlib.suppress(OSError):
                is_wanted = caller_of(each) in wanted
            if is_wanted and end(each):
                _log.info("a client took no answer, and its connection was ended")


def end(connection: socket.socket) -> bool:
    """End a connection; False where that is done already."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
        return True
    return False


def caller_of(connection: socket.socket) -> tuple[str, int]:
    """Return the address and port at the other end.

    Raises:
        OSError: there is none.
    """
    host, port = connection.getpeername()[:2]
    return plain_host(host), port


def place_of(peer: str) -> tuple[str, int]:
    """Return the address and port of who calls, as gRPC says it."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return plain_host(host.strip("[]")), int(port) if port.isdigit() else 0


def plain_host(host: str) -> str:
    """Return an address without its zone, one of IPv4 as such."""
    host = host.partition("%")[0]
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host)
        return str(getattr(found, "ipv4_mapped", None) or found)
    return host


def sockets_of(port: int) -> Iterator[socket.socket]:
    """Yield what this process has taken at a port, each opened once more, where systems say it."""
    for each in _sockets():
        is_one = False
        with contextlib.suppress(OSError):
            is_one = each.family in (socket.AF_INET, socket.AF_INET6)
            is_one = is_one and each.getsockname()[1] == port
        if is_one:
            yield each
        else:
            each.close()


def _sockets() -> Iterator[socket.socket]:
    """Yield the sockets of this process, where the system lists them, each opened once more."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
            break
    else:
        return
    for name in names:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield socket.socket(fileno=os.dup(int(name)))
