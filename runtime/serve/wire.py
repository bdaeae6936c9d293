"""A look at a protobuf message before it is read: its parts take many times their bytes."""

from __future__ import annotations

from typing import Any

from edgeinfer.wire import read_varint

MOST_FIELDS = 1 << 18
"""Fields of a message and of what is in it; a packed list or raw tensor is one."""

MOST_MESSAGES = 1 << 14
"""Messages inside a message, such as tensors and parameters."""

_SMALL = 1 << 16
"""Bytes of a message that needs no look."""


def problem(descriptor: Any, raw: bytes) -> str:
    """Say why a message is not to be read; empty if nothing is against it.

    Args:
        descriptor: Descriptor of its type, as protobuf gives it.
        raw: the message; what is malformed is left to the reader.
    """
    if len(raw) <= _SMALL:
        return ""
    fields = messages = 0
    stack = [(descriptor, 0, len(raw))]
    while stack:
        kind, at, end = stack.pop()
        known = kind.fields_by_number
        while at < end:
            fields += 1
            if fields > MOST_FIELDS:
                return f"a message of more than {MOST_FIELDS} fields; send tensors raw"
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
            if field is not None and field.message_type is not None:
                messages += 1
                if messages > MOST_MESSAGES:
                    return f"a message of more than {MOST_MESSAGES} tensors and parameters"
                stack.append((field.message_type, at, min(at + size, end)))
            at += size
    return ""
