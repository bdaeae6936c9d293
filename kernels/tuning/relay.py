"""A relay between TVM's client and a device: only answers pass, one to each question.

TVM's protocol has no sides: what speaks it may call any function of the process at the other end,
and read and write its memory. An answer, too, may hold pointers that the client would follow. So
each frame of the device is read here, in Python, and passes if it is an answer of the form that
the question has: numbers, handles that go back to the device, texts and bytes.

Sources: src/runtime/rpc/rpc_endpoint.cc, rpc_socket_impl.cc, rpc_module.cc, rpc_local_session.cc
and minrpc/rpc_reference.h; python/tvm/rpc/tracker.py, TVM 0.27.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

from edgeinfer.bounded import parse_json
from edgeinfer.printable import visible

_MAGIC, _TRACKER = 0xFF271, 0x2F271
_REQUEST, _SUMMARY = 4, 6
_SHUTDOWN, _CALL, _RETURN, _EXCEPTION, _COPY_FROM, _COPY_ACK = 1, 3, 4, 5, 6, 8
_NONE, _INT, _BOOL, _FLOAT, _HANDLE, _TEXT, _BYTES = 0, 1, 2, 3, 4, 8, 9
_OBJECTS, _STR, _BYTES_OBJECT, _TENSOR = 64, 65, 66, 70

_MOST = 1 << 20
"""Bytes of an answer that is no copy of a tensor."""

_MOST_KEY, _MOST_TENSOR_FRAME, _MOST_TOLD = 400, 4096, 4000
_CHUNK = 1 << 16
_REACH_S, _GREET_S, _SEND_S = 10.0, 10.0, 60.0
_HEAD = struct.Struct("<Qi")


class FormError(Exception):
    """A device does not answer in the form that there is."""


class Relay:
    """Listens for TVM's client on this machine; a context manager.

    Args:
        device: ``host:port`` of an RPC server, or ``host:port/key`` of a tracker.

    Attributes:
        address: where the client connects to, and the secret that it has to name as its key:
            ``host:port/secret``.
    """

    def __init__(self, device: str) -> None:
        self._device, self._secret = device, secrets.token_hex(16)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = {self._listening}
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}/{self._secret}"
        threading.Thread(target=self._listen, name="edgeinfer-relay", daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; twice is harmless."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # Whoever leaves ends the connection, in the middle of a frame too.
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, EOFError):
            stack.enter_context(self._kept(client))
            client.settimeout(_GREET_S)
            options = self._greeted(client)
            if options is None:
                return
            client.settimeout(None)
            device, why = None, ""
            try:
                device = stack.enter_context(self._kept(self._reached(options, client)))
            except EOFError:
                why = "it closed the connection"
            except ConnectionAbortedError:
                return
            except (FormError, OSError, ValueError) as error:
                why = str(error)
            name = b"server:"
            client.sendall(struct.pack("<ii", _MAGIC, len(name)) + name)
            while _turn(client, device, self._device, why):
                pass

    @contextlib.contextmanager
    def _kept(self, one: socket.socket) -> Any:
        self._open.add(one)
        try:
            yield one
        finally:
            one.close()
            self._open.discard(one)

    def _greeted(self, client: socket.socket) -> str | None:
        """Return the options of a client that knows the secret; None of another user's."""
        magic, size = struct.unpack("<ii", _exactly(client, 8))
        if magic != _MAGIC or not 0 <= size <= _MOST_KEY:
            return None
        key, *options = _exactly(client, size).decode(errors="replace").split() or [""]
        if not secrets.compare_digest(key.encode(), f"client:{self._secret}".encode()):
            return None
        return " ".join(["", *options])

    def _reached(self, options: str, client: socket.socket) -> socket.socket:
        """Connect to the device.

        Raises:
            FormError: what is there does not speak as a server of TVM.
            OSError: nobody is there.
        """
        place, _, key = self._device.partition("/")
        host, port = _place(place)
        if key:
            host, port, key = _of_tracker(host, port, key, client)
        device = socket.create_connection((host, port), timeout=_REACH_S)
        try:
            _greet(device, f"client:{key}{options}", client)
        except BaseException:
            device.close()
            raise
        device.settimeout(_SEND_S)
        return device


