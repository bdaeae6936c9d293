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


class JsonLines(logging.Handler):
    """Log records as lines of JSON on stderr, those of some milliseconds at once.

    A write of its own for each line would cost a small request a third of its time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[dict[str, Any]] = []

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

    def add(self, data: dict[str, Any]) -> None:
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


def _line(data: dict[str, Any]) -> bytes:
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
    facts: dict[str, Any] = {"request_id": id.decode(), "seconds": seconds, "status": status}
    if key:
        facts["key"] = key
    _write(f"{method} {path[:MAX_PATH]} {status}", facts)


def log_line(message: str) -> None:
    """Write a line of a request.

    Args:
        message: Text of the line.
    """
    if LOG.isEnabledFor(logging.INFO):
        _write(message, {})


def _write(message: str, facts: dict[str, Any]) -> None:
    message = as_line(message)
    handlers = LOG.handlers
    if LOG.propagate or len(handlers) != 1 or not isinstance(handlers[0], JsonLines):
        LOG.info("%s", message, extra=facts)
        return
    # A record of logging takes longer than all else of the line.
    facts["time"], facts["level"], facts["message"] = time.time(), "info", message
    handlers[0].add(facts)
