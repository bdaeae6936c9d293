"""A temporary folder next to an output, and the rename that ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from edgeinfer.bundle.held import hold, holder, remove, remove_if_abandoned, try_lock
from edgeinfer.errors import OutputError

_PATIENCE_S = 5.0
"""Seconds for another writer to look and begin, which takes it milliseconds."""


class Staging:
    """A folder on the output's own file system, gone when its process is.

    A killed process leaves its folder behind, but not its lock; the next writer
    in its folder removes it.

    Attributes:
        root: the temporary folder.
        tree: where the bundle's files are put.

    Raises:
        OSError: the output's folder is missing or cannot be written.
        OutputError: another process is writing the same output.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._lock: IO[bytes] | None = None
        with _alone(output.parent):
            # What other writers left that were killed; theirs may never be written again.
            for other in output.parent.glob(".*.tmp-*"):
                is_same = other.name.startswith(_prefix(output))
                if not is_same:
                    _remove_if_abandoned(other)
                elif not _remove_if_abandoned(other) and (writer := holder(other)):
                    raise OutputError(
                        f"cannot write {output}: process {writer} is writing it; wait for its end "
                        "or choose another output"
                    )
            self.root = Path(tempfile.mkdtemp(prefix=_prefix(output), dir=output.parent))
            try:
                self._lock = hold(self.root, str(os.getpid()).encode())
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
        remove(self.root)

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

    def place_all(self, moves: Sequence[tuple[Path, Path]]) -> None:
        """Give complete files and folders their names, all of them or none.

        Args:
            moves: each with its name, what the others lie next to last; what has a name already is
                replaced.
        """
        placed: list[tuple[Path, Path]] = []
        try:
            for number, (new, name) in enumerate(moves):
                new.chmod((0o777 if new.is_dir() else 0o666) & ~_umask())
                old = self.root / f"old-{number}"
                if os.path.lexists(name):
                    os.rename(name, old)
                placed.append((name, old))
                os.rename(new, name)
        except BaseException:
            for name, old in reversed(placed):
                _discard(name)
                if os.path.lexists(old):
                    os.rename(old, name)
            raise
        for folder in {name.parent for _, name in moves}:
            fsync_folder(folder)


@contextlib.contextmanager
def replacing(output: Path) -> Iterator[Path]:
    """Give the name of a file to write, which takes the output's name when it is whole.

    Raises:
        OSError: it cannot be written; nothing is left behind.
        OutputError: another process is writing the same output.
    """
    staging = Staging(output)
    try:
        new = staging.root / "new"
        yield new
        with new.open("rb+") as stream:
            os.fsync(stream.fileno())
        staging.place_file(new)
    finally:
        staging.remove()


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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


def is_staged(path: str, output: Path) -> bool:
    """Whether a path lies in the temporary folder of an output."""
    return path.startswith(str(output.parent / _prefix(output)))


def _prefix(output: Path) -> str:
    return f".{output.name}.tmp-"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other writers in a folder out, where the system can, while one looks and begins."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot lock folders, and whoever may read one can hold it; two
        # may then begin at once.
        try_lock(descriptor, _PATIENCE_S)
        yield
    finally:
        os.close(descriptor)


def _remove_if_abandoned(folder: Path) -> bool:
    """Remove what a killed writer left; whether that was so."""

    def rescue() -> None:
        # A folder that was being replaced by the killed writer has nowhere else to be.
        old, output = folder / "old", folder.parent / folder.name[1:].rpartition(".tmp-")[0]
        if old.is_dir() and not old.is_symlink() and not os.path.lexists(output):
            os.rename(old, output)

    return remove_if_abandoned(folder, rescue)
