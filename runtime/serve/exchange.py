"""One request and its answer where both are whole, without ASGI's messages between.

ASGI's messages cost a small request more than its tensors do: two calls to write an answer, each of
its headers checked, two turns of the event loop until it is sent. Where an answer is whole it is
written here by one call instead; streams, and servers that are not ours, speak ASGI.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

KEY = "edgeinfer.exchange"
"""Where it is found in the scope."""


class Arrivals:
    """Counts requests that have come whole and that nobody has read yet.

    Who sees none may begin to work: nothing that came together with it is still to come.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Exchange:
    """A request and its answer.

    Args:
        cycle: Request cycle of uvicorn.
        arrivals: Arrivals of its server.
    """

    __slots__ = ("_arrivals", "_cycle", "_is_coming")

    def __init__(self, cycle: Any, arrivals: Arrivals) -> None:
        self._cycle, self._arrivals, self._is_coming = cycle, arrivals, False

    def came(self) -> None:
        """Count it as arrived; by the protocol, once the body is whole."""
        self._is_coming = True
        self._arrivals.count += 1

    def went(self) -> None:
        """Count it no more; may be called again."""
        if self._is_coming:
            self._is_coming = False
            self._arrivals.count -= 1

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

    def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
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
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        parts.append(body)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = cycle.chunked_encoding = False
        cycle.message_event.set()
        cycle.transport.write_now(b"".join(parts))
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True
