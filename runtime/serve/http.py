"""The few parts of ASGI that the server speaks itself: bodies, answers, errors."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, MutableMapping
from typing import Any, TypeVar

import orjson

from edgeinfer.errors import (
    ClosedError,
    CrashedError,
    DeadlineError,
    InputError,
    MemoryBudgetError,
    QueueFullError,
    UsageError,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]
T = TypeVar("T")

TOO_DEEP = "the request is nested too deeply"
MOST_TEXT = 1000
"""Characters of the message that a client gets for an error."""

_FOLDERS = re.compile(
    r"""(?<![\w.:/\\])(?:/(?:[^/\s'":,;()<>]+/)+|[A-Za-z]:[\\/](?:[^\\/\s'":,;()<>]+[\\/])*)"""
)
"""Absolute, up to the last name, as errors of files have it."""

_MOST_DIGITS = 20
"""Of a number in a header: more than any size has, and fewer than Python refuses."""

_LATE = "the request is late"
_HEADERS = "edgeinfer.headers"
JSON = (b"content-type", b"application/json")
LENGTH = b"inference-header-content-length"
SAFE: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


class RequestError(Exception):
    """A request that is answered with a status and a sentence.

    Args:
        status: HTTP status.
        text: what, expected, received.
        retry_s: seconds after which it may succeed.
    """

    def __init__(self, status: int, text: str, retry_s: float | None = None) -> None:
        # What was received is reported, whatever its size.
        text = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
        super().__init__(text)
        self.status, self.text, self.retry_s = status, text, retry_s


class DisconnectedError(Exception):
    """The client is gone; nobody reads an answer."""


def status_of(error: Exception) -> RequestError:
    """Return the message of an error for clients; never a stack trace or a path of this machine."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, InputError | UsageError):
        return RequestError(400, without_folders(str(error)))
    if isinstance(error, RecursionError):
        return RequestError(400, TOO_DEEP)
    if isinstance(error, QueueFullError):
        return RequestError(429, str(error), 1.0)
    if isinstance(error, DeadlineError):
        return RequestError(504, str(error))
    if isinstance(error, MemoryBudgetError):
        return RequestError(503, "the model does not fit into memory now", 5.0)
    if isinstance(error, ClosedError):
        return RequestError(503, "the model was unloaded, or the server is stopping", 5.0)
    if isinstance(error, CrashedError):
        return RequestError(503, "the engine's process ended; it is started again", 1.0)
    return RequestError(500, f"{type(error).__name__}: the request failed; the log says more")


def without_folders(text: str) -> str:
    """Return a message in which of each path of this machine the last name is left."""
    return _FOLDERS.sub("", text)


def check_announced(scope: Scope, limit: int) -> None:
    """Refuse a body that is too large by its own word, before any of it is read.

    Raises:
        RequestError: 413; 400 where it is no number.
    """
    declared = number_of(scope, b"content-length")
    if declared is not None and declared > limit:
        raise too_large(limit)


def too_large(limit: int) -> RequestError:
    """Return the refusal of a body."""
    return RequestError(413, f"the body is larger than {limit} bytes")


async def read_body(receive: Receive, limit: int, seconds: float) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: it is larger than the limit, or does not come in time.
        DisconnectedError: the client left.
    """
    whole: Callable[[int], Awaitable[bytes | None]] | None = getattr(receive, "whole", None)
    if whole is not None and (body := await whole(limit)) is not None:
        return body
    late = RequestError(408, f"the body did not come within {seconds:g} s")
    return await in_time(_body(receive, limit), seconds, late)


async def in_time(work: Awaitable[T], seconds: float, late: RequestError) -> T:
    """Return what comes in time; as ``asyncio.timeout``, at a third of its cost.

    Raises:
        RequestError: ``late``, it did not.
    """
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("requests are received within tasks")
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel, _LATE)
    try:
        return await work
    except asyncio.CancelledError as e:
        if e.args != (_LATE,):
            raise
        # Before Python 3.11 to catch it is enough.
        getattr(task, "uncancel", int)()
        raise late from e
    finally:
        timer.cancel()
        # The error would hold this frame, and this frame the error.
        del late


async def _body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return part if not parts else b"".join([*parts, part])
        parts.append(part)


async def client_left(receive: Receive) -> None:
    """Return when the client is gone; for a request whose body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header's value, the last where it is there twice; None where it is missing."""
    found: dict[bytes, bytes] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = dict(scope["headers"])
    return found.get(name)


def number(text: bytes) -> int | None:
    """Return the number that a header's value is; None where it is none, or of too many digits."""
    digits = text.lstrip(b"0")
    return int(digits or b"0") if text.isdigit() and len(digits) <= _MOST_DIGITS else None


def number_of(scope: Scope, name: bytes) -> int | None:
    """Return a header's number; None where the header is missing.

    Raises:
        RequestError: 400, it is none.
    """
    text = header(scope, name)
    if text is None:
        return None
    if (found := number(text)) is None:
        raise RequestError(400, f"{name.decode()}: expected a number")
    return found


async def answer(send: Send, status: int, body: bytes, headers: Iterable[Header] = (JSON,)) -> None:
    """Send a whole answer."""
    every = whole_headers(body, headers)
    whole = getattr(send, "whole", None)
    if whole is not None and whole(status, every, body):
        return
    await send({"type": "http.response.start", "status": status, "headers": every})
    await send({"type": "http.response.body", "body": body})


def whole_headers(body: bytes, headers: Iterable[Header]) -> list[Header]:
    """Return all headers of a whole answer; ``headers`` are those that say what its body is."""
    return [*headers, (b"content-length", b"%d" % len(body)), *SAFE]


async def answer_json(send: Send, data: object, status: int = 200) -> None:
    """Send data as JSON."""
    await answer(send, status, to_json(data))


def to_json(data: object) -> bytes:
    """Return data as JSON; NumPy arrays and scalars are allowed, NaN becomes null.

    Raises:
        RequestError: it is nested more deeply than can be written; reading goes deeper.
    """
    try:
        return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as e:
        if "ecursion" not in str(e):
            raise
        raise RequestError(400, TOO_DEEP) from e


Harmless = Mapping[str, tuple[Any, ...] | type]
"""Fields that change nothing, with the values or the type for which that is so."""


def not_known(data: Mapping[str, Any], known: Container[str], harmless: Harmless) -> list[str]:
    """Return the fields of a request that ask for what is not there.

    Args:
        data: Data of the request.
        known: fields that are read.
        harmless: fields that ask for nothing; null of a type's is none either.
    """
    return [
        key
        for key, value in data.items()
        if key not in known and not _is_free(value, harmless.get(key, ()))
    ]


def _is_free(value: Any, free: tuple[Any, ...] | type) -> bool:
    return isinstance(value, free | None) if isinstance(free, type) else value in free


def from_json(body: bytes | memoryview, what: str = "the body") -> Any:
    """Read JSON.

    Raises:
        RequestError: it is none, or nested too deeply.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as e:
        raise RequestError(400, f"{what}: it is not JSON: {e}") from e


def retry_header(error: RequestError) -> tuple[Header, ...]:
    """Return when to try again, where that helps."""
    if error.retry_s is None:
        return ()
    return ((b"retry-after", str(max(1, math.ceil(error.retry_s))).encode()),)
