"""HTTP of a connection, with a limit to how long the head of a request may take."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


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
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def protocol(seconds: float) -> type[HttpToolsProtocol]:
    """Return a protocol that closes connections whose next head does not come in time.

    uvicorn limits how long a connection may rest between requests, but not how long one may take
    to send its first, so that clients that send a byte now and then keep connections for ever.

    Args:
        seconds: from the first byte, or from the connection, to the end of the head.
    """

    class Protocol(HttpToolsProtocol):
        _head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(cast("asyncio.Transport", Joined(transport, self.loop)))
            self._head = self.loop.call_later(seconds, self._late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._arrived()
            super().connection_lost(exc)

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
