"""A line for each request, by the logger ``edgeinfer.serve`` or, many at once, as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from datetime import datetime, timezone
from typing import Any

import orjson

from edgeinfer.printable import as_line

LOG = logging.getLogger("edgeinfer.serve")

MAX_PATH = 2048
"""Characters of an address that are looked at, and written."""

_SOON_S = 0.02
"""Within which a line is written."""


_Answered = tuple[float, str, str, int, bytes, float, str]
"""A request: time since 1970, method, path, status, id, seconds that it took, name of its key."""


class JsonLines(logging.Handler):
    """Log records as lines of JSON on stderr, those of some milliseconds at once.

    A write of its own for each line would cost a small request a third of its time, and what makes
    a line of a request is done for many at once, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[dict[str, Any] | _Answered] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, soon where an event loop runs."""
        data = {
            "time": record.created,
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        for name in ("request_id", "key", "status", "seconds"):
            if (value := getattr(record, name, None)) is not None:
                data[name] = value
        if record.exc_info:
            data["error"] = logging.Formatter().formatException(record.exc_info)
        self.add(data)

    def add(self, data: dict[str, Any] | _Answered) -> None:
        """Write what a line holds, its time in seconds since 1970; soon where a loop runs."""
        self._waiting.append(data)
        if len(self._waiting) > 1:
            return
        try:
            asyncio.get_running_loop().call_later(_SOON_S, self.flush)
        except RuntimeError:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        with self.lock or contextlib.nullcontext():
            waiting, self._waiting = self._waiting, []
        if waiting:
            # A full disk ends no request.
            with contextlib.suppress(OSError):
                sys.stderr.buffer.write(b"".join(map(_line, waiting)))
                sys.stderr.buffer.flush()


def _line(data: dict[str, Any] | _Answered) -> bytes:
    if isinstance(data, tuple):
        said, facts = _said(*data[1:])
        data = {**facts, "time": data[0], "level": "info", "message": said}
    data["time"] = datetime.fromtimestamp(data["time"], timezone.utc)
    return orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE)


def log_request(
    method: str, path: str, status: int, *, id: bytes, seconds: float, key: str = ""
) -> None:
    """Write the line of a request.

    Args:
        method: Method of HTTP.
        path: that was asked.
        status: Status of the answer.
        id: Identifier of the request.
        seconds: that it took.
        key: Name of the key that let it in; empty for none.
    """
    if not LOG.isEnabledFor(logging.INFO):
        return
    path = path[:MAX_PATH]
    if (own := _own()) is not None:
        # A record of logging takes longer than all else of the line.
        own.add((time.time(), method, path, status, id, seconds, key))
        return
    said, facts = _said(method, path, status, id, seconds, key)
    LOG.info("%s", said, extra=facts)


def log_line(message: str) -> None:
    """Write a line of a request.

    Args:
        message: Text of the line.
    """
    if not LOG.isEnabledFor(logging.INFO):
        return
    message = as_line(message)
    if (own := _own()) is not None:
        own.add({"time": time.time(), "level": "info", "message": message})
    else:
        LOG.info("%s", message)


def _own() -> JsonLines | None:
    """Return what writes all lines; None where others get them, too."""
    handlers = LOG.handlers
    if LOG.propagate or len(handlers) != 1 or not isinstance(handlers[0], JsonLines):
        return None
    return handlers[0]


def _said(
    method: str, path: str, status: int, id: bytes, seconds: float, key: str
) -> tuple[str, dict[str, Any]]:
    """Return the message and the facts of a request's line."""
    facts: dict[str, Any] = {"request_id": id.decode(), "seconds": seconds, "status": status}
    if key:
        facts["key"] = key
    return as_line(f"{method} {path} {status}"), facts
