"""Full pages of the cache on disk, so that a restart does not forget the prompts it has read.

One file a page, named by its hash. A file gets its name when it is complete, and what is read is
compared with a checksum, so a kill or a power cut leaves nothing that could be taken for a page.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import stat
import struct
import threading
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

from edgeinfer.bounded import open_file
from edgeinfer.bundle.cache import private_folder
from edgeinfer.runtime.llm.executor import Bytes

MAGIC = b"EDGEKV\x00\x01"
_HEADER = struct.Struct("<8s16sQ16s")
"""Magic, hash of the contents' tokens, bytes of a page, checksum of the page."""

_parts = itertools.count()

_WAITING = 64
"""Pages that may wait to be written before the engine waits too."""


class PageStore:
    """A folder with pages of one fingerprint.

    Several processes of one user may share it. Files that are damaged are deleted and were never
    there; so are those of other users. A page holds what a model made of a text, and nothing but
    the engine's own numbers shows whether it is the right one.

    Args:
        root: made if missing; nobody else may be able to write it.
        name: Name of the folder below it.
        page_bytes: Bytes of one page.
        limit_bytes: the most that its files may have together; the longest unused go first.

    Raises:
        OSError: the folder cannot be made or read, or others could put pages into it.
    """

    def __init__(self, root: Path, name: str, page_bytes: int, limit_bytes: int) -> None:
        self._folder = private_folder(root, name)
        self._page_bytes = page_bytes
        self._most = limit_bytes // (page_bytes + _HEADER.size)
        self.damaged = 0
        self.written = 0
        self.skipped = 0
        self.error = ""
        self._lock = threading.Lock()
        self._known = self._scan()
        self._queue: queue.Queue[tuple[bytes, Bytes] | None] = queue.Queue(_WAITING)
        self._writer = threading.Thread(target=self._write_all, name="edgeinfer-pages", daemon=True)
        self._writer.start()

    def _scan(self) -> OrderedDict[bytes, None]:
        """Return the hashes of what is there, the longest unused first; remove abandoned files."""
        found = []
        for entry in os.scandir(self._folder):
            name, _, end = entry.name.partition(".")
            if end.startswith("part-"):
                _remove_abandoned(Path(entry.path), end.split("-")[1])
            elif end == "kv" and len(name) == 32:
                with contextlib.suppress(ValueError, OSError):
                    found.append((entry.stat().st_mtime_ns, bytes.fromhex(name)))
        return OrderedDict((key, None) for _, key in sorted(found))

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    @property
    def room(self) -> int:
        """Pages that it may hold in all."""
        return self._most

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.kv"

    def read(self, key: bytes, into: Bytes) -> bool:
        """Fill ``into`` with a page.

        Returns:
            Whether it is there and whole; a damaged one is deleted.
        """
        path = self._path(key)
        try:
            whole = self._read(path, key, into)
        except FileNotFoundError:
            # Another process needed the room.
            self._drop(key)
            return False
        except OSError as e:
            self.error = f"{path}: {e.strerror or e}"
            self._drop(key)
            return False
        if not whole:
            self.damaged += 1
            path.unlink(missing_ok=True)
            self._drop(key)
            return False
        with contextlib.suppress(OSError):
            os.utime(path)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
        return True

    def _read(self, path: Path, key: bytes, into: Bytes) -> bool:
        """Fill ``into`` from a file; say whether it is this user's and whole."""
        if path.is_symlink():
            return False
        with open_file(path, buffering=0) as file:
            if not _is_own(os.fstat(file.fileno())):
                return False
            header = file.read(_HEADER.size)
            count = file.readinto(into.data)
            longer = file.read(1)
        return count == self._page_bytes and not longer and header == _header(key, into)

    def _drop(self, key: bytes) -> None:
        with self._lock:
            self._known.pop(key, None)

    def write(self, key: bytes, page: Bytes, *, wait: bool = True) -> bool:
        """Hand a page to the thread that writes; the array must not be changed any more.

        A full disk or a missing right stops all writing; ``error`` says why.

        Returns:
            Whether it was taken; only with ``wait=False`` may too many wait already.
        """
        if self.error or not self._most:
            self.skipped += 1
            return True
        try:
            self._queue.put((key, page), block=wait)
        except queue.Full:
            return False
        return True

    def flush(self) -> None:
        """Wait until everything handed over is on disk or was given up."""
        self._queue.join()

    def close(self) -> None:
        """Write what waits and end the thread; may be called twice."""
        if self._writer.is_alive():
            self._queue.put(None)
            self._writer.join()

    def _write_all(self) -> None:
        while True:
            item = self._queue.get()
            try:
                if item is None:
                    return
                if self.error:
                    self.skipped += 1
                else:
                    self._write(*item)
            finally:
                self._queue.task_done()
                # Its page is not held until the next one comes.
                del item

    def _write(self, key: bytes, page: Bytes) -> None:
        path = self._path(key)
        part = path.with_suffix(f".part-{os.getpid()}-{next(_parts)}")
        try:
            with open(part, "wb", opener=_private) as file:
                file.write(_header(key, page))
                file.write(page.data)
            part.replace(path)
        except OSError as e:
            self.error = f"{path}: {e.strerror or e}"
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            return
        self.written += 1
        with self._lock:
            self._known[key] = None
            self._known.move_to_end(key)
            over = [
                self._known.popitem(last=False)[0] for _ in range(len(self._known) - self._most)
            ]
        for old in over:
            with contextlib.suppress(OSError):
                self._path(old).unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_own(found: os.stat_result) -> bool:
    """Whether a file is this user's, whom alone it obeys."""
    if not stat.S_ISREG(found.st_mode):
        return False
    return os.name != "posix" or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)


def _header(key: bytes, page: Bytes) -> bytes:
    checksum = blake2b(page.data, digest_size=16).digest()
    return _HEADER.pack(MAGIC, key, page.nbytes, checksum)


def _remove_abandoned(part: Path, pid: str) -> None:
    """Remove what a process that has ended had not finished."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        part.unlink(missing_ok=True)
    except OSError:
        # It runs, for another user.
        return
