"""How long processes took themselves: what they waited for a processor does not count."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

LOOK_S = 0.1
"""How often a process is looked at; until then it is taken to have done what it does then."""


class Patience:
    """Time that a process and those that it started took of their own, in seconds.

    What is asleep takes all of the time. What can run, or waits for a disk, takes the processor
    time that it got: on a busy machine, or stopped by a quota, that is less. Where there is no
    /proc, all is taken to be asleep.

    Args:
        process: the one waited for, which nobody reaps meanwhile.
        seconds: what it may take until the next ``renew``.
    """

    def __init__(self, process: int, seconds: float) -> None:
        self.process, self.seconds = process, seconds
        self.looked = time.monotonic()
        self.processor = _look(process)[0]
        self.own = 0.0

    def renew(self) -> None:
        """Give the whole time again."""
        self.own = 0.0

    def is_over(self) -> bool:
        """Say whether the process took more than it may."""
        passed = time.monotonic() - self.looked
        if passed >= LOOK_S:
            processor, asleep = _look(self.process)
            used = max(processor - self.processor, 0.0)
            # What happened while the one that looks had no processor itself, nobody knows.
            self.own += min(passed, LOOK_S) if asleep else min(used, passed)
            self.looked, self.processor = time.monotonic(), processor
        return self.own > self.seconds


def _look(process: int) -> tuple[float, bool]:
    """Return the processor time of a process and what it started, and whether all of it sleeps."""
    processor, asleep = 0.0, True
    for number in _tree(process):
        for task in _listed(Path(f"/proc/{number}/task")):
            fields = _fields(Path(f"/proc/{number}/task/{task}/stat"))
            asleep &= not fields or fields[0] not in "RD"
        fields = _fields(Path(f"/proc/{number}/stat"))
        # Its own user and system time, and that of its children that have ended.
        processor += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return processor, asleep


def _tree(process: int) -> Iterator[int]:
    yield process
    for task in _listed(Path(f"/proc/{process}/task")):
        for child in _read(Path(f"/proc/{process}/task/{task}/children")).split():
            yield from _tree(int(child))


def _fields(path: Path) -> list[str]:
    """Return the fields after the name, which may hold spaces and brackets."""
    return _read(path).rpartition(")")[2].split()


def _listed(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read(path: Path) -> str:
    """Return a file of /proc; of a process that has ended, nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
