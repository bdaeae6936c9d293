"""Temporary folders that no process leaves behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO

from edgeinfer import forks
from edgeinfer.bundle.staging import try_lock

PREFIX = "edgeinfer-"

_LOCK = ".lock"
_swept: set[tuple[int, str]] = set()


class Scratch:
    """A private folder in the system's folder for temporary files, gone with this object.

    A process that was killed leaves its folder behind, but not its lock: the next process that
    makes such a folder, or opens a bundle, removes it. One that was forked from this process
    leaves it alone.

    Attributes:
        path: of the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            # Named only once it is held, or another process would take it for abandoned.
            lock = (self.path / ".new").open("wb", buffering=0)
            try_lock(lock)
            os.rename(self.path / ".new", self.path / _LOCK)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        self._lock = lock
        self._remove = weakref.finalize(self, _remove, self.path, lock)
        forks.watch(self)

    def forked(self) -> None:
        """Let the parent remove it; the lock must not be held for longer than it lives."""
        self._remove.detach()
        self._lock.close()

    def cleanup(self) -> None:
        """Remove it; a second call does nothing."""
        self._remove()


def sweep() -> None:
    """Remove what killed processes of this user left, once in a process."""
    folder = tempfile.gettempdir()
    if (os.getpid(), folder) in _swept:
        return
    _swept.add((os.getpid(), folder))
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                _remove_if_abandoned(entry)


def _remove_if_abandoned(entry: os.DirEntry[str]) -> None:
    # A stranger may have made it for us to find, or hold the lock for ever.
    with contextlib.suppress(OSError):
        if hasattr(os, "getuid") and entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return
        with open(os.path.join(entry.path, _LOCK), "rb+") as lock:
            if try_lock(lock):
                shutil.rmtree(entry.path, ignore_errors=True)


def _remove(path: Path, lock: IO[bytes]) -> None:
    # Windows cannot delete a file that is open.
    lock.close()
    shutil.rmtree(path, ignore_errors=True)
