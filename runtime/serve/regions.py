"""System shared memory of the Open Inference Protocol: tensors in objects that clients made.

Nothing is mapped here: whoever shortens an object that is mapped ends the process that reads it.
Bytes are read into memory of ours and written from it. An object is opened once, when it is
registered, so that what was checked is what is used, and each use looks at its size again.

A region belongs to the user of this machine who registered it, and to the key where there are
keys; nobody else sees it. The user is the owner of the other end of the connection, whom Linux
names. The object has to be the same user's, so that nobody reaches what is another's through this
server.

Source: Triton's documentation of its system shared memory extension.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from edgeinfer import forks
from edgeinfer.errors import UsageError
from edgeinfer.origins import is_loopback
from edgeinfer.runtime.serve.answer_size import AnswerSize
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.sequences import KeptStates
from edgeinfer.runtime.serve.served import Served
from edgeinfer.runtime.serve.tensors import (
    InferRequest,
    Place,
    SharedTensors,
    from_bytes,
    shared_output,
    to_buffer,
)
from edgeinfer.runtime.serve.unread import caller_of, plain_host, sockets_of
from edgeinfer.types import Array

_FOLDER = "/dev/shm"

_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ESTABLISHED = 4, 20, 1, 1
_HEAD, _USER, _IPV4, _ANY = 16, 64, 4, 0xFFFFFFFF
"""Numbers of Linux: bytes of a head, and before the user; one for all states, and for no cookie."""

_KEY = re.compile(r"/?([A-Za-z0-9][A-Za-z0-9._-]{0,254})")
_COOKIE, _BYTES_COOKIE = 57, 8
"""Option of sockets on Linux (``SO_COOKIE``): a number that no other socket has."""

MOST, MOST_OWN, MOST_USER = 64, 16, 32
"""Regions, those of one owner where there are keys, and those of one user where there are none."""

_USER_SHARE = 2
"""A user has one of so many parts of the bytes at most, where there are no keys."""

_MOST_NAME = 128


Address = tuple[str, int]


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        key: Digest of the key; empty where none is needed.
        user: Number of a user of this machine.
    """

    key: bytes
    user: int


