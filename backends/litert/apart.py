"""Keeping an engine's workers off the core of the thread that runs it, in a virtual machine.

Linux takes a halted core of a virtual machine for one that the host has taken away (on x86, where
``vcpu_is_preempted`` reports it), so a thread that is woken is put on the core of the one that woke
it although others idle. A caller and its engine's worker that once share a core wake each other
there for as long as nothing else moves them, and the worker brings nothing: LiteRT with two threads
was seen to take as long as with one, in every second instance. Real machines look for an idle core.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from threading import get_native_id

from edgeinfer.machine.sysfs import text

EVERY = 8
"""Runs between two looks at where the caller is."""

REST_S = 2e-3
"""Seconds in which workers are moved once at most: callers on several cores would chase them."""

_TASKS = Path("/proc/self/task")
_numbers = count()


@cache
def is_needed() -> bool:
    """Whether this is a virtual machine whose kernel may put workers on the caller's core."""
    if not sys.platform.startswith("linux"):
        return False
    flags = next((s for s in text(Path("/proc/cpuinfo")).splitlines() if s[:5] == "flags"), "")
    return "hypervisor" in flags.split() and _where() is not None


@cache
def _where() -> Callable[[], int] | None:
    """Return what tells the core that the calling thread runs on, where the C library knows."""
    try:
        found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (AttributeError, OSError):
        return None
    return found


class Workers:
    """Threads of an engine that run on any core they may but the caller's.

    Args:
        threads: their numbers.
        where: tells the core of the calling thread.
    """

    __slots__ = ("_at", "_left", "_may", "_rested", "_set", "_where")

    def __init__(self, threads: frozenset[int], where: Callable[[], int]) -> None:
        self._may = {thread: frozenset(os.sched_getaffinity(thread)) for thread in threads}
        self._set = dict(self._may)
        self._left, self._rested, self._at, self._where = 1, 0.0, -1, where

    def look(self) -> None:
        """See where the caller is, now and then, and move workers off its core."""
        self._left -= 1
        if self._left > 0:
            return
        self._left = EVERY
        at = self._where()
        if at != self._at and time.perf_counter() >= self._rested:
            self._at = at
            self._part(at)
            self._rested = time.perf_counter() + REST_S

    def _part(self, core: int) -> None:
        for thread, may in list(self._may.items()):
            try:
                # The number of a thread that has ended may be another process's by now.
                if not (_TASKS / str(thread)).exists():
                    raise ProcessLookupError
                now = frozenset(os.sched_getaffinity(thread))
                if now != self._set[thread]:
                    # Somebody else said where it may run.
                    may = self._may[thread] = now
                rest = may - {core}
                wanted = rest if len(rest) >= len(self._may) else may
                if wanted != now:
                    os.sched_setaffinity(thread, wanted)
                self._set[thread] = wanted
            except OSError:
                del self._may[thread]


@contextmanager
def started(engine: str) -> Iterator[Callable[[], Workers | None]]:
    """Know the threads that are started inside by the calling thread, or by those.

    Args:
        engine: its name, which the threads keep, with a number.

    Yields:
        What returns them; None where there are none, or where the kernel needs no help.
    """
    where = _where()
    if where is None or not is_needed():
        yield lambda: None
        return
    # A thread inherits the name of the one that starts it, which tells those of other callers.
    own, name = _TASKS / str(get_native_id()) / "comm", f"{engine[:8]}-{next(_numbers) % 10**6}"
    before = text(own)
    try:
        own.write_text(name)
    except OSError:
        yield lambda: None
        return
    try:
        yield lambda: _named(name, where)
    finally:
        with suppress(OSError):
            own.write_text(before)


def _named(name: str, where: Callable[[], int]) -> Workers | None:
    """Return the threads of this process that have a name, but for the calling one."""
    try:
        named = {int(t.name) for t in _TASKS.iterdir() if text(t / "comm") == name}
        named.discard(get_native_id())
        return Workers(frozenset(named), where) if named else None
    except OSError:
        return None
