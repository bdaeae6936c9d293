"""Temporary folders that no process leaves behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from edgeinfer import forks
from edgeinfer.bundle.held import hold, remove, remove_if_abandoned

PREFIX = "edgeinfer-"

_MEMORY = "/dev/shm"
_swept: set[tuple[int, str]] = set()


class Scratch:
    """A private folder among the system's temporary files, gone with this object.

    A process that was killed leaves its folder behind, but not its lock: the next process that
    makes such a folder, or opens a bundle, removes it. One that was forked from this process
    leaves it alone.

    Args:
        small: it gets links only, and may be in the system's memory where there is no disk for it.
        within: another folder that it is made in, so that what is in it can be moved there.

    Attributes:
        path: Path of the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, *, small: bool = False, within: Path | None = None) -> None:
        sweep()
        if within is not None:
            _sweep(str(within))
        try:
            self.path, lock = _made(within)
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

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _made(folder: str | Path | None) -> tuple[Path, IO[bytes]]:
    import tempfile

    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    try:
        return path, hold(path)
    except BaseException:
        remove(path)
        raise


def sweep() -> None:
    """Remove what killed processes of this user left, once in a process."""
    for folder in _temporary():
        _sweep(folder)


def _temporary() -> Iterator[str]:
    """Where temporary folders of this process and of others may lie.

    ``tempfile`` would write a file to find its own, which only who makes a folder needs to know.
    """
    yield _MEMORY
    if os.name != "posix" or "tempfile" in sys.modules:
        import tempfile

        with contextlib.suppress(OSError):
            yield tempfile.gettempdir()
        return
    given = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    yield next((folder for folder in (*given, "/tmp", "/var/tmp") if os.path.isdir(folder)), "/tmp")


def _sweep(folder: str) -> None:
    if (os.getpid(), folder) in _swept:
        return
    _swept.add((os.getpid(), folder))
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                remove_if_abandoned(Path(entry.path))


def _remove(path: Path, lock: IO[bytes]) -> None:
    # Windows cannot delete a file that is open.
    lock.close()
    remove(path)
