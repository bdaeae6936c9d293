"""What others print: other processes of ours, and native code in this one.

A stranger's file may say what is printed, and how much: nothing of it commands a terminal, and no
log grows by more than somebody reads.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from edgeinfer.printable import visible

MOST, A_SECOND = 256 << 10, 4 << 10
"""Bytes that are shown at once, and those that may be shown again after each second."""

_MORE = b"edgeinfer: more is printed than is shown\n"
_END_S = 1.0


class Words:
    """Shows what is printed.

    Args:
        to: descriptor; less than 0 for none.
        clock: in seconds.
    """

    def __init__(self, to: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._to, self._clock = to, clock
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._left, self._at, self._is_told = float(MOST), clock(), False

    def show(self, chunk: bytes) -> None:
        """Show some, cleaned; of what is too much only that it is."""
        now = self._clock()
        self._left = min(MOST, self._left + (now - self._at) * A_SECOND)
        self._at = now
        raw = visible(self._decode(chunk).replace("\r", "\n")).encode(errors="replace")
        if len(raw) > self._left:
            raw, self._is_told = b"" if self._is_told else _MORE, True
        else:
            self._left -= len(raw)
            self._is_told = self._is_told and self._left < MOST / 2
        # Where nobody reads it, it goes on all the same.
        with contextlib.suppress(OSError):
            if raw and self._to >= 0:
                os.write(self._to, raw)


@contextlib.contextmanager
def native_words() -> Iterator[None]:
    """Show what native code prints to standard error so; Python's own lines go there as before."""
    before = sys.stderr
    try:
        is_ours = before.fileno() == 2
        real = os.dup(2) if is_ours else -1
    # There is none, or it is no file.
    except (AttributeError, OSError, ValueError):
        real = -1
    if real < 0:
        yield
        return
    reading, writing = os.pipe()
    # Whoever prints may hold what the reader waits for: what does not fit is lost.
    os.set_blocking(writing, False)
    os.dup2(writing, 2)
    os.close(writing)
    listener = threading.Thread(target=_drain, args=(reading, Words(real)), daemon=True)
    listener.start()
    own = open(  # noqa: SIM115 - closed below
        real, "w", buffering=1, encoding=before.encoding, errors=before.errors, closefd=False
    )
    sys.stderr = own
    try:
        yield
    finally:
        sys.stderr = before
        own.close()
        os.dup2(real, 2)
        # A process that inherited the pipe may hold it open.
        listener.join(_END_S)
        if not listener.is_alive():
            os.close(real)


def _drain(reading: int, words: Words) -> None:
    with open(reading, "rb", buffering=0) as stream:
        while chunk := stream.read(1 << 16):
            words.show(chunk)
