"""Finds engines that somebody else built inside ONNX files: as good as programs, and never run.

A node ``EPContext`` holds one, or names a file that does; the provider that it was built by
takes it as it is. Weights are stepped over, so that a look costs no more than the graph is long.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from edgeinfer.wire import read_varint

OPERATOR = "EPContext"
"""Its name in every domain; no operator of ONNX has it."""

# Tags of onnx.proto with wire type 2 (length-delimited).
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7 << 3 | 2, 5 << 3 | 2
_BYTES = 2
_FIXED = {1: 8, 5: 4}

_MOST_PARTS = 1 << 20
"""Nodes, weights and other fields of a graph that are stepped over to look for a name."""

_LARGEST = 1 << 31

_ORT = b"ORTM"
"""At byte 4 the mark of ONNX Runtime's own format, which is no protobuf."""


def holds_engine(path: Path) -> bool:
    """Whether a node of an ONNX file holds an engine, in its functions and subgraphs too."""
    with path.open("rb") as file:
        # Nobody reads a larger one: neither a protobuf nor a FlatBuffer may be.
        if not 0 < os.fstat(file.fileno()).st_size < _LARGEST:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # Nearly no file has the name at all: none of its parts is looked at then.
            if not _names_one(data, 0, len(data)):
                return False
            try:
                return any(_names_one(data, *span) for span in _outside_weights(data))
            except ValueError:
                return True


def _names_one(data: mmap.mmap, start: int, end: int) -> bool:
    """Whether a text of exactly the operator's name is there: its length stands before it."""
    name = OPERATOR.encode()
    while (start := data.find(name, start, end)) >= 0:
        # A length may be written with more bytes than it needs; the last one is 0 then.
        if start and data[start - 1] in (len(name), 0):
            return True
        start += len(name)
    return False


def _outside_weights(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield where something else lies than weights.

    Raises:
        ValueError: it is no plain message, or one of more parts than any model has.
    """
    if data[4:8] == _ORT:
        raise ValueError("no message")
    start = parts = 0
    for tag, graph, graph_end in _fields(data, 0, len(data)):
        inside = _fields(data, graph, graph_end) if tag == _MODEL_GRAPH else ()
        for part, value, end in inside:
            parts += 1
            if parts > _MOST_PARTS:
                raise ValueError("too many parts")
            if part == _GRAPH_INITIALIZER:
                yield start, value
                start = end
    yield start, len(data)


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the tag of each field of a message, where its value starts and where it ends.

    Raises:
        ValueError: it is no message, or one with groups.
    """
    while position < end:
        tag, position = read_varint(data, position, end)
        kind = -1 if tag is None else tag & 7
        length: int | None = 0
        if kind == 0:
            length, position = read_varint(data, position, end)
            length = None if length is None else 0
        elif kind == _BYTES:
            length, position = read_varint(data, position, end)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            length = None
        if tag is None or length is None or position + length > end:
            raise ValueError("no message")
        yield tag, position, position + length
        position += length
