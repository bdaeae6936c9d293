"""Temporary folders that a lock keeps while their process lives, and that others sweep after it.

A killed process leaves its folder behind, but not its lock. The lock is named last when a folder is
made and goes last when it is removed, so one without a lock holds nothing of value.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

LOCK = ".lock"
_NEW = ".new"
_MOMENT_S = 60.0
"""What is younger may still be in the making."""

_LOOK_S = 0.02


def hold(folder: Path, message: bytes = b"") -> IO[bytes]:
    """Keep a new folder until the file that this returns is closed.

    Args:
        folder: that was made just now.
        message: to who asks for its holder.

    Raises:
        OSError: the lock cannot be written.
    """
    # Whatever the umask is, nobody else may have it. Without a buffer: on a full disk its second
    # attempt, in close, would keep the folder.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    lock = os.fdopen(os.open(folder / _NEW, flags, 0o600), "r+b", buffering=0)
    try:
        lock.write(message)
        try_lock(lock)
        # Named only once it is held, or another process would take the folder for abandoned.
        os.rename(folder / _NEW, folder / LOCK)
    except BaseException:
        lock.close()
        raise
    return lock


def try_lock(file: IO[bytes] | int, seconds: float = 0.0) -> bool:
    """Lock a file until it is closed; False where another process holds it, or none can tell.

    Args:
        file: open, or its descriptor.
        seconds: to wait for who holds it. Whoever may read a file may hold it forever, so none is
            waited for without an end.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        except OSError:
            return False
        else:
            return True


def holder(folder: Path) -> str:
    """Return the number of the process that keeps a folder; empty where none tells."""
    try:
        with _lock_of(folder) as stream:
            return "" if try_lock(stream) else stream.read(20).decode("ascii", "replace")
    # Gone by now, or somebody else's.
    except OSError:
        return ""


def remove(folder: Path) -> None:
    """Remove a folder, its lock last; once more where that failed or was interrupted.

    Where something of it stays, because no file can be opened to look for it, say, so does the
    lock: it tells the next process whose folder that is.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(folder)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                elif entry.name != LOCK:
                    os.unlink(entry.path)
            shutil.rmtree(folder)
    except OSError:
        _remove_what_can_be(folder)
    except BaseException:
        _remove_what_can_be(folder)
        raise


def _remove_what_can_be(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != LOCK:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        if {entry.name for entry in os.scandir(folder)} <= {LOCK}:
            shutil.rmtree(folder, ignore_errors=True)


def remove_if_abandoned(folder: Path, rescue: Callable[[], object] = lambda: None) -> bool:
    """Remove what a killed process of this user left; whether that was so.

    Args:
        folder: that it kept.
        rescue: takes out of it, first, what has nowhere else to be.
    """
    try:
        with _lock_of(folder) as stream:
            if not try_lock(stream):
                return False
            rescue()
            remove(folder)
    except FileNotFoundError:
        return _remove_unfinished(folder)
    except OSError:
        return False
    return True


def _remove_unfinished(folder: Path) -> bool:
    """Remove a folder whose process was killed while it made or removed it."""
    try:
        found = folder.lstat()
        _check_ours(found)
        if abs(time.time() - found.st_mtime) < _MOMENT_S:
            return False
        (folder / _NEW).unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _lock_of(folder: Path) -> Iterator[IO[bytes]]:
    """Open the lock of a temporary folder that this user made, and nobody else's.

    Where several users write, one may leave a folder of such a name for another to fall over.

    Raises:
        OSError: the folder or its lock is another's, a link or no such thing.
    """
    if sys.platform == "win32":
        with (folder / LOCK).open("rb+") as stream:
            yield stream
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_ours(os.fstat(descriptor))
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(LOCK, flags, dir_fd=descriptor), "rb+") as stream:
            _check_ours(os.fstat(stream.fileno()), stat.S_IFREG)
            yield stream
    finally:
        os.close(descriptor)


def _check_ours(found: os.stat_result, kind: int = stat.S_IFDIR) -> None:
    if os.name != "posix":
        return
    others = found.st_mode & 0o077 if kind == stat.S_IFDIR else found.st_mode & 0o022
    if found.st_uid != os.geteuid() or stat.S_IFMT(found.st_mode) != kind or others:
        raise PermissionError(errno.EPERM, "belongs to another user")
