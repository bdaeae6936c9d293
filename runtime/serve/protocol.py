"""HTTP of a connection, with a limit to how long the head of a request may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


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
            super().connection_made(transport)
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
