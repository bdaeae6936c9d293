"""Files that were made on this machine and are kept in its cache: whole, or made again.

Next to each lies a record with its SHA-256, which is written last: a file that was cut off,
altered, or is of another writer than its record is as none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgeinfer.bounded import open_file, read_bounded, sha256_of

_RECORD = ".sha256"


def is_whole(path: Path) -> bool:
    """Whether a file is the one that was kept, byte for byte."""
    try:
        with open_file(path) as file:
            found = sha256_of(file).hex()
        return read_bounded(_record(path), 64) == found.encode()
    except OSError:
        return False


def keep(made: Path, path: Path) -> None:
    """Move a file to its place, and its record after it, when each is on the disk.

    Args:
        made: the file, on the same disk.
        path: its place.

    Raises:
        OSError: the folder cannot be written.
    """
    with open_file(made) as file:
        found = sha256_of(file).hex()
    record = _record(made)
    record.write_text(found, encoding="ascii")
    for each in (made, record):
        write_through(each)
    os.replace(made, path)
    os.replace(record, _record(path))


def write_through(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on the disk.

    Raises:
        OSError: it cannot be read or written.
    """
    if sys.platform == "win32" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}{_RECORD}")
