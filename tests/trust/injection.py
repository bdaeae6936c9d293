"""Fails one step of an operation: a file, memory, an interrupt, a signal, a clock that jumps.

Python tells an audit hook of each file that is opened, renamed or removed, each folder, map,
process and database, before it happens; what the hook raises is what the caller gets. Steps are
counted in that order, so the same number is the same place in every run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

Kind = Literal["disk", "memory", "interrupt", "later", "earlier", "terminate", "kill"]
CLOCKS: tuple[Kind, ...] = ("later", "earlier")
KINDS: tuple[Kind, ...] = ("disk", "memory", "interrupt", *CLOCKS)
SIGNALS: dict[Kind, int] = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}
"""They end the process, which so has to be another one: ``tests/trust/killed.py``."""

_STEPS = frozenset(
    {"open", "os.mkdir", "os.rename", "os.remove", "os.truncate", "os.link", "os.symlink"}
    | {"mmap.__new__", "tempfile.mkstemp", "tempfile.mkdtemp", "shutil.copyfile", "os.chmod"}
    | {"sqlite3.connect", "subprocess.Popen", "os.utime", "fcntl.flock", "os.scandir"}
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_TIMES: dict[Kind, float] = {"later": 4.2e9, "earlier": 5.0}
"""Seconds since 1970: beyond what 32 bits hold, and where a board without a battery begins."""


class Injector:
    """Fails step ``at``; counts them all.

    Attributes:
        steps: that were seen.
        done: whether it failed one.
    """

    def __init__(self, kind: Kind, at: int) -> None:
        self.kind, self.at = kind, at
        self.steps = 0
        self.done = False
        self._thread = threading.get_ident()

    def seen(self, event: str, args: tuple[object, ...]) -> None:
        """Count a step, and fail it if it is the one."""
        if threading.get_ident() != self._thread or not _counts(event, args):
            return
        self.steps += 1
        if self.steps != self.at:
            return
        self.done = True
        name = str(args[0]) if args and isinstance(args[0], str | os.PathLike) else None
        if self.kind == "disk":
            number = errno.ENOSPC if _writes(event, args) else errno.EIO
            raise OSError(number, os.strerror(number), name)
        if self.kind == "memory":
            raise MemoryError
        if self.kind == "interrupt":
            raise KeyboardInterrupt
        if self.kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.kind])


def _counts(event: str, args: tuple[object, ...]) -> bool:
    if event not in _STEPS:
        return False
    path = args[0] if args else None
    # What the interpreter reads for itself, and what the system tells of this process.
    is_code = isinstance(path, str) and path.endswith((".py", ".pyc", ".so"))
    is_system = isinstance(path, str) and path.startswith(("/proc", "/sys", "/dev/null"))
    return not (is_code or is_system)


def _writes(event: str, args: tuple[object, ...]) -> bool:
    if event != "open":
        return True
    flags = args[2] if len(args) > 2 and isinstance(args[2], int) else 0
    return bool(flags & _WRITING)


_active: Injector | None = None
_is_hooked = False


def _hook(event: str, args: tuple[object, ...]) -> None:
    if _active is not None:
        _active.seen(event, args)


@contextlib.contextmanager
def injected(kind: Kind, at: int) -> Iterator[Injector]:
    """Fail a step of what runs in the block; 0 fails none."""
    global _active, _is_hooked
    if not _is_hooked:
        # There is no way to remove one; it does nothing outside of such a block.
        sys.addaudithook(_hook)
        _is_hooked = True
    made = Injector(kind, at)
    clock = time.time

    start = clock()

    def jumped() -> float:
        now = clock()
        return _TIMES[kind] + now - start if made.done else now

    if kind in CLOCKS:
        time.time = jumped
    _active = made
    try:
        yield made
    finally:
        _active = None
        time.time = clock


def steps_of(act: Callable[[], object]) -> int:
    """Count the steps of an operation."""
    with injected("disk", 0) as counted:
        act()
    return counted.steps


def leftovers(*folders: Path) -> list[Path]:
    """Find temporary files that something left behind."""
    found = [p for folder in folders for p in folder.rglob("*")]
    marks = (".tmp-", ".unpack-", "edgeinfer-")
    return [p for p in found if any(mark in p.name for mark in marks)]
