"""Pictures with more parts besides the pixels than any has: each costs Pillow time and memory.

A PNG of 1 MB may hold a thousand colour profiles, each of which is inflated before the size is
known; a JPEG of empty segments keeps 35 times its bytes; each tag of a TIFF, or of what a camera
wrote besides the pixels (Exif, a TIFF within the file), is a warning.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

MOST = 1000
"""Parts before, and in a PNG also behind, the pixels; a colour profile in a JPEG has 255."""

_MOST_ANIMATED = 1 << 24
"""Pixels of an animated PNG: Pillow before 13 fills an image of them while it opens the file."""

_MOST_STEPS = 200_000
"""Parts of any kind that are walked through: pixels in steps of 8 kB are 1.6 GB."""


_MOST_SCANS = 100
"""Of a JPEG; programs write ten."""

_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd7]")
"""Between the scans of a JPEG."""

_BARE = frozenset({0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)})
"""Markers of a JPEG that Pillow takes for ones without content."""

_LONG = frozenset({0xC4, 0xCC, *range(0xDA, 0xDE), *range(0xE0, 0xF0), 0xFE})
"""Markers of segments, which say their length, that may be behind the first scan of a JPEG.

Others a decoder throws away and looks for the next marker, or ends there.
"""

_END = -1
"""In the place of a marker: the file ends."""

_MOST_EXIF = 1 << 20
"""Bytes that a camera wrote besides the pixels; a small image is among them."""

_MOST_VALUES = 1 << 20
"""Numbers of one tag."""

_PARTS = (273, 279, 324, 325)
"""Tags that say where strips and tiles lie: each of these is an object of Pillow's."""

_MOST_PARTS = 1 << 16

_UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
_UNITS |= {13: 4, 16: 8, 17: 8, 18: 8}
"""Bytes of a value of each type of tags; there may be any number of those that are bytes."""

_TILE = (322, 323)
_SIDES = (256, 257, *_TILE)
"""Tags of width and height, of the image and of its tiles."""

_LISTS = (0x8769, 0x8825, 0xA005)
"""Tags that name further lists: of the camera, of the place, of what programs agreed on."""

_MOST_LISTS = 8

_COUNTS = {3: "H", 4: "I", 13: "I"}
_BIG_COUNTS = {**_COUNTS, 16: "Q", 18: "Q"}
"""Types of tags that count, and how they are kept."""

_MOST_TILE = 1 << 20
"""Pixels of a tile, which a decoder has in memory whole, where the image has fewer."""

_MOST_TIMES = 4
"""Bytes of all tags for each of the file: many may name the same."""


def crowd(source: BinaryIO) -> str:
    """Say what there is too much of; empty where there is not. The file is at its begin after."""
    head = source.read(13)
    try:
        for begin, walk in _WALKS:
            if head.startswith(begin):
                return walk(source, head)
    except _CrowdedError as e:
        return str(e)
    # It ends within a part; what is wrong is reported when it is read.
    except _ENDS:
        pass
    finally:
        source.seek(0)
    return ""


def _png(source: BinaryIO, _: bytes) -> str:
    source.seek(8)
    parts = profiles = pixels = animations = 0
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
            return f"{parts} chunks besides the pixels, {profiles} of them colour profiles"
        animations += kind == b"acTL"
        if kind == b"IHDR" and length >= 8:
            pixels = max(pixels, math.prod(struct.unpack(">II", source.read(8))))
            source.seek(-8, 1)
        if animations and pixels > _MOST_ANIMATED:
            return f"an animation of {pixels} pixels"
        source.seek(length + 4, 1)
    return f"more than {_MOST_STEPS} chunks"


def _jpeg(source: BinaryIO, _: bytes) -> str:
    """Walk as Pillow does, to the first scan, and then as its decoder does."""
    exif = b""
    for kind, content in _segments(source):
        if kind == 0xDA:
            return _exif(exif) or _scans(source.read())
        # Pillow puts those of several segments together.
        if kind == 0xE1 and content.startswith(_EXIF) and len(exif) <= _MOST_EXIF:
            exif += content[len(_EXIF) :]
        # An index of several images is a list of tags as well; Pillow before 13 reads it at once.
        index = content.removeprefix(_INDEX)
        is_index = kind == 0xE2 and index != content and index.startswith(_ORDERS)
        if is_index and (found := _exif(index)):
            return f"an index of images with {found}"
    # Of one that is cut off Pillow reads what a camera wrote as well.
    return _exif(exif)


