"""Bytes of protobuf messages, read without their schemas."""

from __future__ import annotations

from typing import Protocol

from edgeinfer.records import dataclass


class Bytes(Protocol):
    """What ``walk`` needs of ``bytes`` and of a memory map."""

    def __len__(self) -> int:
        """Return the number of bytes."""
        ...

    def __getitem__(self, index: int, /) -> int:
        """Return one byte."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """The top level of a message.

    Attributes:
        fields: field number to wire type (0 varint, 1 and 5 fixed, 2 length-delimited).
        missing_bytes: how far the last field reaches beyond the end; 0 for a whole message.
    """

    fields: dict[int, int]
    missing_bytes: int


_FIXED = {1: 8, 5: 4}


def walk(data: Bytes) -> Wire | None:
    """Read the top level; None when it is not a protobuf message.

    Source: https://protobuf.dev/programming-guides/encoding/
    """
    fields: dict[int, int] = {}
    position, size = 0, len(data)
    while position < size:
        tag, position = read_varint(data, position)
        if tag is None:
            return Wire(fields, 1) if position >= size and fields else None
        number, kind = tag >> 3, tag & 7
        if number == 0 or fields.setdefault(number, kind) != kind:
            return None
        if kind == 0:
            value, position = read_varint(data, position)
            if value is None:
                return Wire(fields, 1) if position >= size else None
        elif kind in _FIXED:
            position += _FIXED[kind]
        elif kind == 2:
            length, position = read_varint(data, position)
            if length is None:
                return Wire(fields, 1) if position >= size else None
            position += length
        else:
            return None
    return Wire(fields, position - size)


def read_varint(data: Bytes, position: int, end: int | None = None) -> tuple[int | None, int]:
    """Return the value and the position after it; None when it does not end before ``end``."""
    value, end = 0, len(data) if end is None else end
    for shift in range(0, 70, 7):
        if position >= end:
            return None, position
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return None, position


def varint(value: int) -> bytes:
    """Return a number as it is written."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
