r"""Texts of an ONNX file that are no UTF-8, which protobuf hands on as bytes.

ONNX Runtime takes names of any bytes, and some exporters write them in the encoding of their
machine. Here such bytes are written as ``\xNN``, the same everywhere, so that names still agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]


def is_damaged(proto: onnx.ModelProto) -> bool:
    """Whether any text is no UTF-8."""
    return next(_damaged(proto), None) is not None


def mend(proto: onnx.ModelProto) -> list[str]:
    """Write, in place, each such text so that it can be read; return them, each once."""
    found: dict[str, None] = {}
    for message, name, repeated in list(_damaged(proto)):
        value = getattr(message, name)
        texts = [_readable(v) for v in (value if repeated else [value])]
        found |= dict.fromkeys(t for t, v in zip(texts, value, strict=False) if t != v)
        if repeated:
            del value[:]
            value.extend(texts)
        else:
            found[texts[0]] = None
            setattr(message, name, texts[0])
    return list(found)


def _readable(text: str | bytes) -> str:
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text


def _damaged(message: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yield messages and the names of their fields with such texts, and whether those repeat."""
    for field, value in message.ListFields():
        repeated = not isinstance(value, (str, bytes)) and hasattr(value, "__len__")
        if field.type == FieldDescriptor.TYPE_STRING:
            if any(isinstance(v, bytes) for v in (value if repeated else [value])):
                yield message, field.name, repeated
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if repeated else [value]:
                yield from _damaged(inner)
