"""Files and texts that should be small and plain, and are whatever somebody else made them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, overload
from urllib.parse import SplitResult, urlsplit

from edgeinfer.printable import visible

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it
    LZMAError = OSError  # type: ignore[misc,assignment]

Place = str | os.PathLike[str]

MAX_LISTED = 100_000
"""Members that any zip may list; reading the list of a million takes ten seconds."""

ZIP_ERRORS: tuple[type[Exception], ...] = (
    *(EOFError, IndexError, KeyError, LZMAError, MemoryError, NotImplementedError, OSError),
    *(OverflowError, RuntimeError, ValueError),
    *(struct.error, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error),
)
"""What opening and reading a zip raises for bytes of any kind.

``zipfile`` promises ``BadZipFile`` only; a version, a method, encryption, a name that is no UTF-8,
sizes and fields that lie give the others.
"""


class _Listing(list[zipfile.ZipInfo]):
    """The members of a zip as they are read."""

    def append(self, info: zipfile.ZipInfo, /) -> None:
        """Refuse one too many: ``zipfile`` reads what a list holds, whatever number it gives."""
        if len(self) >= MAX_LISTED:
            raise zipfile.BadZipFile(f"it lists more than {MAX_LISTED} members")
        super().append(info)


class Archive(zipfile.ZipFile):
    """A zip that somebody else made, opened to read it: its list of members has a bound."""

    def __init__(self, file: Place | IO[bytes]) -> None:
        super().__init__(file)

    @property
    def filelist(self) -> list[zipfile.ZipInfo]:
        """Members in the order of the list."""
        return self._listing

    @filelist.setter
    def filelist(self, members: list[zipfile.ZipInfo]) -> None:
        self._listing = _Listing(members)


@overload
def open_file(path: Place) -> BufferedReader: ...


@overload
def open_file(path: Place, buffering: Literal[0]) -> FileIO: ...


def open_file(path: Place, buffering: int = -1) -> BinaryIO | BufferedReader | FileIO:
    """Open a file to read it, unless it is a pipe or a device, which may never begin or never end.

    Raises:
        OSError: it cannot be read, or is none.
    """
    return open(path, "rb", buffering, opener=_regular)


def _regular(path: Place, flags: int) -> int:
    # Nobody may have opened the other end of a pipe.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    # Folders are distinguished by whoever requested this.
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, _NO_FILE, os.fspath(path))


_NO_FILE = "is a device or a pipe; give a file"


def split_address(text: str) -> SplitResult:
    """Split an address of a machine, with a port that there can be.

    Raises:
        ValueError: it is none.
    """
    found = urlsplit(text)
    # Read, because only then it is looked at.
    if found.port == 0:
        raise ValueError("port 0 is none")
    # Text next to the brackets of an address of IPv6 is in no part of it.
    host = found.netloc.rpartition("@")[2]
    if ("[" in host or "]" in host) and not re.fullmatch(r"\[[^\[\]]*\](:\d*)?", host):
        raise ValueError(f"{host!r} is no host")
    return found


def leads_out(place: Path, folder: Path) -> bool:
    """Whether a link takes a file out of the folder that it is said to lie in.

    Caches of model hubs keep the files of ``snapshots/NAME`` as links to ``blobs`` next to it.

    Raises:
        OSError: links lead in a circle; on some systems a RuntimeError.
    """
    found, within = place.resolve(), folder.resolve()
    if found.is_relative_to(within):
        return False
    hub = within.parents[1] / "blobs" if within.parent.name == "snapshots" else None
    return hub is None or found.parent != hub


def read_bounded(path: Path, most: int) -> bytes:
    """Return a file's bytes, unless there are more than ``most``.

    Raises:
        OSError: it cannot be read, or is larger.
    """
    with open_file(path) as stream:
        # What is requested is allocated at once.
        size = os.fstat(stream.fileno()).st_size
        raw = stream.read(min(size, most) + 1)
        # It grows, or its file system knows no sizes.
        while size < len(raw) <= most and (more := stream.read(min(1 << 20, most + 1 - len(raw)))):
            raw += more
    if len(raw) > most:
        limit = f"{most >> 10} KiB" if most < 1 << 20 else f"{most >> 20} MiB"
        raise OSError(errno.EFBIG, f"it has more than {limit}", os.fspath(path))
    return raw


TIMES, SPARE = 20, 150 << 20
"""Bytes of memory for each byte of a JSON text, and those that any text may take besides.

``[]`` are two bytes of text and 100 in memory, ``{"":0}`` six and 200.
"""


def json_bytes(text: str) -> int:
    """Return the most memory that a JSON text takes with everything that is read from it.

    Numbers of CPython 3.11 on 64 bits, found by reading texts of one kind; nothing is parsed, so
    what stands within strings counts too.
    """
    # A text holds all its characters as wide as the widest one.
    wide = min(4, -(-(sys.getsizeof(text) - 40) // max(len(text), 64)))
    strings, commas = text.count('"') // 2, text.count(",")
    numbers = max(0, commas - strings)
    lists, dicts = text.count("["), text.count("{")
    held = 110 * lists + 90 * dicts + 110 * text.count(":")
    held += (64 if wide == 1 else 84) * strings + 18 * commas + 32 * numbers
    return (1 + 2 * wide) * len(text) + held


def parse_json(raw: bytes | str, spare: int = SPARE) -> Any:
    """Return what a JSON text of anybody says.

    Args:
        raw: UTF-8, or the text.
        spare: bytes that it may take beyond ``TIMES`` its size.

    Raises:
        ValueError: it is none, is nested too deeply, or is little else than brackets.
    """
    text = raw if isinstance(raw, str) else str(raw, "utf-8-sig")
    if (needed := json_bytes(text)) > TIMES * len(text) + spare:
        raise ValueError(f"{len(text)} characters of JSON that take {needed >> 20} MiB to read")
    try:
        return json.loads(text)
    except RecursionError as e:
        raise ValueError("JSON that is nested too deeply") from e


def sha256_of(stream: BinaryIO) -> bytes:
    """Return the SHA-256 digest of what is left in a file."""
    digest = hashlib.sha256()
    while chunk := stream.read(1 << 18):
        digest.update(chunk)
    return digest.digest()


@contextlib.contextmanager
def refused(
    made: Callable[[str], Exception], passed: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn what a library that is written in Rust raises over a file or a text into an error.

    It raises plain Exception for whatever is wrong, and something that is none where its own code
    panics, as where an expression takes too many steps; an interrupt passes.

    Args:
        made: gives the error for a reason.
        passed: errors that pass as they are.
    """
    try:
        yield
    except BaseException as e:
        is_fault = isinstance(e, Exception) or type(e).__name__ == "PanicException"
        if isinstance(e, passed) or not is_fault:
            raise
        raise made(visible(" ".join(str(e).split()))[:300]) from e


def absence(path: Path) -> str:
    """Say why a path is no file that can be read whole."""
    if path.is_dir():
        return "is a folder; name the files in it"
    return _NO_FILE if path.exists() else "no such file"
