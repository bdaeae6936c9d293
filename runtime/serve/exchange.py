"""One request and its answer where both are whole, without ASGI's messages between.

ASGI's messages cost a small request more than its tensors do: two calls to write an answer, each of
its headers checked, two turns of the event loop until it is sent. Where an answer is whole it is
written here by one call instead; streams, and servers that are not ours, speak ASGI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from edgeinfer.runtime.serve.keys import sharer
from edgeinfer.runtime.serve.known_heads import KnownHead

KEY = "edgeinfer.exchange"
"""Where it is found in the scope."""

SOCKET = "edgeinfer.socket"
"""Where the scope of a request has the socket over which it came."""

Headers = Iterable[tuple[bytes, bytes]]


_APART = 64 << 10
"""From so many bytes on a body is written as it is, and not copied behind its head."""


def whole_answer(status: int, headers: Headers, body: bytes, *, is_kept: bool) -> tuple[bytes, ...]:
    """Return an answer as it is sent, in one part or two.

    Args:
        status: HTTP status.
        headers: with the content's length; made here, not by a client.
        body: all of it.
        is_kept: whether the connection is used again.
    """
    parts = [STATUS_LINE[status]]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"\r\n" if is_kept else b"connection: close\r\n\r\n")
    if len(body) >= _APART:
        return b"".join(parts), body
    parts.append(body)
    return (b"".join(parts),)


class Exchange:
    """A request and its answer.

    Args:
        cycle: Request cycle of uvicorn.
    """

    __slots__ = ("_cycle",)

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle

    def body(self) -> bytes | None:
        """Take the body; None where it is not whole, and is to be received in parts."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        cycle.flow.resume_reading()
        found = bytes(cycle.body)
        cycle.body = b""
        # Read as by ``receive``: who receives from now on waits for the client to leave.
        cycle.message_event.clear()
        return found

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write an answer; False where it has to go by messages.

        Args:
            status: HTTP status.
            headers: with the content's length; made here, not by a client.
            body: all of it.
        """
        cycle = self._cycle
        begun = cycle.response_started or cycle.disconnected or cycle.flow.write_paused
        if begun or cycle.scope["method"] == "HEAD":
            return False
        every = (*cycle.default_headers, *headers)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = cycle.chunked_encoding = False
        cycle.message_event.set()
        cycle.transport.share = sharer()
        cycle.transport.write_now(*whole_answer(status, every, body, is_kept=cycle.keep_alive))
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


class WholeRequest:
    """A request that came in one piece; to uvicorn the cycle of its connection.

    Args:
        connection: Protocol of the connection.
        keep_alive: whether the connection is used again.

    Attributes:
        url: that was asked.
        headers: by name in small letters, as ASGI has them.
        body: all of it.
        left: is called where the client leaves before the answer.
        share: whose share it counts for.
        head: where its head may come again.
        is_alone: whether nobody else could ask now.
    """

    __slots__ = (
        *("_connection", "body", "disconnected", "head", "headers", "is_alone", "keep_alive"),
        *("left", "response_complete", "share", "url"),
    )

    more_body = False

    def __init__(self, connection: Any, body: bytes | memoryview, keep_alive: bool) -> None:
        self._connection, self.body, self.keep_alive = connection, body, keep_alive
        self.url: bytes = connection.url
        self.headers: list[tuple[bytes, bytes]] = connection.headers
        self.left: Callable[[], None] | None = None
        self.share = b""
        self.head: KnownHead | None = connection.asked
        self.is_alone: bool = connection.doors.is_single
        self.disconnected = self.response_complete = False

    @property
    def message_event(self) -> WholeRequest:
        """What uvicorn sets where something has happened."""
        return self

    def set(self) -> None:
        """Tell that the client left, where it did."""
        if self.disconnected and not self.response_complete and self.left is not None:
            self.left()

    def send(self, *answer: bytes) -> None:
        """Write the answer, head and all."""
        # The connection has it until another one comes.
        self.response_complete, self.body = True, b""
        connection = self._connection
        connection.transport.share = self.share
        connection.transport.write_now(*answer)
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that every answer has now."""
        found: list[tuple[bytes, bytes]] = self._connection.server_state.default_headers
        return found

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Write the answer.

        Args:
            status: HTTP status.
            headers: with the content's length; made here, not by a client.
            body: all of it.
        """
        every = (*self.default_headers, *headers)
        self.send(*whole_answer(status, every, body, is_kept=self.keep_alive))
