"""Files that exist in memory only, for engines that open files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeinfer import forks
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.errors import NotAvailableError, OutputError


class MemoryFiles:
    """A folder of links to memory: other processes of this user may open them, no disk has them.

    The memory is gone when the files are closed, and when this process ends in whatever way; what
    may stay behind of a killed process, until the next one, is a folder of links to nothing.
    """

    def __init__(self) -> None:
        self._folder: Scratch | None = None
        self._descriptors: list[int] = []
        forks.watch(self)

    def forked(self) -> None:
        """Begin without files: links of the parent's folder name the parent's descriptors."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors, self._folder = [], None

    def put(self, path: str, fill: Callable[[Callable[[bytes], Any]], object]) -> Path:
        """Make a file.

        Args:
            path: below the folder, so that companions find each other.
            fill: gives the contents to what it is called with.

        Raises:
            NotAvailableError: this system has no such files.
            OutputError: there is not enough memory.
        """
        if not hasattr(os, "memfd_create"):
            raise NotAvailableError(
                f"an engine opens {path} as a file, and {sys.platform} has none that are in "
                "memory only: `edgeinfer decrypt` it to a place that is safe by other means"
            )
        try:
            descriptor = os.memfd_create(Path(path).name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._descriptors.append(descriptor)
            with os.fdopen(os.dup(descriptor), "wb") as stream:
                fill(stream.write)
            _make_constant(descriptor)
            if self._folder is None:
                self._folder = Scratch(small=True)
            link = self._folder.path / path
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
        except OSError as e:
            text = f"{path} cannot be held in memory: {e.strerror or e}"
            raise OutputError(text) from e
        return link

    def close(self) -> None:
        """Free the memory, as far as no engine has mapped it."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _make_constant(descriptor: int) -> None:
    """Keep everybody from changing it after its hash was compared."""
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def is_in_memory(path: Path) -> bool:
    """Whether a file is one of ``MemoryFiles``: nothing of it may be written to a disk."""
    try:
        return path.is_symlink() and os.readlink(path).startswith("/proc/")
    except OSError:
        return False


def companions(path: Path) -> dict[str, bytes]:
    """Return the other files of a file's folder, by name."""
    others = sorted(p for p in path.parent.iterdir() if p != path)
    return {p.name: p.read_bytes() for p in others if p.is_file()}
