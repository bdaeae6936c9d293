"""What a connection reads into: of a body that comes in chunks each is read to where it stays.

A transport that hands out bytes has copied them once, the parser of HTTP copies a body again, and
joining its chunks is the third copy. Here heads and small bodies go through one buffer of the
server, and from then on the rest of a body whose length is known goes to its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

HEAD_BYTES = 8 << 10
"""Bytes that are read first. Of a larger request the rest is read by another call, at once."""

_ALIGNED = 16
"""NumPy's memory begins at a multiple of it, and so do the raw tensors of a body."""


class RequestBody:
    """A body of known length that has not come whole.

    Args:
        size: Length of it.
        begun: what has come.
        start: Start of the raw tensors in it.
        head: bytes of the head that are read before it.

    Attributes:
        size: as given.
    """

    __slots__ = ("_begun", "_came", "_first", "_view", "size")

    def __init__(self, size: int, begun: bytes, start: int, head: int = 0) -> None:
        self.size, self._first, self._begun = size, head, head + len(begun)
        before = -(head + start) % _ALIGNED
        # A read that fills its buffer is followed by another one, so there is room for a byte more.
        self._view = np.empty(before + head + size + 1, np.uint8).data[before:]
        self._came = len(begun)
        if begun:
            self._view[: self._came] = begun

    def rest(self) -> memoryview:
        """Return where the rest is read to."""
        return self._view[self._came :]

    def came(self, count: int) -> bool:
        """Note that so many bytes were read; say whether it is whole."""
        self._came += count
        return self._came >= self._first + self.size

    def read(self) -> memoryview:
        """Return what was read to it."""
        return self._view[self._begun : self._came]

    def all(self) -> memoryview:
        """Return all that has come, with the head."""
        return self._view[: self._came]

    def so_far(self) -> memoryview:
        """Return what has come of it."""
        return self._view[self._first : self._came]

    def whole(self) -> memoryview:
        """Return all of it."""
        return self._view[self._first : self._first + self.size].toreadonly()

    def behind(self) -> bytes:
        """Return what came behind it."""
        end = self._first + self.size
        return bytes(self._view[end : self._came]) if self._came > end else b""


class BodyReader(asyncio.BufferedProtocol):
    """Reads for a connection.

    uvloop gives buffers to no subclass of ``asyncio.Protocol``, which uvicorn's protocol is.

    Args:
        connection: Protocol of the connection.
    """

    __slots__ = ("_connection", "_expected", "_head", "_room")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._room: memoryview = connection.room
        self._head = self._room[:HEAD_BYTES]
        self._expected: RequestBody | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        connection = self._connection
        body: RequestBody | None = connection.body
        if body is not None:
            return body.rest()
        if connection.inside:
            return self._room
        self._expected = body = connection.expected()
        return self._head if body is None else body.rest()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what was read."""
        connection, expected = self._connection, self._expected
        if connection.body is not None:
            connection.body_received(nbytes)
        elif expected is not None:
            self._expected = None
            connection.expected_received(expected, nbytes)
        else:
            connection.data_received(self._room[:nbytes])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait: the client reads slowly."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Go on."""
        self._connection.resume_writing()


def feed(reading: Any, data: bytes) -> None:
    """Give data to a protocol as a transport does that reads into its buffers."""
    left = memoryview(data)
    while left:
        buffer = reading.get_buffer(len(left))
        count = min(len(buffer), len(left))
        buffer[:count] = left[:count]
        reading.buffer_updated(count)
        left = left[count:]
