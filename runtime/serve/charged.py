"""Tokens that other servers' answers take, for the key that asked.

An estimate is charged as a request goes out and for each event that is passed on. What the other
server says that it used takes the estimate's place, so who leaves early has paid for what came.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson

from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.keys import Grant

MOST_EVENT = 8 << 20
"""Bytes of one event."""

TOKEN_BYTES = 4
"""Of a text, by estimate."""

MOST_UNTOLD = 1024
"""Tokens that are charged for a text that nobody waited for."""

_ASKED = ("/v1/chat/completions", "/v1/completions")
"""Whose streams tell what was used only where that is requested."""

WRITTEN = (*_ASKED, "/v1/messages", "/v1/responses")
"""Whose answers are texts."""

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

_USED = {
    "read": ("prompt_tokens", "input_tokens"),
    "written": ("completion_tokens", "output_tokens"),
}
"""What answers call the tokens that were used."""

_TEXTS = ("choices", "delta", "content", "output")
"""Fields of answers and events that hold texts."""

T = TypeVar("T")


class Reads(Protocol):
    """Calls a function, next to the event loop where what it reads has many bytes."""

    def __call__(self, size: int, work: Callable[[], T], /) -> Awaitable[T]:
        """Return what it returns."""
        ...


_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")


class Charged:
    """The tokens of one request.

    Args:
        grant: What grants the request its tokens; None counts nothing.
        path: that was asked.
        data: Data of the request.

    Attributes:
        data: to be sent, with the wish to get the usage.
        is_stream: whether events are requested.

    Raises:
        RequestError: 400, what decides on a stream is no truth value.
    """

    def __init__(self, grant: Grant | None, path: str, data: dict[str, Any]) -> None:
        self._grant, self.data, self._is_hidden, self._path = grant, data, False, path
        self.is_stream = _is_true("stream", data.get("stream"))
        self._told: dict[str, int | None] = dict.fromkeys(_USED)
        self._charged = dict.fromkeys(_USED, 0)
        self._passed, self._is_open, self._is_answered = 0, False, False
        options = data.get("stream_options")
        if path not in _ASKED or not self.is_stream:
            return
        if not isinstance(options, dict | None):
            raise RequestError(400, "stream_options: expected an object")
        is_told = _is_true("include_usage", (options or {}).get("include_usage"))
        if grant is not None and not is_told:
            self._is_hidden = True
            self.data = {**data, "stream_options": {**(options or {}), "include_usage": True}}

    @contextlib.contextmanager
    def sent(self, size: int) -> Iterator[None]:
        """Charge for a request of so many bytes; where no answer comes of it, take that back."""
        self._charge("read", size // TOKEN_BYTES + 1)
        try:
            yield
        except asyncio.CancelledError:
            if self._path in WRITTEN and not (self.is_stream or self._is_answered):
                # The other server may have written all of it.
                self._charge("written", self._most())
            raise
        except Exception:
            if not self._is_answered:
                self._give_back()
            raise

    async def whole(self, status: int, body: bytes, reads: Reads) -> None:
        """Count the answer that is no stream.

        Args:
            status: Status of the answer.
            body: Body of the answer.
            reads: reads what is large next to the loop.
        """
        self._is_answered = True
        if status >= 400:
            self._give_back()
        elif self._grant is not None:
            self._count(*await reads(len(body), partial(_read, body)))
            self._settle()

    async def events(self, parts: AsyncIterator[bytes], reads: Reads) -> AsyncIterator[bytes]:
        """Give a stream as it comes, without what only the count requested.

        Args:
            parts: Parts of the stream.
            reads: reads what is large next to the loop.

        Raises:
            RequestError: 502, an event is too large.
        """
        self._is_answered = True
        if self._grant is None:
            async for part in parts:
                yield part
            return
        async for events in split(parts):
            shown = []
            for event in events:
                # Most of a peer's that sends none are empty.
                if b"data" in event:
                    data, letters = await reads(len(event), partial(_read_event, event))
                    is_usage = self._count(data, letters)
                    if is_usage and self._is_hidden and data.get("choices") == []:
                        continue
                shown.append(event)
            if shown:
                yield b"".join(shown)
        self._settle()

    def _count(self, data: Any, letters: int) -> bool:
        """Count what an answer or event holds and tells; whether it tells what was used."""
        if not isinstance(data, dict):
            return False
        if letters:
            self._passed += max(1, letters // TOKEN_BYTES)
            self._is_open = True
        inner = data.get("response", data.get("message", data))
        usage = inner.get("usage") if isinstance(inner, dict) else None
        if isinstance(usage, dict):
            self._is_open = False
            for side, names in _USED.items():
                # Streams tell a side once, or again and again as it grows.
                found = [n for name in names if type(n := usage.get(name)) is int and n >= 0]
                if found:
                    self._told[side] = max(self._told[side] or 0, *found)
        if (read := self._told["read"]) is not None:
            self._charge("read", read)
        self._charge("written", max(self._told["written"] or 0, self._passed))
        return isinstance(usage, dict)

    def _settle(self) -> None:
        """Charge what was reported at the end, unless more came after it."""
        if (written := self._told["written"]) is not None and not self._is_open:
            self._charge("written", written)

    def _give_back(self) -> None:
        for side in _USED:
            self._charge(side, 0)

    def _charge(self, side: str, total: int) -> None:
        if self._grant is not None and total != self._charged[side]:
            self._grant.count_tokens(total - self._charged[side])
            self._charged[side] = total

    def _most(self) -> int:
        named = [n for name in _LIMITS if type(n := self.data.get(name)) is int and n > 0]
        texts = self.data.get("n")
        return min([MOST_UNTOLD, *named]) * (texts if type(texts) is int and 0 < texts < 129 else 1)


async def split(parts: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Give the events of a stream that each part ended, by LF, CRLF or CR, and all bytes that came.

    Raises:
        RequestError: 502, an event is too large.
    """
    held = bytearray()
    async for part in parts:
        # A line may have ended with what was held.
        begin, done, made = max(0, len(held) - 2), 0, list[bytes]()
        held += part
        for found in _END.finditer(held, begin):
            made.append(bytes(held[done : found.end()]))
            done = found.end()
        del held[:done]
        if made:
            yield made
        if len(held) > MOST_EVENT:
            raise RequestError(502, f"an event of the other server is larger than {MOST_EVENT}")
    if held:
        yield [bytes(held)]


def _read_event(event: bytes) -> tuple[Any, int]:
    """Return what an event's fields ``data`` hold, as ``_read`` does."""
    lines = (line.partition(b":") for line in event.splitlines())
    return _read(b"\n".join(v.removeprefix(b" ") for n, _, v in lines if n == b"data"))


def _read(text: bytes) -> tuple[Any, int]:
    """Return what JSON holds, None where it is none, and the letters of its texts."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None, 0
    is_object = isinstance(data, dict)
    return data, sum(_letters(data.get(name)) for name in _TEXTS) if is_object else 0


def _letters(value: Any) -> int:
    """Return the characters of all texts in a value."""
    count, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            count += len(each)
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
    return count


def _is_true(name: str, value: object) -> bool:
    if not isinstance(value, bool | None):
        raise RequestError(400, f"{name}: expected true or false")
    return value is True
