"""Bodies that browsers and ``curl -F`` send: ``multipart/form-data``.

Source: RFC 7578, RFC 2046.
"""

from __future__ import annotations

import re

from edgeinfer.records import dataclass
from edgeinfer.runtime.serve.http import RequestError

_BOUNDARY = re.compile(rb'boundary="?([^";,]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name="([^"]*)"', re.IGNORECASE)
_KIND = re.compile(rb"^content-type:\s*(\S+)", re.IGNORECASE | re.MULTILINE)
MOST = 64
"""Fields of one form."""

MOST_HEAD = 4096
"""Bytes of a field's head."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        content: as it was sent.
        kind: its media type; empty where none is given.
    """

    content: bytes
    kind: str = ""

    def text(self, name: str) -> str:
        """Return it as a text.

        Raises:
            RequestError: it is none.
        """
        try:
            return str(self.content, "utf-8")
        except UnicodeDecodeError as e:
            raise RequestError(400, f"{name}: not UTF-8") from e


def read_form(body: bytes, content_type: bytes) -> dict[str, Field]:
    """Return the fields of a form by name.

    Raises:
        RequestError: it is none, is cut off, or has a field twice.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise RequestError(400, "multipart/form-data: the boundary is missing")
    mark = b"--" + found[1]
    parts = (b"\r\n" + body).split(b"\r\n" + mark, MOST + 2)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise RequestError(400, f"multipart/form-data: cut off, or more than {MOST} fields")
    fields: dict[str, Field] = {}
    for part in parts[1:-1]:
        end = part.find(b"\r\n\r\n", 0, MOST_HEAD)
        head, content = part[: max(end, 0)], part[end + 4 :]
        name = _NAME.search(head)
        if name is None:
            raise RequestError(
                400, f"multipart/form-data: a field has no name in its first {MOST_HEAD} bytes"
            )
        key = name[1].decode("utf-8", "replace")
        if key in fields:
            raise RequestError(400, f"{key}: given twice")
        kind = _KIND.search(head.replace(b"\r\n", b"\n"))
        fields[key] = Field(content, "" if kind is None else kind[1].decode("latin-1"))
    return fields
