"""Pictures with more parts beside the pixels than any has: each costs Pillow time and memory.

A PNG of 1 MB may hold a thousand colour profiles, each of which is inflated before the size is
known; a JPEG of empty segments keeps 35 times its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import BinaryIO

MOST = 1000
"""Parts before, and in a PNG also behind, the pixels; a colour profile in a JPEG has 255."""

_MOST_STEPS = 200_000
"""Parts of any kind that are walked through: pixels in steps of 8 kB are 1.6 GB."""


def crowd(source: BinaryIO) -> str:
    """Say what there is too much of; empty where there is not. The file is at its begin after."""
    head = source.read(13)
    try:
        for begin, walk in _WALKS:
            if head.startswith(begin):
                return walk(source, head)
    # It ends within a part; what is wrong is reported when it is read.
    except (struct.error, IndexError):
        pass
    finally:
        source.seek(0)
    return ""


def _png(source: BinaryIO, _: bytes) -> str:
    source.seek(8)
    parts = profiles = 0
    for _step in range(_MOST_STEPS):
        length, kind = struct.unpack(">I4s", source.read(8))
        if kind == b"IEND":
            return ""
        parts += kind != b"IDAT"
        profiles += kind == b"iCCP"
        if parts > MOST or profiles > 1:
            return f"{parts} chunks beside the pixels, {profiles} of them colour profiles"
        source.seek(length + 4, 1)
    return f"more than {_MOST_STEPS} chunks"


def _jpeg(source: BinaryIO, _: bytes) -> str:
    source.seek(2)
    filling = 0
    for _step in range(MOST):
        marker = source.read(2)
        while marker == b"\xff\xff" and filling <= MOST:
            marker = b"\xff" + source.read(1)
            filling += 1
        if filling > MOST:
            return f"more than {MOST} bytes of filling"
        if marker[0] != 0xFF or marker[1] in _SIZES or marker[1] in (0xD9, 0xDA):
            return ""
        if marker[1] not in (0x01, *range(0xD0, 0xD8)):
            (length,) = struct.unpack(">H", source.read(2))
            source.seek(max(length - 2, 0), 1)
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


_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that a JPEG's size comes with."""

_WALKS: tuple[tuple[bytes, Callable[[BinaryIO, bytes], str]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8", _jpeg),
    (b"GIF8", _gif),
)
