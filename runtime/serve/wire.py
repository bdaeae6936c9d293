"""A look at a protobuf message before it is read: its parts take many times their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.wire import read_varint

MOST_FIELDS = 1 << 16
"""Fields of a message and of what is in it; a packed list, a text or raw tensor is one."""

MOST_MESSAGES = 1 << 14
"""Messages inside a message, such as tensors and parameters."""

_SMALL = 1 << 12
"""Bytes of a message that needs no look."""

_MESSAGE, _FIELD = 512, 128
"""Bytes of memory for each of them, besides what is in it."""

NUMBER = 64
"""Bytes of a number in a list: twice protobuf's, which grows by copying, Python's list and object,
and the array's."""

RAW = 2
"""Copies of raw bytes: protobuf's and Python's."""

_BYTES = 12
_COPIES = {9: 5, _BYTES: RAW}
"""Copies of texts and raw bytes: protobuf's, and Python's, of which a letter may take four bytes.

These are types of fields. Source: google/protobuf/descriptor.proto.
"""

_FIXED = {1: 8, 2: 4, 6: 8, 7: 4, 15: 4, 16: 8}
"""Bytes of a number of each type that always has as many."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a message says of itself.

    Attributes:
        problem: why it is not to be read; empty if nothing is against it.
        weight: bytes of memory that it takes once it is read, and its tensors made.
        raw: bytes in it that are raw tensors, of which nothing is made.
    """

    problem: str
    weight: int = 0
    raw: int = 0


def look(descriptor: Any, raw: bytes) -> Look:
    """Look at a message.

    Args:
        descriptor: Descriptor of its type, as protobuf gives it.
        raw: the message; what is malformed is left to the reader.
    """
    if len(raw) <= _SMALL:
        return Look("", NUMBER * len(raw), 0)
    fields = messages = weight = apart = 0
    stack = [(descriptor, 0, len(raw))]
    while stack:
        kind, at, end = stack.pop()
        known = kind.fields_by_number
        while at < end:
            fields += 1
            if fields > MOST_FIELDS:
                return Look(f"a message of more than {MOST_FIELDS} fields; send tensors raw")
            tag, at = read_varint(raw, at, end)
            if tag is None:
                break
            size, wire = 0, tag & 7
            if wire == 0:
                _, at = read_varint(raw, at, end)
            elif wire == 2:
                length, at = read_varint(raw, at, end)
                size = end if length is None else length
            elif wire in (1, 5):
                at += 8 if wire == 1 else 4
            else:
                break
            field = known.get(tag >> 3) if wire == 2 else None
            until = min(at + size, end)
            if field is not None and field.message_type is not None:
                messages += 1
                if messages > MOST_MESSAGES:
                    text = f"a message of more than {MOST_MESSAGES} tensors and parameters"
                    return Look(text)
                stack.append((field.message_type, at, until))
            elif field is None or field.type in _COPIES:
                weight += _COPIES[_BYTES if field is None else field.type] * (until - at)
                if field is not None and field.type == _BYTES and kind is descriptor:
                    apart += until - at
            else:
                weight += NUMBER * _numbers(field.type, raw, at, until)
            at += size
    return Look("", weight + _FIELD * fields + _MESSAGE * messages, apart)


def _numbers(kind: int, raw: bytes, start: int, end: int) -> int:
    """Count the numbers of a packed list."""
    if kind in _FIXED:
        return (end - start) // _FIXED[kind]
    # The last byte of each has its highest bit clear.
    return int(np.count_nonzero(np.frombuffer(raw, np.int8, end - start, start) >= 0))
