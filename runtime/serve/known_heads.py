"""Heads of requests that come again, byte by byte, over the same connection.

A client sends one head for each of its requests, and to parse it, to look its headers up and to
find its key takes longer than all else of a small request. So a connection keeps the last head, and
what it said. What one connection keeps no other one uses, so the time of an answer tells nothing of
anybody else's key.
"""

from __future__ import annotations

from typing import Any

from edgeinfer.runtime.serve.http import LENGTH, number

MOST_BYTES = 2048
"""Of a head that is kept."""

TRIES = 4
"""Heads that a connection keeps before one of them has come again: some clients send none twice."""


class KnownHead:
    """One head of a request with a body of known length, after which the connection is kept.

    Args:
        text: all of it.
        url: that it asks.
        headers: by name in small letters.
        length: Length of the body.
        place: Start of the raw tensors in it.

    Attributes:
        facts: what it means to who answers it; None until that is known.
        stack: takes requests of it that come together; None until it is known, False for none.
    """

    __slots__ = ("facts", "headers", "length", "place", "stack", "text", "url")

    def __init__(
        self, text: bytes, url: bytes, headers: list[tuple[bytes, bytes]], length: int, place: int
    ) -> None:
        self.text, self.url, self.headers = text, url, headers
        self.length, self.place = length, place
        self.facts: Any = None
        self.stack: Any = None

    def begins(self, data: bytes | memoryview) -> bool:
        """Whether data begins with it."""
        return bytes(data[: len(self.text)]) == self.text


def known_head(
    data: bytes | memoryview, url: bytes, headers: list[tuple[bytes, bytes]]
) -> KnownHead | None:
    """Return the head that data begins with; None where it is not to be kept.

    Args:
        data: what was parsed.
        url: that the parser found.
        headers: likewise.
    """
    start = bytes(data[:MOST_BYTES])
    text = start[: start.find(b"\r\n\r\n") + 4]
    lines = 2 + len(headers)
    # So the parser saw the same lines, and no others.
    if not text.count(b"\n") == text.count(b"\r\n") == lines:
        return None
    if not text.startswith(b"POST ") or not text.split(b"\r\n", 1)[0].endswith(b" HTTP/1.1"):
        return None
    found = dict(headers)
    if not found.keys().isdisjoint((b"transfer-encoding", b"expect", b"upgrade")):
        return None
    if any(name == b"connection" and value.lower() != b"keep-alive" for name, value in headers):
        return None
    length = number(found.get(b"content-length", b""))
    if not length:
        return None
    return KnownHead(text, url, headers, length, number(found.get(LENGTH, b"")) or 0)


def without_upgrade(
    method: bytes, url: bytes, version: str, headers: list[tuple[bytes, bytes]]
) -> bytes:
    """Return a head that offers no other protocol, as clients of HTTP/2 do at first.

    Args:
        method: that the parser found.
        url: likewise.
        version: likewise.
        headers: likewise, with names in small letters.
    """
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            words = [word.strip() for word in value.split(b",")]
            value = b", ".join(word for word in words if word.lower() not in _OFFERS)
        if name not in _OFFERS and (value or name != b"connection"):
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join((*lines, b"", b""))


_OFFERS = (b"upgrade", b"http2-settings")
