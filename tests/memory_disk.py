"""A temporary folder in memory for test runs: a disk takes milliseconds to remove a folder."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "tests-of-edgeinfer-"
"""Another than that of what the product itself keeps there, which sweeps it."""
ROOM = 4 << 30
"""Bytes that must be free; a whole run leaves half a gigabyte."""


def use(memory: Path = MEMORY, room: int = ROOM) -> Path | None:
    """Let this process and those that it starts put temporary files into memory.

    Nothing is changed where ``TMPDIR`` says where they go (what failed tests wrote then stays), or
    where there is too little room. The folder goes with this process; what killed runs left goes
    with the next one.
    """
    if sys.platform != "linux" or os.environ.get("TMPDIR") or not _has_room(memory, room):
        return None
    for old in memory.glob(f"{PREFIX}*"):
        if not _runs(old.name.removeprefix(PREFIX)):
            shutil.rmtree(old, ignore_errors=True)
    owner = os.getpid()
    folder = memory / f"{PREFIX}{owner}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    # pytest has looked for the folder by then, and it is remembered.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _has_room(memory: Path, room: int) -> bool:
    try:
        # Containers often mount it so that no library there is mapped as code.
        if os.statvfs(memory).f_flag & os.ST_NOEXEC:
            return False
        free = shutil.disk_usage(memory).free
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return False
    available = next((int(n.split()[1]) << 10 for n in lines if n.startswith("MemAvailable")), 0)
    return os.access(memory, os.W_OK) and min(free, available) >= room


def _runs(number: str) -> bool:
    return not number.isdecimal() or Path("/proc", number).exists()