class Connection:
    """A connection over which requests come.

    Whose it is, Linux says of two addresses and ports, which are another user's as soon as it is
    over. So it is looked afterwards whether this server's own end of it is open still: what was
    said then was said of it.

    Args:
        theirs: Address and port of the other end.
        own: Socket of this end; None to look for it.
        port: Port of this end, by which it is looked for.
        is_over: says that the request ended; of a socket that is looked for.
    """

    def __init__(
        self,
        theirs: Address,
        own: Any = None,
        port: int = 0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._theirs, self._own, self._port, self._is_over = theirs, own, port, is_over
        self._cookie = b""

    @property
    def is_at_hand(self) -> bool:
        """Whether the socket is known; the event loop owns it then, and asks itself."""
        return self._own is not None

    def user(self) -> int:
        """Return the user of this machine at the other end.

        Raises:
            RequestError: 403, it comes from elsewhere, or the system does not say whose it is.
        """
        if not is_loopback(self._theirs[0]):
            text = "shared memory: only for clients of this machine, over loopback"
            raise RequestError(403, text)
        with contextlib.suppress(OSError):
            if self._own is not None:
                return self._user_of(self._own)
            own = self._found()
            if own is not None:
                with own:
                    return self._user_of(own)
        raise _unknown()

    def _user_of(self, own: Any) -> int:
        if caller_of(own) != self._theirs:
            raise _unknown()
        host, port = own.getsockname()[:2]
        user = user_of(self._theirs, (plain_host(host), port))
        state = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state != _ESTABLISHED or self._is_over():
            raise _unknown()
        return user

    def _found(self) -> socket.socket | None:
        """Look for the only socket of these ends, the one that was found before."""
        # One may have several descriptors, those opened here among them.
        found: dict[bytes, socket.socket] = {}
        for each in sockets_of(self._port):
            cookie = b""
            with contextlib.suppress(OSError):
                if caller_of(each) == self._theirs:
                    cookie = each.getsockopt(socket.SOL_SOCKET, _COOKIE, _BYTES_COOKIE)
            if cookie and cookie not in found:
                found[cookie] = each
            else:
                each.close()
        # Another one may come from the same place to another address of this machine.
        if len(found) == 1:
            self._cookie = self._cookie or next(iter(found))
            if (own := found.pop(self._cookie, None)) is not None:
                return own
        for each in found.values():
            each.close()
        return None


CONNECTION: ContextVar[Connection] = ContextVar("connection")
"""The connection that asks."""


def _unknown() -> RequestError:
    return RequestError(403, "shared memory: the system does not say whose connection it is")


class Region:
    """A part of an object.

    Args:
        file: Descriptor of the object; closed when nobody reads or writes any more.
        key: Name of the object.
        offset: bytes of the object before it.
        size: its bytes.
    """

    __slots__ = ("_file", "key", "offset", "size")

    def __init__(self, file: int, key: str, offset: int, size: int) -> None:
        self._file, self.key, self.offset, self.size = file, key, offset, size

    def __del__(self) -> None:
        os.close(self._file)

    def start(self, place: Place, what: str) -> int:
        """Return where a tensor begins in the object.

        Raises:
            RequestError: it is not within the region, or the object was shortened.
        """
        if place.offset + place.size > self.size:
            raise RequestError(
                400,
                f"{what}: {place.size} bytes from {place.offset} on are not within region "
                f"{place.region!r} of {self.size}",
            )
        start = self.offset + place.offset
        if start + place.size > os.fstat(self._file).st_size:
            raise self._short(what)
        return start

    def read(self, place: Place, what: str) -> memoryview:
        """Return a copy of the bytes of a tensor.

        Raises:
            RequestError: as ``start``.
        """
        found = os.pread(self._file, place.size, self.start(place, what))
        if len(found) < place.size:
            raise self._short(what)
        return memoryview(found)

    def write(self, place: Place, what: str, data: bytes | memoryview) -> None:
        """Write the bytes of a tensor, which are no more than its place has.

        Raises:
            RequestError: as ``start``; 503, the system has no memory for them.
        """
        start = self.start(place, what)
        try:
            written = os.pwrite(self._file, data, start)
        except OSError as e:
            raise RequestError(503, f"{what}: object {self.key!r}: {e.strerror}") from e
        if written < len(data):
            raise self._short(what)

    def _short(self, what: str) -> RequestError:
        return RequestError(400, f"{what}: beyond the end of object {self.key!r}")


class Regions:
    """The regions of a server; threads may use them.

    Args:
        prefix: Begin of the names of all objects that may be registered.
        most: bytes of all regions together.
        elements: Most elements of one tensor.

    Raises:
        UsageError: this system does not tell whose a connection is.
    """

    def __init__(self, prefix: str, most: int, elements: int) -> None:
        try:
            os.stat(_FOLDER)
            netlink().close()
        except OSError as e:
            text = (
                f"shared memory: needs {_FOLDER} and netlink, as Linux has them: {e.strerror or e}"
            )
            raise UsageError(text) from e
        self._prefix, self._most, self._elements = prefix, most, elements
        self._lock, self._of = forks.lock(), dict[Caller, dict[str, Region]]()
        self._bytes = KeptStates(most, "regions of shared memory")

    def register(self, who: Caller, name: str, key: Any, offset: Any, size: Any) -> None:
        """Register a region.

        Args:
            who: asks.
            name: Name of the region.
            key: Name of the object.
            offset: bytes of the object before the region.
            size: bytes of the region.

        Raises:
            RequestError: 400, it is no region that this client may have; 429 or 503, there are too
                many.
        """
        what = f"region {name!r}"
        if not 0 < len(name) <= _MOST_NAME:
            raise RequestError(400, f"region: expected a name of at most {_MOST_NAME} characters")
        found = _KEY.fullmatch(key) if isinstance(key, str) else None
        if found is None or not found[1].startswith(self._prefix):
            raise RequestError(400, f"{what}: key: expected {self._prefix}NAME, received {key!r}")
        if not (type(offset) is int and type(size) is int and offset >= 0 and size > 0):
            raise RequestError(400, f"{what}: expected a byte_size of 1 and an offset of 0 or more")
        made = Region(_opened(found[1], what, who.user), found[1], offset, size)
        made.start(Place(name, 0, size), what)
        with self._lock:
            own = self._of.get(who, {})
            if name in own:
                raise RequestError(400, f"{what}: registered already; unregister it first")
            if who.key and len(own) >= MOST_OWN:
                raise RequestError(429, f"{what}: this key has {MOST_OWN} regions already")
            if len(own) >= MOST_USER:
                raise RequestError(429, f"{what}: this user has {MOST_USER} regions already")
            if sum(r.size for r in own.values()) + size > self._most // _USER_SHARE:
                raise RequestError(
                    429, f"{what}: with it, this user's regions have more than half of all bytes"
                )
            if sum(map(len, self._of.values())) >= MOST:
                raise RequestError(503, f"{what}: there are {MOST} regions already", 1.0)
            self._bytes.change(who.key, size)
            self._of.setdefault(who, own)[name] = made

    def unregister(self, who: Caller, name: str = "") -> None:
        """Forget a region, or all of this owner's; one that there is not is forgotten already."""
        with self._lock:
            own = self._of.get(who, {})
            for each in [name] if name else [*own]:
                if (region := own.pop(each, None)) is not None:
                    self._bytes.change(who.key, -region.size)
            if not own:
                self._of.pop(who, None)

    def status(self, who: Caller, name: str = "") -> list[dict[str, Any]]:
        """Return a region, or all of this owner's.

        Raises:
            RequestError: 404, there is none of that name.
        """
        own = self._own(who)
        if name and name not in own:
            raise RequestError(404, f"no region {name!r} is registered")
        return [
            {"name": n, "key": r.key, "offset": r.offset, "byte_size": r.size}
            for n, r in own.items()
            if n == name or not name
        ]

    def read(
        self, who: Caller, model: Served, request: InferRequest, at: SharedTensors
    ) -> InferRequest:
        """Return a request with the inputs that are in shared memory.

        Args:
            who: asks.
            model: is to run.
            request: Request without them.
            at: where they are, and where outputs go.

        Raises:
            RequestError: they are not what the model takes, or an output has too small a place.
        """
        own, specs = self._own(who), {spec.name: spec for spec in model.inputs}
        feeds = dict(request.feeds)
        for name, (item, place) in at.inputs.items():
            raw = _known(own, place, f"input {name!r}").read(place, f"input {name!r}")
            feeds[name] = from_bytes(item, specs[name], raw, self._elements)
        for spec in model.outputs:
            if (goes := at.outputs.get(spec.name)) is not None:
                what = f"output {spec.name!r}"
                _known(own, goes, what).start(goes, what)
                _check_room(goes, what, AnswerSize(model.inputs, (spec,)).of(feeds))
        return InferRequest(
            request.id, feeds, request.outputs, request.binary, request.terms, request.shared
        )

    def write(self, who: Caller, request: InferRequest, results: Mapping[str, Array]) -> None:
        """Write the outputs that go to shared memory; none where one has too small a place.

        Raises:
            RequestError: one has, or its region is not there any more.
        """
        own = self._own(who)
        parts: list[tuple[Region, Place, str, bytes | memoryview]] = []
        for name, array in results.items():
            if (place := shared_output(request, name)) is not None:
                what, data = f"output {name!r}", to_buffer(array)
                _check_room(place, what, len(data))
                parts.append((_known(own, place, what), place, what, data))
        for region, place, what, data in parts:
            region.write(place, what, data)

    def close(self) -> None:
        """Forget all."""
        with self._lock:
            self._of.clear()

    def _own(self, who: Caller) -> dict[str, Region]:
        with self._lock:
            return dict(self._of.get(who, {}))


def _known(own: Mapping[str, Region], place: Place, what: str) -> Region:
    found = own.get(place.region)
    if found is None:
        raise RequestError(404, f"{what}: no region {place.region!r} is registered")
    return found


def _check_room(place: Place, what: str, size: int) -> None:
    if size > place.size:
        raise RequestError(
            400, f"{what}: {size} bytes; its place in shared memory has {place.size}"
        )


def _opened(key: str, what: str, user: int) -> int:
    """Open an object, and return its descriptor.

    Raises:
        RequestError: it cannot be opened, or is none of this user.
    """
    try:
        # Whatever else has the name is not waited for.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        file = os.open(f"{_FOLDER}/{key}", flags)
    except OSError as e:
        raise RequestError(400, f"{what}: object {key!r}: {e.strerror}") from e
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or user not in (found.st_uid, 0):
        os.close(file)
        raise RequestError(400, f"{what}: object {key!r}: no file of the user who asks")
    return file


def user_of(theirs: Address, ours: Address) -> int:
    """Return the user who has the other end of an open connection of this machine.

    Args:
        theirs: Address and port of the other end.
        ours: Address and port of this end.

    Raises:
        RequestError: 403, the system does not say whose it is.
    """
    with contextlib.suppress(OSError, ValueError):
        if (user := _asked(theirs, ours)) is not None:
            return user
    raise _unknown()


def _asked(theirs: Address, ours: Address) -> int | None:
    """Ask Linux for the owner of the open connection between two addresses.

    Source: ``sock_diag(7)``; ``linux/inet_diag.h``.
    """
    ends = [ipaddress.ip_address(host).packed for host, _ in (theirs, ours)]
    family = socket.AF_INET if len(ends[0]) == _IPV4 else socket.AF_INET6
    asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ANY)
    asked += struct.pack(">HH16s16s", theirs[1], ours[1], *ends)
    asked += struct.pack("=III", 0, _ANY, _ANY)
    head = struct.pack("=IHHII", _HEAD + len(asked), _BY_FAMILY, _REQUEST, 0, 0)
    with netlink() as way:
        way.send(head + asked)
        answer = way.recv(4096)
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind != _BY_FAMILY or answer[_HEAD + 1] != _ESTABLISHED:
        return None
    return int(struct.unpack_from("=I", answer, _HEAD + _USER)[0])


def netlink() -> socket.socket:
    """Open a socket that tells of others.

    Raises:
        OSError: this system has none.
    """
    if sys.platform != "linux":
        raise OSError("not Linux")
    way = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
    way.settimeout(1.0)
    return way
