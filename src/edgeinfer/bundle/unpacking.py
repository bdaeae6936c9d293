"""Copies of a bundle's files: written next to their place, hashed, compared."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from edgeinfer.bounded import open_file
from edgeinfer.bundle.held import try_lock
from edgeinfer.bundle.manifest import FileRecord

CHUNK = 1 << 20
"""Bytes that are hashed at once, while those before are written and those behind are read."""

SMALL = 1 << 17
"""The same where one thread does it all: they stay in its cache, and in memory that it has had
before. 1.3 MB take two thirds of the processor time that they take in one piece."""

ALONE = 8 << 20
"""Bytes up to which one thread does it all: what starts another takes as long as their hash."""

_PARTIAL = ".unpack-"
_ABANDONED_S = 60.0
"""What was written later may not be locked yet."""


def copied(stream: BinaryIO, sink: Callable[[bytes], object] | None) -> tuple[str, int]:
    """Return the hash and the size of what a stream has, and hand it on meanwhile.

    Each byte is read, hashed and handed on once. Of what is large a second thread hands
    on and reads while this one hashes, so that a copy takes no longer than its hash.
    """
    digest = hashlib.sha256()

    def moved(chunk: bytes, following: int = CHUNK) -> bytes:
        if sink is not None:
            sink(chunk)
        return stream.read(following)

    chunk, size = stream.read(SMALL if ALONE else CHUNK), 0
    while chunk and size < ALONE:
        digest.update(chunk)
        size += len(chunk)
        chunk = moved(chunk, SMALL if size < ALONE else CHUNK)
    if len(chunk) == CHUNK:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as second:
            while len(chunk) == CHUNK:
                try:
                    following = second.submit(moved, chunk)
                # There is no memory for a thread, or this process has all that it may.
                except RuntimeError:
                    break
                digest.update(chunk)
                size += CHUNK
                chunk = following.result()
    while chunk:
        digest.update(chunk)
        size += len(chunk)
        chunk = moved(chunk)
    return digest.hexdigest(), size


@contextlib.contextmanager
def partial_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open a new file that is gone at the end unless it was renamed, and locked until then."""
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix=_PARTIAL, dir=folder)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            try_lock(stream)
            yield partial, stream
    finally:
        partial.unlink(missing_ok=True)


def remove_abandoned(folder: Path) -> None:
    """Delete what a killed process left half unpacked.

    Its age alone tells nothing where the clock was set: one that is being written is locked.
    """
    for partial in folder.glob(_PARTIAL + "*"):
        with contextlib.suppress(OSError), partial.open("rb+") as stream:
            if abs(time.time() - partial.stat().st_mtime) > _ABANDONED_S and try_lock(stream):
                partial.unlink()


def matches(path: Path, record: FileRecord) -> bool:
    """Whether a file is the one of a record."""
    try:
        if path.is_symlink() or path.stat().st_size != record.size_bytes:
            return False
        with open_file(path) as stream:
            return copied(stream, None)[0] == record.sha256
    except OSError:
        return False


class Compared:
    """Compares chunks with what a file has, one after the other."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.are_same = stream, True

    def take(self, chunk: bytes) -> None:
        """Compare the next chunk."""
        self.are_same = self.are_same and self._stream.read(len(chunk)) == chunk