def _greet(device: socket.socket, key: str, client: socket.socket) -> None:
    name = key.encode()
    device.sendall(struct.pack("<ii", _MAGIC, len(name)) + name)
    (magic,) = struct.unpack("<i", _exactly(device, 4, client))
    if magic in (_MAGIC + 1, _MAGIC + 2):
        raise FormError("it serves another key")
    if magic != _MAGIC:
        raise FormError("no RPC server of TVM")
    (size,) = struct.unpack("<i", _exactly(device, 4, client))
    if not 0 <= size <= _MOST_KEY:
        raise FormError("its key is too long")
    # The client would only keep it.
    _exactly(device, size, client)


def _turn(client: socket.socket, device: socket.socket | None, name: str, why: str) -> bool:
    """Pass a question to the device and its answer to the client; returns whether that goes on.

    Args:
        client: the one end.
        device: the other; None where it was not reached.
        name: Name of the device.
        why: it was not; the client gets this in the place of an answer.
    """
    head = _exactly(client, _HEAD.size)
    size, code = _HEAD.unpack(head)
    left, asked = size - 4, b""
    if code == _COPY_FROM and 8 <= left <= _MOST_TENSOR_FRAME:
        asked = _exactly(client, left)
    why = why or _send(device, head + asked)
    for part in _parts(client, left - len(asked)):
        why = why or _send(device, part)
    if code == _SHUTDOWN:
        return False
    try:
        if device is not None and not why:
            wanted = struct.unpack("<Q", asked[-8:])[0] if asked else 0
            _take_answer(client, device, code, wanted)
    except EOFError:
        why = "it closed the connection"
    except ConnectionAbortedError:
        raise
    except (FormError, OSError) as error:
        why = str(error)
    if why:
        client.sendall(_error(f"{name}: {why}"))
    return not why


def _send(device: socket.socket | None, data: bytes) -> str:
    try:
        if device is not None:
            device.sendall(data)
    except OSError as error:
        return str(error)
    return ""


def _take_answer(client: socket.socket, device: socket.socket, code: int, wanted: int) -> None:
    size, answer = _HEAD.unpack(_exactly(device, _HEAD.size, client))
    if answer == _COPY_ACK and code == _COPY_FROM:
        if size != 4 + wanted:
            raise FormError(f"{size - 4} bytes in the place of a tensor of {wanted}")
        client.sendall(_HEAD.pack(size, answer))
        try:
            for part in _parts(device, wanted, client):
                client.sendall(part)
        except (EOFError, OSError) as error:
            # Half an answer cannot be taken back.
            raise ConnectionAbortedError from error
        return
    if answer not in (_RETURN, _EXCEPTION):
        raise FormError(f"it asks (code {answer}) where it is to answer")
    if not 8 <= size <= _MOST:
        raise FormError(f"an answer of {size} bytes")
    values = _values(_exactly(device, size - 4, client))
    if answer == _EXCEPTION:
        if len(values) != 1 or values[0][0] != _TEXT:
            raise FormError("an error that is no text")
        client.sendall(_error(values[0][1].decode(errors="replace")))
        return
    if not _fits(values, code):
        raise FormError("an answer of another form than the question's")
    written = b"".join(_written(kind, value) for kind, value in values)
    body = struct.pack("<ii", _RETURN, len(values)) + written
    client.sendall(struct.pack("<Q", len(body)) + body)


def _values(body: bytes) -> list[tuple[int, bytes]]:
    """Return the kinds and bytes of the values in an answer.

    Raises:
        FormError: they are none that answers have, or do not fill it.
    """
    (count,), at = struct.unpack_from("<i", body), 4
    if not 1 <= count <= 2:
        raise FormError(f"an answer of {count} values")
    found = []
    for _ in range(count):
        if len(body) < at + 4:
            raise FormError("an answer that is cut short")
        (kind,) = struct.unpack_from("<i", body, at)
        at += 4
        size = {_NONE: 0, _INT: 8, _BOOL: 8, _FLOAT: 8, _HANDLE: 8}.get(kind)
        if kind in (_TEXT, _BYTES) and len(body) >= at + 8:
            (size,) = struct.unpack_from("<Q", body, at)
            at += 8
        if size is None or size > len(body) - at:
            raise FormError(f"a value of kind {kind} that answers do not have")
        found.append((kind, body[at : at + size]))
        at += size
    if at != len(body):
        raise FormError("an answer with something behind it")
    return found


