"""Bounds of memory and processor time for a process that looks at a stranger's file.

A file of a few bytes may describe values of any size, and work without end. The process that waits
looks at the one that works, which may be inside of an engine and not listen.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.process.channel import tell
from edgeinfer.bounded import leads_out
from edgeinfer.machine.cgroup import read_limits
from edgeinfer.machine.facts import free_mb

if TYPE_CHECKING:
    from typing import Self

TIMES = 20
"""Bytes of memory for each byte of the file."""

SECONDS, SECONDS_PER_MB = 30.0, 5.0
"""Processor time, and that of each megabyte of the file."""

_SHARE = 0.9
"""Of the memory that is free, for what the user wants of a file that was looked at."""

_TICK_S = 0.02


def belongs(files: list[Path]) -> None:
    """Name files that belong to the one that is looked at; outside of such a process, nothing."""
    tell("belongs", [str(file) for file in files])


def looked() -> None:
    """Say that the file has been looked at; what follows takes what the user asks for.

    Nothing follows where the look is all that was requested: nobody believes it there.
    """
    tell("looked")


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder; 0 where there is none."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


class BoundedLook:
    """Ends a process that takes more than what it looks at explains.

    Where the system does not say what a process takes (``/proc``), nothing is ended.

    Args:
        pid: Number of the process.
        files: what it looks at; of a folder, what is in it.
        spare: bytes that it may take besides, with all the libraries that it needs.
        spare_s: likewise, seconds of processor time.
        works: it does more than look, and says when that begins (``looked``).

    Attributes:
        over: what it took too much of; empty where it did not.
    """

    def __init__(
        self,
        pid: int,
        files: Sequence[Path],
        spare: int,
        spare_s: float = SECONDS,
        *,
        works: bool = False,
    ) -> None:
        self._pid, self._spare, self.over = pid, spare, ""
        self._spare_s, self._works = spare_s, works
        self._size = sum(map(size_of, files))
        self._folders = [file if file.is_dir() else file.parent for file in files]
        self._counted = {file.resolve() for file in files}
        self._free: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="edgeinfer-bounds", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def grow(self, names: Iterable[str]) -> None:
        """Count files besides those that it looks at, each once.

        The process may be a stranger's by then: that a file is there, and its size, is seen here.
        """
        for path in map(Path, names):
            # Links may lead in a circle, a name may hold what no system takes.
            with suppress(OSError, RuntimeError, ValueError):
                place = path.resolve()
                is_theirs = any(not leads_out(path, folder) for folder in self._folders)
                if is_theirs and place.is_file() and place not in self._counted:
                    self._counted.add(place)
                    self._size += place.stat().st_size

    def looked(self) -> None:
        """Let it take what is free from now on, however long it works; said once, if at all."""
        if not self._works:
            return
        self._works = False
        free = free_mb(Path("/"), read_limits(Path("/")))
        # Where nobody tells, or it has ended, there is nothing to look at.
        if free is None:
            self._ended.set()
            return
        with suppress(OSError):
            self._free = int(_SHARE * (free << 20)) + _own(self._pid)

    def _look(self) -> None:
        while not self._ended.wait(_TICK_S):
            try:
                self.over = self._excess()
            except (OSError, ValueError, IndexError):
                return
            if self.over:
                os.kill(self._pid, signal.SIGKILL)
                return

    def _excess(self) -> str:
        """Say what it takes too much of."""
        if self._free is not None:
            if _own(self._pid) <= self._free:
                return ""
            return f"{self._free >> 20} MB of memory, which is what this machine has left"
        held, seconds = _taken(self._pid)
        most_s = self._spare_s + SECONDS_PER_MB * self._size / 1e6
        most = TIMES * self._size + self._spare
        if held > most:
            return f"{most >> 20} MB of memory, {_MORE}"
        return f"{most_s:.0f} s of processor time, {_MORE}" if seconds > most_s else ""


_MORE = "far more than a file of its size explains"


def _taken(pid: int) -> tuple[int, float]:
    """Return the bytes that a process holds in memory, and its processor time in seconds."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name of a program may have blanks and brackets.
        found = file.read().rpartition(b")")[2].split()
    ticks = int(found[11]) + int(found[12])
    return int(found[21]) * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


def _own(pid: int) -> int:
    """Return the bytes that a process alone holds in memory: weights lie in files."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        found = file.read().split()
    return (int(found[1]) - int(found[2])) * os.sysconf("SC_PAGE_SIZE")