def several_scans(source: BinaryIO) -> bool:
    """Say whether the first scan of a JPEG has not all of its components.

    Its decoder then keeps all coefficients, as it does for a progressive one. The file is at its
    begin after.
    """
    components = 0
    try:
        if source.read(2) == b"\xff\xd8":
            for kind, content in _segments(source):
                if kind in _FRAMES:
                    components = max(components, content[5])
                elif kind == 0xDA:
                    return content[0] < components
    # What is wrong is reported when it is read.
    except (*_ENDS, _CrowdedError):
        pass
    finally:
        source.seek(0)
    return False


class _CrowdedError(Exception):
    """There is too much of something."""


def _segments(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Give the markers of a JPEG and what they hold, to the head of the first scan or the end."""
    source.seek(2)
    filling = 0
    for _step in range(MOST):
        kind, between = _marker(source)
        filling += between
        if filling > MOST:
            raise _CrowdedError(f"more than {MOST} bytes of filling")
        if kind == _END:
            return
        if kind in _BARE:
            continue
        (length,) = struct.unpack(">H", source.read(2))
        yield kind, source.read(max(length - 2, 0))
        if kind == 0xDA:
            return
    raise _CrowdedError(f"more than {MOST} segments before the image")


def _marker(source: BinaryIO) -> tuple[int, int]:
    """Return the next marker of a JPEG, and the bytes before it that are none, so far as counts."""
    is_begun, between = False, 0
    while between <= MOST:
        if not (read := source.read(1)):
            return _END, between
        byte = read[0]
        if is_begun and byte not in (0x00, 0xFF):
            return byte, between
        between += is_begun or byte != 0xFF
        is_begun = byte == 0xFF
    return 0, between


def _scans(data: bytes) -> str:
    """Count the scans of a JPEG behind the head of the first: each takes time by the pixels."""
    place, scans = 0, 1
    for _ in range(MOST):
        found = _MARKER.search(data, place)
        if found is None or (kind := data[found.end() - 1]) == 0xD9:
            return ""
        scans += kind == 0xDA
        if scans > _MOST_SCANS:
            return f"more than {_MOST_SCANS} scans"
        if kind not in _LONG:
            return f"a marker FF {kind:02X} behind the first scan"
        (length,) = struct.unpack_from(">H", data, found.end())
        place = found.end() + length
    return f"more than {MOST} segments behind the first scan"


def _gif(source: BinaryIO, head: bytes) -> str:
    table = 3 << ((head[10] & 7) + 1) if head[10] & 0x80 else 0
    source.seek(13 + table)
    blocks = comments = 0
    for _step in range(MOST):
        # Pillow takes what begins no block for filling.
        if (begin := source.read(1)) in (b"", b",", b";"):
            return ""
        if begin != b"!":
            continue
        is_comment = source.read(1) == b"\xfe"
        while length := source.read(1)[0]:
            source.seek(length, 1)
            blocks += 1
            comments += is_comment
            # Those of a comment are joined one by one before Pillow 13.
            if blocks > _MOST_STEPS or comments > MOST:
                return f"{blocks} blocks before the image, {comments} of them of comments"
    return f"more than {MOST} extensions, or bytes between them, before the image"


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
EXIF_TEXT = "Raw profile type exif"
_INDEX = b"MPF\0"

_ORDERS = b"II", b"MM"
_HEADS = {b"II*\0": ("<", False), b"MM\0*": (">", False), b"II+\0": ("<", True)}
"""Order of bytes, and whether places have eight of them, by how a TIFF begins. Pillow takes others
too, and reads them otherwise than they say: ``MM 00 2B`` is a large one, read as a plain one."""

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a JPEG's size and components."""


def _exif(content: bytes) -> str:
    """Say what there is too much of in what a camera wrote.

    What begins with no list of tags is refused: Pillow before 13 takes any number of prefixes away.
    """
    content = content.removeprefix(_EXIF).removeprefix(_EXIF)
    if not content:
        return ""
    if len(content) > _MOST_EXIF:
        return f"more than {_MOST_EXIF} bytes of Exif"
    try:
        return _tiff(io.BytesIO(content), content[:13])
    except _ENDS:
        return ""


def crowded_text(info: Mapping[Any, Any]) -> str:
    """Say what there is too much of in Exif that a PNG has as text, in hexadecimal.

    Args:
        info: what Pillow read besides the pixels.
    """
    text = info.get(EXIF_TEXT)
    if not isinstance(text, str):
        return ""
    try:
        # Before the numbers are an empty line, a name and a length.
        return _exif(bytes.fromhex("".join(text.split("\n")[3:])))
    except ValueError:
        return "Exif that is no text of hexadecimal digits"


def _tiff(source: BinaryIO, head: bytes) -> str:
    """Look at the first list of tags, and those below it, which is all that is read."""
    if len(head) < 4:
        return ""
    if (found := _HEADS.get(head[:4])) is None:
        return f"a list of tags that begins with {head[:4].hex(' ')}"
    order, is_big = found
    size = source.seek(0, io.SEEK_END)
    begin, count, entry = ("Q", "Q", "HHQ8s") if is_big else ("I", "H", "HHI4s")
    source.seek(8 if is_big else 4)
    waiting = [*_unpacked(source, order + begin)]
    held, sides, counts = 0, dict[int, int](), _BIG_COUNTS if is_big else _COUNTS
    for number in range(_MOST_LISTS + 1):
        if number == len(waiting):
            break
        if number == _MOST_LISTS:
            return f"more than {_MOST_LISTS} lists of tags"
        # One below the first that does not begin within the file has no tags.
        if not number and waiting[number] >= size:
            return f"a first list of tags at {waiting[number]}, of {size} bytes"
        source.seek(min(waiting[number], size))
        (tags,) = _unpacked(source, order + count) or (0,)
        if tags > MOST:
            return f"{tags} tags"
        for _ in range(tags):
            if not (own_entry := _unpacked(source, order + entry)):
                break
            tag, kind, values, own = own_entry
            if kind in counts and values == 1:
                (value,) = struct.unpack_from(order + counts[kind], own)
                if tag in _LISTS:
                    waiting.append(value)
                elif tag in _SIDES and not number:
                    # Of a tag that is there twice, what takes more.
                    sides[tag] = (max if tag in _TILE else min)(value, sides.get(tag, value))
            elif tag in (*_TILE, *_LISTS):
                return f"a size of tiles, or a list of tags, of {values} numbers of type {kind}"
            if tag in _PARTS and values > _MOST_PARTS:
                return f"{values} strips or tiles"
            unit = _UNITS.get(kind, 0)
            if unit != 1 and values > _MOST_VALUES:
                return f"{values} numbers of tag {tag}"
            # Of what lies behind the end there is nothing to read.
            held += min(unit * values, size)
            if held > _MOST_TIMES * size:
                return f"tags of more than {_MOST_TIMES} times the bytes that there are"
    wide, high, *tile = (sides.get(tag, 0) for tag in _SIDES)
    if math.prod(tile) > max(_MOST_TILE, 2 * wide * high):
        return f"tiles of {tile[0]} by {tile[1]} in an image of {wide} by {high}"
    return ""


def _unpacked(source: BinaryIO, form: str) -> tuple[Any, ...]:
    """Read numbers; nothing where the file ends before."""
    read = source.read(struct.calcsize(form))
    return struct.unpack(form, read) if len(read) == struct.calcsize(form) else ()


_WALKS: tuple[tuple[bytes, Callable[[BinaryIO, bytes], str]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8", _jpeg),
    (b"GIF8", _gif),
    (b"RIFF", _webp),
    (b"II", _tiff),
    (b"MM", _tiff),
)