def _fits(values: list[tuple[int, bytes]], code: int) -> bool:
    """Whether the client understands an answer to a question of this code."""
    if code != _CALL:
        return len(values) == 1
    if len(values) != 2 or values[0][0] != _INT:
        return False
    # The first is the kind of what the function gave, the second how it is sent.
    (kind,) = struct.unpack("<q", values[0][1])
    sent = values[1][0]
    if kind in (_STR, _BYTES_OBJECT) or _TEXT <= kind < _OBJECTS:
        return sent in (_TEXT, _BYTES)
    if kind >= _OBJECTS:
        return kind < 1 << 31 and kind != _TENSOR and sent == _HANDLE
    return sent == kind and kind in (_NONE, _INT, _BOOL, _FLOAT, _HANDLE)


def _written(kind: int, value: bytes) -> bytes:
    size = struct.pack("<Q", len(value)) if kind in (_TEXT, _BYTES) else b""
    return struct.pack("<i", kind) + size + value


def _error(text: str) -> bytes:
    """Return the frame that makes the client raise an error."""
    value = visible(text[-_MOST_TOLD:]).encode(errors="replace")
    body = struct.pack("<ii", _EXCEPTION, 1) + _written(_TEXT, value)
    return struct.pack("<Q", len(body)) + body


def _exactly(one: socket.socket, size: int, other: socket.socket | None = None) -> bytes:
    """Read so many bytes; only as long as nothing comes of the other one, which is to wait.

    Raises:
        EOFError: the connection ended, or the other one's did.
    """
    data = bytearray()
    while len(data) < size:
        if other is not None and other in select.select([one, other], [], [])[0]:
            raise ConnectionAbortedError
        got = one.recv(min(_CHUNK, size - len(data)))
        if not got:
            raise EOFError
        data += got
    return bytes(data)


def _parts(source: socket.socket, size: int, other: socket.socket | None = None) -> Iterator[bytes]:
    while size > 0:
        part = _exactly(source, min(_CHUNK, size), other)
        yield part
        size -= len(part)


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _of_tracker(host: str, port: int, key: str, client: socket.socket) -> tuple[str, int, str]:
    """Ask a tracker for a device; wait for as long as all of the key are taken.

    Raises:
        FormError: it has none, or is no tracker.
    """
    try:
        with socket.create_connection((host, port), timeout=_REACH_S) as tracker:
            tracker.sendall(struct.pack("<i", _TRACKER))
            if _exactly(tracker, 4) != struct.pack("<i", _TRACKER):
                raise FormError("no tracker of TVM")
            summary = _told(tracker, [_SUMMARY], None)
            known = {str(server["key"]) for server in summary["server_info"]}
            if f"server:{key}" not in known:
                raise FormError(f"the tracker has no device {key!r}")
            url, number, matching = _told(tracker, [_REQUEST, key, "", 1], client)
    except (EOFError, LookupError, TypeError, ValueError) as error:
        raise FormError(f"no answer that trackers give ({type(error).__name__})") from error
    if not all(isinstance(text, str) and text.isprintable() for text in (url, matching)):
        raise FormError("no answer that trackers give")
    is_short = len(url) + len(matching) < _MOST_KEY // 2 and len(matching.split()) == 1
    if not is_short or type(number) is not int or not 0 < number < 1 << 16:
        raise FormError("no answer that trackers give")
    return url, number, matching


def _told(tracker: socket.socket, question: list[Any], client: socket.socket | None) -> Any:
    text = str(question).replace("'", '"').encode()
    tracker.sendall(struct.pack("<i", len(text)) + text)
    if client is not None:
        tracker.settimeout(None)
    (size,) = struct.unpack("<i", _exactly(tracker, 4, client))
    if not 0 <= size <= _MOST:
        raise FormError(f"an answer of {size} bytes")
    tracker.settimeout(_REACH_S)
    code, *answer = parse_json(_exactly(tracker, size).decode())
    if code != 0:
        raise FormError("the tracker refuses")
    return answer[0]
