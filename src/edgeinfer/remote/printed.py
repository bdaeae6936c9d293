"""What a device prints: data of a stranger's, which has a bound."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import IO

from edgeinfer.remote.ssh import last_line

MOST_SAID = 64 << 20
"""Bytes that a command on a device may print."""

_KEPT = 1 << 16


class Printed:
    """Reads what a command on a device prints, so that it need not wait; keeps the beginning.

    One that prints more than it may is ended.

    Attributes:
        first: what it printed first.
        is_too_much: whether it was ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes] | None) -> None:
        if stream is None:
            raise AssertionError("a pipe was requested")
        self.first, self.is_too_much = b"", False
        self._process, self._stream = process, stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def last(self) -> str:
        """The last line of what is kept; where there was too much, this."""
        return too_much() if self.is_too_much else last_line(self.first)

    def ended(self) -> None:
        """Wait for what is still on its way."""
        self._thread.join(5)

    def _read(self) -> None:
        read = 0
        with self._stream:
            while part := self._part():
                read += len(part)
                if read > MOST_SAID:
                    self.is_too_much = True
                    self._process.kill()
                    return
                self._take(part)

    def _part(self) -> bytes:
        return os.read(self._stream.fileno(), _KEPT)

    def _take(self, part: bytes) -> None:
        self.first += part[: _KEPT - len(self.first)]


def too_much() -> str:
    """Say why a command was ended."""
    return f"it printed more than {MOST_SAID} bytes"
