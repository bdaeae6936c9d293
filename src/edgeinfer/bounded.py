"""Files and texts that should be small and plain, and are whatever somebody else made them."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it
    LZMAError = OSError  # type: ignore[misc,assignment]

ZIP_ERRORS: tuple[type[Exception], ...] = (
    *(EOFError, IndexError, KeyError, LZMAError, MemoryError, NotImplementedError, OSError),
    *(OverflowError, RuntimeError, ValueError),
    *(struct.error, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error),
)
"""What opening and reading a zip raises for bytes of any kind.

``zipfile`` promises ``BadZipFile`` only; a version, a method, encryption, a name that is no UTF-8,
sizes and fields that lie give the others.
"""


def read_bounded(path: Path, most: int) -> bytes:
    """Return a file's bytes, unless there are more than ``most``; a device may never end.

    Raises:
        OSError: it cannot be read, or is larger.
    """
    with path.open("rb") as stream:
        raw = stream.read(most + 1)
    if len(raw) > most:
        size = f"{most >> 10} KiB" if most < 1 << 20 else f"{most >> 20} MiB"
        raise OSError(errno.EFBIG, f"it has more than {size}", os.fspath(path))
    return raw


def sha256_of(stream: BinaryIO) -> bytes:
    """Return the SHA-256 digest of what is left in a file."""
    digest = hashlib.sha256()
    while chunk := stream.read(1 << 18):
        digest.update(chunk)
    return digest.digest()


def visible(text: str) -> str:
    """Return a text without what commands a terminal: names in files are anybody's."""
    return "".join(c if c.isprintable() or c in "\n\t " else ascii(c)[1:-1] for c in text)


def absence(path: Path) -> str:
    """Say why a path is no file that can be read whole."""
    if path.is_dir():
        return "is a folder; name the files in it"
    return "is a device or a pipe; give a file" if path.exists() else "no such file"
