"""Weights inside an ``.onnx`` file, left there: the file is mapped, not read.

Protobuf would copy every weight into memory when it parses the file. The large ones are taken out
of the message before it is parsed, and become tensors that refer to their bytes in the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from edgeinfer.errors import SourceError
from edgeinfer.records import dataclass
from edgeinfer.wire import read_varint, varint

SMALL_BYTES = 4096
"""Smaller tensors stay in the message: they are shapes and biases that passes read anyway."""

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_NAME, _TENSOR_RAW_DATA = 8, 9
_BYTES = 2
_FIXED = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """Where the bytes of a weight are in the file."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    kind: int
    start: int
    value: int
    end: int


def without_weights(data: mmap.mmap) -> tuple[bytes, dict[str, ByteSpan]] | None:
    """Return the message without its large weights, and where those are, by name.

    None where that cannot be said with certainty (a damaged message, several graphs, weights
    without a name or with the same one); then the message has to be parsed whole.
    """
    try:
        return _without_weights(data)
    except _Damaged:
        return None


class _Damaged(Exception):  # noqa: N818 - protobuf's own parser then says what is wrong
    """A nested message does not end where it should."""


def _without_weights(data: mmap.mmap) -> tuple[bytes, dict[str, ByteSpan]] | None:
    model = list(_fields(data, 0, len(data)))
    if sum(f.number == _MODEL_GRAPH for f in model) != 1:
        return None
    spans: dict[str, ByteSpan] = {}
    parts: list[bytes] = []
    for field in model:
        if field.number != _MODEL_GRAPH or field.kind != _BYTES:
            parts.append(data[field.start : field.end])
            continue
        graph = _graph(data, field, spans)
        if graph is None:
            return None
        parts.append(_packed(_MODEL_GRAPH, graph))
    return b"".join(parts), spans


def _graph(data: mmap.mmap, graph: _Field, spans: dict[str, ByteSpan]) -> bytes | None:
    parts: list[bytes] = []
    names: set[str] = set()
    for field in _fields(data, graph.value, graph.end):
        if field.number != _GRAPH_INITIALIZER or field.kind != _BYTES:
            parts.append(data[field.start : field.end])
            continue
        inside = list(_fields(data, field.value, field.end))
        name = b"".join(data[f.value : f.end] for f in inside if f.number == _TENSOR_NAME)
        key = name.decode("utf-8", "replace")
        if not key or key in names:
            return None
        names.add(key)
        raw = [f for f in inside if f.number == _TENSOR_RAW_DATA and f.kind == _BYTES]
        if len(raw) != 1 or raw[0].end - raw[0].value < SMALL_BYTES:
            parts.append(data[field.start : field.end])
            continue
        spans[key] = ByteSpan(raw[0].value, raw[0].end - raw[0].value)
        kept = b"".join(data[f.start : f.end] for f in inside if f is not raw[0])
        parts.append(_packed(_GRAPH_INITIALIZER, kept))
    return b"".join(parts)


def attach_spans(model: ir.Model, path: Path, spans: dict[str, ByteSpan]) -> None:
    """Give the weights that were taken out their bytes in the file.

    Raises:
        SourceError: a weight has more or fewer bytes than its shape asks for.
    """
    whole = path.resolve()
    for name, span in spans.items():
        value = model.graph.initializers[name]
        declared = value.const_value
        if declared is None:
            raise SourceError(f"{path}: tensor {name!r} has no type")
        if declared.nbytes != span.length:
            raise SourceError(
                f"{path}: tensor {name!r}: expected {declared.nbytes} bytes for "
                f"{declared.dtype.name} {list(declared.shape.numpy())}, received {span.length}"
            )
        value.const_value = ir.ExternalTensor(
            whole.name,
            span.offset,
            span.length,
            declared.dtype,
            shape=ir.Shape(declared.shape.numpy()),
            name=name,
            base_dir=whole.parent,
        )


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[_Field]:
    """Walk over one level of a message."""
    while position < end:
        start = position
        tag, position = read_varint(data, position)
        number, kind = (tag or 0) >> 3, (tag or 0) & 7
        value = position
        if kind == 0:
            _, position = read_varint(data, position)
        elif kind == _BYTES:
            length, value = read_varint(data, position)
            position = value + (length or 0)
        else:
            position += _FIXED.get(kind, end)
        if tag is None or position > end:
            raise _Damaged
        yield _Field(number, kind, start, value, position)


def _packed(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(payload)) + payload
