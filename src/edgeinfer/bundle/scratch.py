"""Temporary folders that no process leaves behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import IO

from edgeinfer import forks
from edgeinfer.bundle.staging import remove_tree, try_lock

PREFIX = "edgeinfer-"

_LOCK = ".lock"
_MEMORY = "/dev/shm"
_MOMENT_S = 60.0
_swept: set[tuple[int, str]] = set()


class Scratch:
    """A private folder among the system's temporary files, gone with this object.

    A process that was killed leaves its folder behind, but not its lock: the next process that
    makes such a folder, or opens a bundle, removes it. One that was forked from this process
    leaves it alone.

    Args:
        small: it gets links only, and may be in the system's memory where there is no disk for it.

    Attributes:
        path: of the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, *, small: bool = False) -> None:
        sweep()
        try:
            self.path, lock = _made(None)
        except OSError:
            if not small or not os.path.isdir(_MEMORY):
                raise
            self.path, lock = _made(_MEMORY)
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


def _made(folder: str | None) -> tuple[Path, IO[bytes]]:
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    try:
        # Named only once it is held, or another process would take it for abandoned.
        lock = (path / ".new").open("wb", buffering=0)
        try_lock(lock)
        os.rename(path / ".new", path / _LOCK)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path, lock


def sweep() -> None:
    """Remove what killed processes of this user left, once in a process."""
    with contextlib.suppress(OSError):
        # It raises where nowhere is a place for temporary files.
        _sweep(tempfile.gettempdir())
    _sweep(_MEMORY)


def _sweep(folder: str) -> None:
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
        try:
            with open(os.path.join(entry.path, _LOCK), "rb+") as lock:
                if try_lock(lock):
                    remove(Path(entry.path))
        except FileNotFoundError:
            # Killed while it was made or removed: an empty one, and not of this moment.
            if abs(time.time() - entry.stat(follow_symlinks=False).st_mtime) > _MOMENT_S:
                os.rmdir(entry.path)


def remove(path: Path) -> None:
    """Remove a folder; its lock goes last, or nobody would if this process is killed meanwhile."""
    try:
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(path)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.name != _LOCK:
                    os.unlink(entry.path)
    finally:
        remove_tree(path)


def _remove(path: Path, lock: IO[bytes]) -> None:
    # Windows cannot delete a file that is open.
    lock.close()
    remove(path)
