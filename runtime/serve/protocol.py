"""HTTP of a connection, with limits to how long and how large the head of a request may be."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

import httptools
import numpy as np
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from edgeinfer.runtime.serve.connections import Connections, Handshake, address_of, files
from edgeinfer.runtime.serve.exchange import KEY, SOCKET, Exchange, WholeRequest
from edgeinfer.runtime.serve.http import LENGTH, number
from edgeinfer.runtime.serve.inflight import InFlight
from edgeinfer.runtime.serve.keys import sharer
from edgeinfer.runtime.serve.known_heads import TRIES, KnownHead, known_head, without_upgrade
from edgeinfer.runtime.serve.reading import HEAD_BYTES, BodyReader, RequestBody
from edgeinfer.runtime.serve.unread import Unread

MOST_HEAD = 64 << 10
"""Bytes of a request line and its headers, and of all else that is no body."""

MOST_AHEAD = 32
"""Requests that a client may send before the first of them is answered."""

MOST_EARLY, SOON_S = 1 << 20, 0.05
"""Bytes of a body that is waited for before a request is begun, and seconds for which it is."""

ROOM_BYTES = 256 << 10
"""Bytes that are read at once of bodies that nobody waits for."""

_IS_LENIENT = hasattr(httptools.HttpRequestParser, "set_dangerous_leniencies")
"""Whether uvicorn lets requests come behind one that closes the connection."""

_SHARE = 8
"""Bytes of a body in chunks that allow one more of what stands between them."""

_TEXT = b'{"error": "the head of the request is larger than 64 KiB"}'
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_TEXT), _TEXT)
)


class RequestTaker(Protocol):
    """Answers requests that came whole."""

    def take(self, request: WholeRequest) -> bool:
        """Answer one, soon; False leaves it to ASGI, and nothing has happened."""
        ...


class TooManyAheadError(Exception):
    """A client sends requests and waits for none."""


class _Seldom(logging.Filter):
    """Lets through one line in ten seconds of what anybody can provoke without a key.

    Requests that were under way for too long when the server stopped are counted in a line of
    uvicorn's; a trace of each says nothing more.
    """

    _WORDS = ("Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket")

    def __init__(self) -> None:
        super().__init__()
        self._at = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False
        if not str(record.msg).startswith(self._WORDS):
            return True
        now = time.monotonic()
        is_due = now - self._at >= _APART_S
        if is_due:
            self._at = now
        return is_due


_APART_S = 10.0
_SELDOM = _Seldom()


class Joined:
    """A transport that writes what one turn of the loop gives it at once.

    uvicorn writes head and body of an answer one after the other, and each write is a call of the
    system, which costs more than all else of a small answer.

    Args:
        transport: Transport of the connection.
        loop: that it belongs to.

    Attributes:
        share: whose share what was written last counts for.
        is_closing: says whether nothing more is sent.
    """

    __slots__ = ("_loop", "_parts", "_transport", "is_closing", "share")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self.share = transport, loop, b""
        self.is_closing: Callable[[], bool] = transport.is_closing
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this turn."""
        if not self._parts:
            self.share = sharer()
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_now(self, *parts: bytes) -> None:
        """Write, after what waits; several parts are not joined."""
        if self._parts:
            self._flush()
        if self.is_closing():
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

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


