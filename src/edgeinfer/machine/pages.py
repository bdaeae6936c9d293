"""Memory that is kept although nobody needs it now."""

from __future__ import annotations

import ctypes
import functools
import gc
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MAPPED_FILE = (
    r"^([0-9a-f]+)-([0-9a-f]+) r--s [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [1-9]\d* +"
    r"/(?!memfd:|dev/|proc/|sys/)"
)
"""A shared mapping that is only read: its pages are the file's own and come back when touched. A
private one may hold pages that differ from the file, a library's relocations for one; one of a
device, such as a GPU's registers, has no file to come back from."""

_UNTOUCHED = (
    r"^([0-9a-f]+)-([0-9a-f]+) r-[-x]p [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [1-9]\d* +"
    r"/(?!memfd:|dev/|proc/|sys/).*\n(?:[A-Z]\w+: .*\n)*?Anonymous: +0 kB$"
)
"""A private mapping of a file, of which no page differs from it: code and constants of libraries,
but for those which were relocated."""


_asked: list[Callable[[], None]] = []


def resident_mb(process: int | str = "self") -> float:
    """Return the memory that a process holds; 0 where the system does not say cheaply."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def when_giving_back(action: Callable[[], None]) -> None:
    """Have something else give its memory back first, each time that ``give_back`` is called."""
    _asked.append(action)


_code_mb = 0.0


@contextmanager
def loading_code() -> Iterator[None]:
    """Count what the process grows by in the block as code, which nobody can give back."""
    global _code_mb
    before = resident_mb()
    yield
    _code_mb += max(0.0, resident_mb() - before)


SMALL_MB = 256.0
"""What a process may hold in addition to large libraries before it is worth a tenth of a second to
look for what it can give back while it is at work."""


def give_back(above_mb: float = 0.0) -> None:
    """Give freed memory and the pages of mapped files back to the system; Linux only.

    A closed engine leaves hundreds of megabytes in glibc's arenas, and the next engine adds its own
    to them; other allocators return large blocks by themselves. A mapped page is read again from
    the system's cache when it is next touched.

    Args:
        above_mb: resident memory up to which nothing is done.
    """
    if above_mb and 0.0 < resident_mb() - _code_mb <= above_mb:
        return
    _give_freed()
    if sys.platform == "linux":
        _drop("/proc/self/maps", _MAPPED_FILE)


def give_back_start() -> None:
    """Give back what only a program's start needed; Linux only.

    That is freed memory, and pages of libraries: of a server of one small model a third of its
    memory. What is touched again comes back from the system's cache. Weights stay where they are.
    """
    if sys.platform == "linux":
        _give_freed()
        _drop("/proc/self/smaps", _UNTOUCHED)


def _give_freed() -> None:
    """Give freed memory back, also such between what is used; a library of C may know no way."""
    gc.collect()
    for action in _asked:
        action()
    trim()


def trim() -> None:
    """Give back what malloc keeps of freed memory, where it knows a way; it takes a millisecond.

    Of a program that runs for months, which asks for blocks of all sizes, that grows for long.
    """
    if sys.platform == "linux" and hasattr(_library(), "malloc_trim"):
        _library().malloc_trim(0)


_ARENAS, _M_ARENA_MAX = 2, -8
"""Heaps of malloc that the threads of a server share, and glibc's name of that setting."""


def share_heaps() -> None:
    """Have all threads of this process share two heaps of malloc; before they begin, Linux only.

    glibc makes up to eight a processor, and keeps up to 64 MB at the end of each, which
    ``malloc_trim`` leaves there. Threads have small blocks of their own all the same. What the
    environment says of heaps holds. Source: glibc 2.36, malloc/arena.c and malloc.c (``mtrim``).
    """
    given = os.environ.get("MALLOC_ARENA_MAX") or os.environ.get("GLIBC_TUNABLES")
    if sys.platform == "linux" and not given and hasattr(_library(), "mallopt"):
        _library().mallopt(_M_ARENA_MAX, _ARENAS)


_KEPT_BYTES, _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = 32 << 20, -1, -3
"""Freed bytes that a server keeps until ``trim``, the largest block that glibc keeps among them at
all, and its names of the two settings."""


def keep_freed() -> None:
    """Have malloc keep what is freed at the end of its heap, Linux only; ``trim`` gives it back.

    Else glibc gives it back each time that a batch of large bodies is answered, and the system
    clears each page of the next one, which takes a third of such a request. What the environment
    says holds. Source: glibc 2.36, malloc/malloc.c (``do_set_mmap_threshold``: 32 MiB at most; to
    set either turns off that glibc chooses both).
    """
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    given = any(os.environ.get(name) for name in names)
    if sys.platform == "linux" and not given and hasattr(_library(), "mallopt"):
        for setting in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            _library().mallopt(setting, _KEPT_BYTES)


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the library of C; one more each time would be a ring of garbage each time."""
    return ctypes.CDLL(None)


def _drop(table: str, kind: str) -> None:
    """Drop the pages of mappings of one kind."""
    library = _library()
    try:
        with open(table, encoding="utf-8", errors="replace") as file:
            maps = file.read()
    except OSError:
        return
    for start, end in re.findall(kind, maps, re.MULTILINE):
        first = int(start, 16)
        size = ctypes.c_size_t(int(end, 16) - first)
        library.madvise(ctypes.c_void_p(first), size, mmap.MADV_DONTNEED)
