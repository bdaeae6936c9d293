"""Reads GGUF files: one map of the file, nothing trusted.

Source: the GGUF specification of ggml, versions 2 and 3.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.bounded import open_file
from edgeinfer.convert.llm.blocks import KINDS, MOST_TENSORS, StoredTensor
from edgeinfer.convert.sniff import GGUF_MAGIC
from edgeinfer.errors import SourceError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_NUMBERS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
_STRING, _ARRAY = 8, 9

_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K"},
    **{11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS"},
    **{30: "BF16", 39: "MXFP4"},
}
"""Element types that are read, by their numbers."""

_OTHERS = {
    **{9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
    **{21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4"},
}
"""Those that are not, to name them."""

_MOST_AXES = 4
_MOST_INNER = 1 << 10
"""Arrays in arrays of a file; of 13 bytes each one takes some hundreds in memory."""
_MOST_FIELDS = 10_000
"""Of metadata; models have some fifty."""
_MOST_ALIGNMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file.

    Attributes:
        fields: metadata by key; lists of numbers are arrays.
        tensors: by name; axes in the order of memory, the last one lies together.
    """

    fields: dict[str, Any]
    tensors: dict[str, StoredTensor]


class _Short(Exception):  # noqa: N818 - never leaves this module
    """The file ends before what it announces."""


class _Cursor:
    """Reads on through bytes."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at, self.inner = data, 0, 0

    def take(self, count: int) -> memoryview:
        if count < 0 or self.at + count > len(self.data):
            raise _Short(f"{count} bytes at {self.at}")
        found = self.data[self.at : self.at + count]
        self.at += count
        return found

    def number(self, kind: str) -> int:
        return int(struct.unpack(kind, self.take(struct.calcsize(kind)))[0])

    def text(self) -> str:
        return str(self.take(self.number("<Q")), "utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()
        if kind != _ARRAY or depth > 1:
            raise ValueError(f"a value of the unknown type {kind}")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in _NUMBERS:
            dtype = np.dtype(_NUMBERS[inner])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if count > len(self.data):
            raise _Short(f"{count} values at {self.at}")
        if inner == _ARRAY:
            self.inner += count
            if self.inner > _MOST_INNER:
                raise ValueError(f"{self.inner} arrays in arrays, at most {_MOST_INNER} are read")
        return [self.value(inner, depth + 1) for _ in range(count)]


def read(path: Path) -> GgufFile:
    """Map a file and read what it says of itself.

    Raises:
        SourceError: it is no GGUF file, is cut off, or has tensors of types that are not read;
            lists all of these.
    """
    try:
        with open_file(path) as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as e:
        raise SourceError(f"{path}: cannot be read: {e}") from e
    cursor = _Cursor(whole)
    try:
        return _parsed(path, cursor)
    except _Short as e:
        raise SourceError(
            f"{path}: the file is cut off: it has {len(whole)} bytes and announces {e}; "
            "fetch it again"
        ) from e
    except (ValueError, struct.error) as e:
        raise SourceError(f"{path}: a damaged GGUF file: {e}") from e


def _parsed(path: Path, cursor: _Cursor) -> GgufFile:
    if bytes(cursor.take(4)) != GGUF_MAGIC:
        raise SourceError(f"{path}: no GGUF file: it does not begin with {GGUF_MAGIC.decode()}")
    version = cursor.number("<I")
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0
        hint = "it is big-endian" if swapped else f"version {version}; known: 2 and 3"
        raise SourceError(f"{path}: a GGUF file that cannot be read: {hint}")
    count, pairs = cursor.number("<Q"), cursor.number("<Q")
    if pairs > _MOST_FIELDS:
        raise ValueError(f"{pairs} fields, at most {_MOST_FIELDS} are read")
    fields: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.text()
        if key in fields:
            raise ValueError(f"{key[:60]!r} is there twice")
        fields[key] = cursor.value(cursor.number("<I"))
    if count > MOST_TENSORS:
        raise ValueError(f"{count} tensors, at most {MOST_TENSORS} are read")
    infos = [_info(cursor) for _ in range(count)]
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= _MOST_ALIGNMENT:
        raise ValueError(f"general.alignment is {repr(alignment)[:60]}")
    start = -(-cursor.at // alignment) * alignment
    if found := list(_problems(infos)):
        raise SourceError(f"{path}: " + "; ".join(found))
    tensors = {info.name: _tensor(cursor.data, start, info) for info in infos}
    _check_apart(infos, tensors)
    return GgufFile(fields, tensors)


@dataclass(frozen=True, slots=True)
class _Info:
    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


def _info(cursor: _Cursor) -> _Info:
    name, axes = cursor.text(), cursor.number("<I")
    if axes > _MOST_AXES:
        raise ValueError(f"tensor {name!r} has {axes} axes")
    shape = tuple(cursor.number("<Q") for _ in range(axes))[::-1]
    return _Info(name, shape, cursor.number("<I"), cursor.number("<Q"))


def _problems(infos: list[_Info]) -> Iterator[str]:
    seen: set[str] = set()
    unknown: dict[str, list[str]] = {}
    for info in infos:
        if info.name in seen:
            yield f"tensor {info.name!r} is there twice"
        seen.add(info.name)
        if info.type not in _TYPES:
            kind = _OTHERS.get(info.type, f"number {info.type}")
            unknown.setdefault(kind, []).append(info.name)
        elif (
            not info.shape or min(info.shape) < 1 or info.shape[-1] % KINDS[_TYPES[info.type]].block
        ):
            yield f"tensor {info.name!r}: {info.shape} is no shape of {_TYPES[info.type]}"
    for kind, names in sorted(unknown.items()):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        known = ", ".join(sorted(_TYPES.values()))
        yield f"tensor {names[0]!r}{more}: type {kind} is not read; known: {known}"


def _tensor(data: memoryview, start: int, info: _Info) -> StoredTensor:
    kind = KINDS[_TYPES[info.type]]
    line = info.shape[-1] // kind.block * kind.size_bytes
    shape = (*info.shape[:-1], line)
    begin, size = start + info.offset, prod(shape)
    if begin + size > len(data):
        raise _Short(f"tensor {info.name!r}, {size} bytes at {begin}")
    held: Array = np.frombuffer(data, np.uint8, size, begin).reshape(shape)
    return StoredTensor(_TYPES[info.type], info.shape, held)


def _check_apart(infos: list[_Info], tensors: dict[str, StoredTensor]) -> None:
    """Refuse tensors that share bytes: a small file would be a large model."""
    spans = sorted((i.offset, i.offset + tensors[i.name].data.nbytes, i.name) for i in infos)
    for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            raise ValueError(f"{one!r} and {other!r} share bytes")
