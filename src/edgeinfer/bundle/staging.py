"""A temporary folder beside an output, and the rename that ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

_LOCK = "lock"


class Staging:
    """A folder on the output's own file system, gone when its process is.

    A killed process leaves its folder behind, but not its lock; the next writer of the same output
    removes it.

    Attributes:
        root: the temporary folder.
        tree: where the bundle's files are put.

    Raises:
        OSError: the output's folder is missing or cannot be written.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        prefix = f".{output.name}.tmp-"
        for stale in output.parent.glob(_escaped(prefix) + "*"):
            _remove_if_abandoned(stale)
        self.root = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
        self._lock: IO[bytes] | None = None
        try:
            # Named only once it is held, or another writer would take it for abandoned.
            self._lock = (self.root / "new").open("wb")
            try_lock(self._lock)
            os.rename(self.root / "new", self.root / _LOCK)
            self.tree = self.root / "tree"
            self.tree.mkdir()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Delete whatever is left; a second call does nothing."""
        # Windows cannot delete a file that is open.
        if self._lock is not None:
            self._lock.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def place_file(self, path: Path) -> None:
        """Give a complete file the output's name."""
        path.chmod(0o666 & ~_umask())
        os.replace(path, self._output)
        fsync_folder(self._output.parent)

    def place_folder(self, path: Path) -> None:
        """Give a complete folder the output's name, in place of the one that may be there."""
        path.chmod(0o777 & ~_umask())
        old = self.root / "old"
        replaced = self._output.exists()
        if replaced:
            os.rename(self._output, old)
        try:
            os.rename(path, self._output)
        except BaseException:
            if replaced:
                os.rename(old, self._output)
            raise
        fsync_folder(self._output.parent)


def fsync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network and FUSE file systems refuse to sync folders; the files were synced.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """Read the process's umask; there is no call that only reads it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _escaped(prefix: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in prefix)


def try_lock(stream: IO[bytes]) -> bool:
    """Lock a file until it is closed; False where another process holds it, or none can tell."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_if_abandoned(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("rb+") as stream:
            abandoned = try_lock(stream)
    except OSError:
        return
    if abandoned:
        # A folder that was being replaced by the killed writer has nowhere else to be.
        old, output = folder / "old", folder.parent / folder.name[1:].rpartition(".tmp-")[0]
        if old.exists() and not output.exists():
            os.rename(old, output)
        shutil.rmtree(folder, ignore_errors=True)
