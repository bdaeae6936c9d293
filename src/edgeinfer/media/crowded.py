"""Pictures with more parts beside the pixels than any has: each costs Pillow time and memory.

A PNG of 1 MB may hold a thousand colour profiles, each of which is inflated before the size is
known; a JPEG of empty segments keeps 35 times its bytes; each tag of a TIFF, or of what a camera
wrote beside the pixels (Exif, a TIFF within the file), is a warning.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import BinaryIO

MOST = 1000
"""Parts before, and in a PNG also behind, the pixels; a colour profile in a JPEG has 255."""

_MOST_STEPS = 200_000
"""Parts of any kind that are walked through: pixels in steps of 8 kB are 1.6 GB."""


_MOST_EXIF = 1 << 20
"""Bytes that a camera wrote beside the pixels; a small picture is among them."""

_MOST_VALUES = 1 << 20
"""Numbers of one tag: a TIFF of 16384 by 16384 in tiles of 16 has as many."""

_BYTES = frozenset({1, 2, 6, 7})
"""Types of tags whose values are bytes; there may be any number of these."""


def crowd(source: BinaryIO) -> str:
    """Say what there is too much of; empty where there is not. The file is at its begin after."""
    head = source.read(13)
    try:
        for begin, walk in _WALKS:
            if head.startswith(begin):
                return walk(source, head)
    # It ends within a part; what is wrong is reported when it is read.
    except _ENDS:
        pass
    finally:
        source.seek(0)
    return ""


def _png(source: BinaryIO, _: bytes) -> str:
    source.seek(8)
    parts = profiles = 0
    crowded = ""
    for _step in range(_MOST_STEPS):
        length, kind = struct.unpack(">I4s", source.read(8))
        if kind == b"IEND" or crowded:
            return crowded
        if kind == b"eXIf":
            crowded = _exif(source.read(min(length, _MOST_EXIF + 1)))
            source.seek(-min(length, _MOST_EXIF + 1), 1)
        parts += kind != b"IDAT"
        profiles += kind == b"iCCP"
        if parts > MOST or profiles > 1:
            return f"{parts} chunks beside the pixels, {profiles} of them colour profiles"
        source.seek(length + 4, 1)
    return f"more than {_MOST_STEPS} chunks"


def _jpeg(source: BinaryIO, _: bytes) -> str:
    source.seek(2)
    filling, exif = 0, b""
    for _step in range(MOST):
        marker = source.read(2)
        while marker == b"\xff\xff" and filling <= MOST:
            marker = b"\xff" + source.read(1)
            filling += 1
        if filling > MOST:
            return f"more than {MOST} bytes of filling"
        if marker[0] != 0xFF or marker[1] in _SIZES or marker[1] in (0xD9, 0xDA):
            return _exif(exif)
        if marker[1] not in (0x01, *range(0xD0, 0xD8)):
            (length,) = struct.unpack(">H", source.read(2))
            content = source.read(max(length - 2, 0))
            # Pillow puts those of several segments together.
            if marker[1] == 0xE1 and content.startswith(_EXIF) and len(exif) <= _MOST_EXIF:
                exif += content[len(_EXIF) :]
    return f"more than {MOST} segments before the picture's size"


def _gif(source: BinaryIO, head: bytes) -> str:
    table = 3 << ((head[10] & 7) + 1) if head[10] & 0x80 else 0
    source.seek(13 + table)
    for _step in range(MOST):
        if source.read(1) != b"!":
            return ""
        source.seek(1, 1)
        steps = 0
        while length := source.read(1)[0]:
            source.seek(length, 1)
            steps += 1
            if steps > _MOST_STEPS:
                return f"a comment of more than {_MOST_STEPS} pieces"
    return f"more than {MOST} extensions before the picture"


def _webp(source: BinaryIO, head: bytes) -> str:
    if head[8:12] != b"WEBP":
        return ""
    source.seek(12)
    for _step in range(MOST):
        part = source.read(8)
        if len(part) < 8:
            return ""
        kind, length = struct.unpack("<4sI", part)
        if kind == b"EXIF":
            return _exif(source.read(min(length, _MOST_EXIF + 1)))
        source.seek(length + length % 2, 1)
    return f"more than {MOST} parts"


_ENDS = struct.error, IndexError, OverflowError, ValueError, OSError

_EXIF = b"Exif\x00\x00"


def _exif(content: bytes) -> str:
    """Say what there is too much of in what a camera wrote."""
    content = content.removeprefix(_EXIF)
    if len(content) > _MOST_EXIF:
        return f"more than {_MOST_EXIF} bytes of Exif"
    try:
        return _tiff(io.BytesIO(content), content[:13])
    except _ENDS:
        return ""


def _tiff(source: BinaryIO, head: bytes) -> str:
    """Look at the first list of tags, which is all that is read of the file before its pixels."""
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    if order is None:
        return ""
    is_big = 43 in head[2:4]
    begin, count, entry = ("Q", "Q", "HHQ8x") if is_big else ("I", "H", "HHI4x")
    source.seek(8 if is_big else 4)
    (place,) = struct.unpack(order + begin, source.read(struct.calcsize(order + begin)))
    source.seek(place)
    (tags,) = struct.unpack(order + count, source.read(struct.calcsize(order + count)))
    if tags > MOST:
        return f"{tags} tags"
    for _ in range(tags):
        tag, kind, values = struct.unpack(
            order + entry, source.read(struct.calcsize(order + entry))
        )
        if kind not in _BYTES and values > _MOST_VALUES:
            return f"{values} numbers of tag {tag}"
    return ""


_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that a JPEG's size comes with."""

_WALKS: tuple[tuple[bytes, Callable[[BinaryIO, bytes], str]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8", _jpeg),
    (b"GIF8", _gif),
    (b"RIFF", _webp),
    (b"II", _tiff),
    (b"MM", _tiff),
)
