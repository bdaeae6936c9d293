"""Files mapped in pages of two megabytes, where system and file system can.

What reads a whole file again and again waits a good part of its time for the addresses of pages
of four kilobytes. The pages stay the file's own: processes share them, and nothing is copied.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import sys
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgeinfer.machine.cgroup import read_limits
from edgeinfer.machine.facts import free_mb

LARGE = 2 << 20
"""Bytes of a large page."""

_FIRST, _PIECE = 3 * LARGE, 32 * LARGE
"""Bytes that are looked at together; few at first, for where there are no large pages at all."""

_LEAST_SPEED = 5e8
"""Bytes a second that storage must give for a file to be read once more for it."""

_POPULATE_READ = 22
"""Linux's advice that makes all pages present."""


def map_large(file: BinaryIO) -> mmap.mmap:
    """Map a file for reading, in large pages if that takes little.

    The system keeps a file in the pages that it was first read or written with, mostly small ones.
    Those that nobody else has mapped are left to be read again, in large ones.
    """
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if sys.platform == "linux" and len(mapped) >= 2 * LARGE:
        root = Path("/")
        free = free_mb(root, read_limits(root))
        if free is not None and len(mapped) < free << 19:
            # An older system has no such advice; small pages hold the same bytes.
            with contextlib.suppress(OSError):
                _enlarge(mapped, file.fileno())
    return mapped


def _enlarge(mapped: mmap.mmap, file: int) -> None:
    """Go through a mapping by pieces until one cannot be had in large pages cheaply."""
    mapped.madvise(mmap.MADV_HUGEPAGE)
    ends = [*range(_FIRST, len(mapped), _PIECE), len(mapped)]
    for first, end in itertools.pairwise([0, *ends]):
        size = end - first
        # A large page that begins before or ends behind a piece counts for neither.
        wanted = large_bytes(mapped) + size - 2 * LARGE
        mapped.madvise(_POPULATE_READ, first, size)
        if large_bytes(mapped) >= wanted:
            continue
        mapped.madvise(mmap.MADV_DONTNEED, first, size)
        os.posix_fadvise(file, first, size, os.POSIX_FADV_DONTNEED)
        begun = time.perf_counter()
        mapped.madvise(_POPULATE_READ, first, size)
        spent = time.perf_counter() - begun
        if large_bytes(mapped) < wanted or spent * _LEAST_SPEED > size:
            return


def large_bytes(mapped: mmap.mmap) -> int:
    """Return how much of a mapping lies in large pages now; Linux only."""
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    begins = f"{address:x}-".encode()
    with open("/proc/self/smaps", "rb") as file:
        for line in file:
            if line.startswith(begins):
                break
        for line in file:
            name, _, value = line.partition(b":")
            if name == b"FilePmdMapped":
                return int(value.split()[0]) << 10
    return 0
