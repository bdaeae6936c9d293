"""Which zip files are safe to read as a bundle."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from edgeinfer.bounded import ZIP_ERRORS, Archive
from edgeinfer.bundle.paths import collisions, first_double, path_problem
from edgeinfer.bundle.rules import MANIFEST_NAME
from edgeinfer.errors import BundleError

MAX_MEMBERS = 20_000
MAX_RATIO = 20
"""Times that a member may grow when unpacked; deflate reaches 1032 on zeros alone, and weights
hardly grow at all."""
RATIO_FLOOR = 16 << 20
"""Bytes below which no ratio matters."""
MAX_TOTAL = 1 << 40
"""Bytes that a bundle may unpack to."""

_LOCAL_HEADER = 30


def open_zip(name: str, stream: BinaryIO, length: int) -> zipfile.ZipFile:
    """Open a zip and refuse whatever is not a plain, honest one.

    Args:
        name: Name of the bundle, for messages.
        stream: the open file.
        length: its size in bytes.

    Raises:
        BundleError: with one line that says why.
    """
    try:
        archive = Archive(stream)
    except ZIP_ERRORS as e:
        raise BundleError(f"{name}: is a damaged or cut off zip: {e}") from e
    infos = archive.infolist()
    problem = _problem(infos, length) or _beside(stream, infos, archive.start_dir, length)
    if problem and not any(i.filename.endswith(MANIFEST_NAME) for i in infos):
        # An .npz, say: what its members are called is not what is wrong with it.
        problem = no_manifest({})
    if problem:
        archive.close()
        raise BundleError(f"{name}: {problem}")
    return archive


def no_manifest(listing: Mapping[str, int]) -> str:
    """Say what a folder or a zip with these files is, as it has no manifest."""
    nested = next((p for p in listing if p.endswith("/" + MANIFEST_NAME)), None)
    if nested is not None:
        folder = nested.removesuffix(MANIFEST_NAME)
        return f"has its {MANIFEST_NAME} in {folder}: pack the folder's contents, not the folder"
    if "Manifest.json" in listing and any(p.startswith("Data/") for p in listing):
        return "is a Core ML package, not a bundle; convert with -o NAME.edge, which gives one"
    return f"is not a bundle: it has no {MANIFEST_NAME}"


def is_bomb(infos: Iterable[zipfile.ZipInfo], length: int) -> bool:
    """Whether the members unpack to unreasonably much for a file of this length."""
    total = sum(info.file_size for info in infos)
    return total > MAX_TOTAL or (total > RATIO_FLOOR and total > MAX_RATIO * max(length, 1))


def _problem(infos: list[zipfile.ZipInfo], length: int) -> str:
    if len(infos) > MAX_MEMBERS:
        return f"has more than {MAX_MEMBERS} members"
    for info in infos:
        if problem := _member_problem(info):
            return f"member {info.filename!r} {problem}"
    names = [info.filename for info in infos]
    if (twice := first_double(names)) is not None:
        return f"member {twice!r} is there twice"
    if clash := collisions(name.rstrip("/") for name in names if not name.endswith("/")):
        return clash[0]
    if is_bomb(infos, length):
        return f"unpacks to more than {MAX_RATIO} times its size: refused as a decompression bomb"
    return _overlap(infos, length)


def _member_problem(info: zipfile.ZipInfo) -> str:
    # Python maps the backslash of a hostile name to a slash on Windows only; look at the original.
    name = info.orig_filename
    if "\x00" in name:
        return "has a zero byte in its name"
    if problem := path_problem(name.removesuffix("/")):
        return problem
    mode = info.external_attr >> 16
    if info.create_system == 3 and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a special file"
    if info.flag_bits & 0x1:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is packed by a method other than stored or deflated"
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        return "declares two different sizes"
    if info.file_size > RATIO_FLOOR and info.file_size > MAX_RATIO * info.compress_size:
        return "unpacks to unreasonably many bytes: refused as a decompression bomb"
    return ""


def _beside(stream: BinaryIO, infos: list[zipfile.ZipInfo], start: int, length: int) -> str:
    """What is in the file besides the members that are listed: other tools may see a second zip.

    Source: APPNOTE.TXT 6.3.10, sections 4.3.6 to 4.3.16.
    """
    expected = 0
    for info in sorted(infos, key=lambda i: i.header_offset):
        if info.header_offset not in {expected + more for more in (0, *_DESCRIPTORS)}:
            return f"has bytes before member {info.filename!r} that belong to none"
        stream.seek(info.header_offset)
        head = stream.read(_LOCAL_HEADER)
        if len(head) < _LOCAL_HEADER or head[:4] != b"PK\x03\x04":
            return f"member {info.filename!r} has no header"
        name, extra = struct.unpack("<HH", head[26:30])
        expected = info.header_offset + _LOCAL_HEADER + name + extra + info.compress_size
    if start not in {expected + more for more in (0, *_DESCRIPTORS)}:
        return "has bytes behind its members that belong to none"
    return _end(stream, start, length)


_DESCRIPTORS = (12, 16, 20, 24)
"""Bytes that may follow a member that was written as a stream."""


def _end(stream: BinaryIO, start: int, length: int) -> str:
    """Whether a file ends with its list of members."""
    behind = "has bytes behind its end, which may be another zip"
    end = length - 22
    stream.seek(max(end, 0))
    tail = stream.read(22)
    if len(tail) < 22 or tail[:4] != b"PK\x05\x06" or tail[20:] != b"\0\0":
        return behind
    size, offset = struct.unpack("<II", tail[12:20])
    stream.seek(max(end - 76, 0))
    record = stream.read(76)
    # Of large files the numbers are in a record of their own, and a few bytes tell where.
    if len(record) == 76 and record[:4] == b"PK\x06\x06" and record[56:60] == b"PK\x06\x07":
        end -= 76
        size, offset = struct.unpack("<QQ", record[40:56])
    return "" if offset == start and offset + size == end else behind


def _overlap(infos: list[zipfile.ZipInfo], length: int) -> str:
    """Members that share bytes let a small file unpack to anything."""
    end = 0
    for info in sorted(infos, key=lambda i: i.header_offset):
        if info.header_offset < end:
            return f"member {info.filename!r} overlaps another one"
        end = info.header_offset + _LOCAL_HEADER + len(info.orig_filename) + info.compress_size
    return "is cut off" if end > length else ""