class _Protocol(HttpToolsProtocol):
    """One connection; ``protocol`` makes the class of a server.

    Attributes:
        seconds: until a head must be there.
        taker: answers what came whole; None where ASGI answers all.
        doors: Connections of the server.
        room: what they are read into.
        patience: memory that answers count for until they are read, and seconds for that.
        body: what is waited for; None where the parser reads.
        inside: Bytes of a body that were parsed.
        asked: the head of what is waited for or answered, where it is known.
    """

    seconds: ClassVar[float]
    taker: ClassVar[RequestTaker | None]
    doors: ClassVar[Connections]
    room: ClassVar[memoryview]
    patience: ClassVar[tuple[InFlight, float] | None]
    body: RequestBody | None = None
    _head: asyncio.TimerHandle | None = None
    _around = inside = 0
    _is_open = False
    _rest: asyncio.TimerHandle | None = None
    _since: float | None = None
    _early: bytes | None = None
    _is_between, _is_late = True, False
    _known: KnownHead | None = None
    _tries = TRIES
    _data: bytes | memoryview | None = None
    asked: KnownHead | None = None
    _soon: asyncio.TimerHandle | None = None
    _awaited = 0.0
    _unread: Unread | None = None
    _plain = b""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast("asyncio.Transport", Joined(transport, self.loop)))
        if self.patience is not None:
            # Whatever a client leaves unread counts, and has its time. TLS is never below zero.
            transport.set_write_buffer_limits(high=1)
        if not self.doors.enter(self, address_of(transport)):
            transport.abort()
            return
        self._head = self.loop.call_later(self.seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._taken_back()
        self.doors.leave(self)
        for timer in (self._rest, self._soon):
            if timer is not None:
                timer.cancel()
        self._read_on()
        super().connection_lost(exc)
        # Both hold each other.
        self.cycle = None  # type: ignore[assignment]

    def pause_writing(self) -> None:
        """Count what the client does not read."""
        super().pause_writing()
        if self.patience is not None and self._unread is None:
            (memory, seconds), transport = self.patience, cast("Joined", self.transport)
            self._unread = Unread(transport, memory, transport.share, seconds)

    def resume_writing(self) -> None:
        """Count it no more, unless there is some below TLS, which tells of its own alone."""
        if self.patience is not None and self.transport.get_write_buffer_size():
            return
        self._read_on()
        super().resume_writing()

    def _read_on(self) -> None:
        unread, self._unread = self._unread, None
        if unread is not None:
            unread.end()

    def data_received(self, data: bytes | memoryview) -> None:
        if self.transport.is_closing():
            return
        known = self._known
        if known is not None and self._is_between and self._is_next and known.begins(data):
            self._again(known, data)
        else:
            self._parse(data)

    def expected(self) -> RequestBody | None:
        """Return what the next request is read to, where it will be like the one before."""
        known = self._known
        if known is None or known.length < HEAD_BYTES or not (self._is_between and self._is_next):
            return None
        return RequestBody(known.length, b"", known.place, len(known.text))

    def expected_received(self, body: RequestBody, count: int) -> None:
        """Take bytes that were read to where one is expected."""
        known, is_whole, data = self._known, body.came(count), body.all()
        if known is None or self.transport.is_closing() or not known.begins(data):
            self.data_received(data)
            return
        if is_whole and self._is_answered(known, body.whole()):
            if more := body.behind():
                self.data_received(more)
            return
        self._asks_again(known)
        if is_whole:
            self._end_known(known, body)
        elif self.doors.lend(known.length):
            self._wait_for(body)
        else:
            self._parse_late(known, bytes(body.so_far()))

    def _is_answered(self, known: KnownHead, body: bytes | memoryview) -> bool:
        """Whether the only client, whose head is known, has its answer already."""
        if not (known.stack and self.doors.is_single) or self.flow.write_paused:
            return False
        answer = known.stack.answer(known.facts, body, self.server_state.default_headers)
        if answer is None:
            return False
        self._arrived()
        self.doors.asks(self)
        transport = cast("Joined", self.transport)
        transport.share = b""
        transport.write_now(answer)
        self.on_response_complete()
        return True

    def _asks_again(self, known: KnownHead) -> None:
        self._since = None
        self._arrived()
        self.doors.asks(self)
        self._tries = TRIES
        self.url, self.headers, self.asked = known.url, known.headers, known

    def _end_known(self, known: KnownHead, body: RequestBody) -> None:
        """Take a body whose head is known."""
        whole = body.whole()
        if not self._is_taken(whole, is_kept=True):
            self._parse_late(known, bytes(whole))
        if more := body.behind():
            self.data_received(more)

    def _again(self, known: KnownHead, data: bytes | memoryview) -> None:
        """Take a request whose head was parsed before."""
        start = len(known.text)
        end = start + known.length
        if len(data) < end:
            self._asks_again(known)
            if self.doors.lend(known.length):
                self._wait_for(RequestBody(known.length, bytes(data[start:]), known.place))
            else:
                self._parse_late(known, bytes(data[start:]))
            return
        body = bytes(data[start:end])
        if not self._is_answered(known, body):
            self._asks_again(known)
            if not self._is_taken(body, is_kept=True):
                self._parse_late(known, body)
        if len(data) > end:
            self.data_received(data[end:])

    def _parse_late(self, known: KnownHead, body: bytes) -> None:
        """Hand a request whose head is known to ASGI, with what has come of its body."""
        self._is_late = True
        self._parse(known.text + body)
        self._is_late = False

    def _parse(self, data: bytes | memoryview) -> None:
        if self._is_between and self._tries and not self._is_late:
            self._data = data
        self._around += len(data)
        self._feed(cast("bytes", data))
        self._data = None
        if self._early is not None and self.body is None and not self.transport.is_closing():
            self._wait()
        cycle = self.cycle
        # To rest and go on again costs two calls of the system: not for what is whole.
        if cycle is not None and cycle.more_body and len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if self._is_open and self._head is None:
            self._head = self.loop.call_later(self.seconds, self._late)
        if self._around > MOST_HEAD + self.inside // _SHARE:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _feed(self, data: bytes) -> None:
        self._since = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            plain, self._plain, self._data = self._plain, b"", None
            self._read_anew()
            self._feed(plain + data[error.args[0] :])
        except httptools.HttpParserError:
            message = "Invalid HTTP request received."
            self.logger.warning(message)
            self.send_400_response(message)

    def _read_anew(self) -> None:
        """Begin with another parser, since this one waits for what it will not be given."""
        self.parser = httptools.HttpRequestParser(self)
        if _IS_LENIENT:
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_body(self, body: bytes) -> None:
        self._around -= len(body)
        self.inside += len(body)
        if self._early is not None:
            if not self._early:
                self._early = body
                return
            self._begin()
        cycle = self.cycle
        if cycle.response_complete:
            return
        # One that comes as a whole is not copied.
        cycle.body = cycle.body + body if cycle.body else body  # type: ignore[assignment]
        cycle.message_event.set()

    def body_received(self, count: int) -> None:
        """Take bytes that were read into the body that is waited for."""
        body = self.body
        if body is None or self.transport.is_closing() or not body.came(count):
            return
        self._taken_back()
        if self._is_between and self.asked is not None:
            self._end_known(self.asked, body)
            return
        self._end_early(body.whole())
        if more := body.behind():
            self.data_received(more)

    def _end_early(self, body: memoryview) -> None:
        """Take a body whose head was parsed and that the parser was not given."""
        self._around = self.inside = 0
        if not self._is_parsed_taken(body):
            self._early = bytes(body)
            self._begin()
            super().on_message_complete()
        self._is_between = True
        self._read_anew()

    def on_message_complete(self) -> None:
        if self._plain:
            return
        self._around = self.inside = 0
        self._is_between = True
        if self._early is not None:
            if self._is_parsed_taken(self._early):
                return
            self._begin()
        super().on_message_complete()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_AHEAD:
            # The parser gives up, the rest of what came is not looked at, and the connection ends.
            raise TooManyAheadError
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._is_open, self._is_between = True, False

    @property
    def _is_next(self) -> bool:
        """Whether all that was asked before is answered."""
        before = self.cycle
        return before is None or before.response_complete

    def on_headers_complete(self) -> None:
        parser = self.parser
        if parser.should_upgrade() and parser.get_method() != b"CONNECT":
            # No other protocol is spoken here, and the parser would take the body for one: the
            # request is read again without the offer.
            self._plain = without_upgrade(
                parser.get_method(), self.url, parser.get_http_version(), self.headers
            )
            return
        self._arrived()
        self.doors.asks(self)
        self.asked, data, self._data = None, self._data, None
        # Of most requests the body comes with the head: they need no task before it is there.
        is_early = self._is_next and self.taker is not None and not self._is_late
        if is_early and not self.expect_100_continue:
            self._early = b""
            if data is not None:
                self._tries -= 1
                self.asked = known_head(data, self.url, self.headers)
        else:
            self._begin()

    def _wait(self) -> None:
        """Wait for the rest of a body that is not large, or begin.

        Many clients send it on its own, and larger ones come in chunks.
        """
        headers = dict(self.headers)
        size = number(headers.get(b"content-length", b"")) or 0
        if not (0 < size <= MOST_EARLY and self.doors.lend(size)):
            self._begin()
            return
        place = number(headers.get(LENGTH, b"")) or 0
        self._wait_for(RequestBody(size, self._early or b"", place))

    def _wait_for(self, body: RequestBody) -> None:
        self.body = body
        # One timer for many, as below.
        self._awaited = self.loop.time()
        if self._soon is None:
            self._soon = self.loop.call_later(SOON_S, self._waited)

    def _waited(self) -> None:
        self._soon = None
        if self.body is None:
            return
        left = self._awaited + SOON_S - self.loop.time()
        if left > 0:
            self._soon = self.loop.call_later(left, self._waited)
        elif self._is_between and self.asked is not None:
            body = bytes(self.body.so_far())
            self._taken_back()
            self._parse_late(self.asked, body)
        else:
            self._begin()

    def _taken_back(self) -> RequestBody | None:
        """Wait for a body no more; return it."""
        body, self.body = self.body, None
        if body is not None:
            self.doors.lent -= body.size
        return body

    def _begin(self) -> None:
        """Hand a request to ASGI, with what has come of it."""
        self._arrived()
        body = self._taken_back()
        url, headers, waits, early = self.url, self.headers, self.expect_100_continue, self._early
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue, self._early = url, headers, waits, None
        scope = cast("dict[str, Any]", self.scope)
        scope["headers"] = headers
        super().on_headers_complete()
        scope[KEY] = Exchange(self.cycle)
        scope[SOCKET] = self.transport.get_extra_info("socket")
        if early:
            self.cycle.body = early  # type: ignore[assignment]
            self.cycle.message_event.set()
        if body is not None:
            self.data_received(body.read())

    def _is_parsed_taken(self, body: bytes | memoryview) -> bool:
        """Whether what was parsed and came whole is answered without ASGI."""
        parser = self.parser
        if parser.get_method() != b"POST" or parser.should_upgrade():
            return False
        is_kept = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        return self._is_taken(body, is_kept=is_kept)

    def _is_taken(self, body: bytes | memoryview, *, is_kept: bool) -> bool:
        taker, before = self.taker, self.cycle
        # Who does not read what was answered is answered by ASGI, which waits for that.
        if taker is None or self.flow.write_paused:
            return False
        request = WholeRequest(self, body, is_kept)
        self.cycle = request  # type: ignore[assignment]
        if taker.take(request):
            self._early, self._known = None, self.asked
            return True
        self.cycle, self._known = before, None
        return False

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.flow.read_paused:
            self.flow.resume_reading()
        self.doors.rests(self)
        # One timer for many requests: to make and close one for each takes two turns of the loop.
        self._since = self.loop.time()
        if self._rest is None:
            self._rest = self.loop.call_later(self.timeout_keep_alive, self._rested)

    def _unset_keepalive_if_required(self) -> None:
        self._since = None

    def _rested(self) -> None:
        self._rest = None
        if self._since is None:
            return
        left = self._since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._rest = self.loop.call_later(left, self._rested)
        else:
            self.timeout_keep_alive_handler()

    def end(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def _arrived(self) -> None:
        self._is_open = False
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _late(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.close()


def protocol(
    seconds: float,
    taker: RequestTaker | None = None,
    tls: ssl.SSLContext | None = None,
    patience: tuple[InFlight, float] | None = None,
) -> Any:
    """Return what makes the protocol of a connection for uvicorn.

    uvicorn limits how long a connection may rest between requests, but not how long one may take
    to send its first, so that clients that send a byte now and then keep connections forever. Its
    parser keeps a header, an address or a trailer of any size, and it takes connections without an
    end.

    Args:
        seconds: from the first byte, or from the connection, to the end of the head.
        taker: answers what came whole; None where ASGI answers all.
        tls: the certificate and its key; None for plain HTTP.
        patience: memory that answers count for until they are read, and the seconds in which
            something must be; None for no limit.
    """
    logging.getLogger("uvicorn.error").addFilter(_SELDOM)
    connections = Connections(files())
    room = np.empty(ROOM_BYTES, np.uint8).data
    own: dict[str, Any] = {"seconds": seconds, "taker": taker, "doors": connections, "room": room}
    own["patience"] = patience
    kind = type("Protocol", (_Protocol,), own)

    def make(**given: Any) -> BodyReader | Handshake:
        if tls is None:
            return BodyReader(kind(**given))
        return Handshake(connections, tls, seconds, lambda: BodyReader(kind(**given)))

    return make
