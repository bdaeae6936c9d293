"""HTTP of a connection, with limits to how long and how large the head of a request may be."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 << 10
"""Bytes of a request line and its headers, and of all else that is no body."""

_SHARE = 8
"""Bytes of a body in chunks that allow one more of what stands between them."""

_TEXT = b'{"error": "the head of the request is larger than 64 KiB"}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_TEXT), _TEXT)
)


class Joined:
    """A transport that writes what one turn of the loop gives it at once.

    uvicorn writes head and body of an answer one after the other, and each write is a call of the
    system, which costs more than all else of a small answer.

    Args:
        transport: of the connection.
        loop: that it belongs to.
    """

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Write what waits, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            # A client that has left gets nothing; the transport would warn of each attempt.
            if not self._transport.is_closing():
                self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def protocol(seconds: float) -> type[HttpToolsProtocol]:
    """Return a protocol that closes connections whose next head does not come in time.

    uvicorn limits how long a connection may rest between requests, but not how long one may take
    to send its first, so that clients that send a byte now and then keep connections for ever. Its
    parser keeps a header, an address or a trailer of any size.

    Args:
        seconds: from the first byte, or from the connection, to the end of the head.
    """

    class Protocol(HttpToolsProtocol):
        _head: asyncio.TimerHandle | None = None
        _around = _inside = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(cast("asyncio.Transport", Joined(transport, self.loop)))
            self._head = self.loop.call_later(seconds, self._late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._arrived()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self._around += len(data)
            super().data_received(data)
            if self._around > MOST_HEAD + self._inside // _SHARE:
                self.transport.write(_TOO_LARGE)
                self.transport.close()

        def on_body(self, body: bytes) -> None:
            self._around -= len(body)
            self._inside += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._around = self._inside = 0
            super().on_message_complete()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._head is None:
                self._head = self.loop.call_later(seconds, self._late)

        def on_headers_complete(self) -> None:
            self._arrived()
            super().on_headers_complete()

        def _arrived(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _late(self) -> None:
            self._head = None
            if not self.transport.is_closing():
                self.transport.close()

    return Protocol
