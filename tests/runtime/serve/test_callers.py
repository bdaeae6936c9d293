"""Of calls and connections of gRPC one client leaves others theirs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edgeinfer.runtime.serve import rpc
from edgeinfer.runtime.serve.callers import CallConnections, CallPlaces
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.messages import SERVICE
from edgeinfer.runtime.serve.options import RequestLimits
from tests.runtime.serve.conftest import KEY, Start

OTHER = "another-key-of-enough-letters"


def test_one_of_several_has_a_half_of_the_places() -> None:
    places = CallPlaces(4, "calls")
    for share in (b"a", b"a", b"b"):
        places.take(share)
    with pytest.raises(RequestError, match="2 calls, all that one client") as caught:
        places.take(b"a")
    assert caught.value.status == 429
    places.take(b"")
    with pytest.raises(RequestError, match="4 calls") as caught:
        places.take(b"b")
    assert caught.value.status == 503
    places.give(b"a")
    places.take(b"a")


def test_silent_connections_give_way_first_then_those_that_rest() -> None:
    connections = CallConnections(8)
    silent, rested, busy = ([(f"10.0.0.{n}", port) for port in (1, 2, 3)] for n in (1, 2, 3))
    for host, port in (*rested, *busy):
        connections.asks(f"ipv4:{host}:{port}")
    for host, port in reversed(rested):
        connections.rests(f"ipv4:{host}:{port}")
    assert connections.surplus([*silent, *busy]) == []
    assert connections.surplus([*rested, *silent, *busy]) == silent
    assert connections.surplus([*rested, silent[0], *busy]) == [silent[0]]
    # Four of one network stay, and of those that rest the longest goes.
    late = [("10.0.0.2", port) for port in (4, 5)]
    for host, port in late:
        connections.asks(f"ipv4:{host}:{port}")
        connections.rests(f"ipv4:{host}:{port}")
    assert connections.surplus([*rested, *late]) == [rested[2]]
    # Who calls is never one of them.
    assert connections.surplus([(f"10.0.1.{n}", 1) for n in range(9)] + busy)[:1] == [
        ("10.0.1.0", 1)
    ]
    assert not set(connections.surplus([*busy, *rested, *late])) & {*busy}


def test_connections_of_grpc_without_a_call_are_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One address had all of them for as long as it liked, without a key."""
    grpc = pytest.importorskip("grpc")
    monkeypatch.setattr(rpc, "files", lambda: 64)
    server = start(grpc_port=0, keys=(KEY,))
    assert server.app.rpc is not None
    port = server.app.rpc.port
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(16)
        ]
        # Eight may stay.
        for each in opened[:8]:
            each.settimeout(60)
            with contextlib.suppress(ConnectionError):
                while each.recv(1 << 16):
                    pass
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ServerLive")
            assert call(b"", timeout=60, wait_for_ready=True) == b"\x08\x01"


def test_calls_of_one_key_leave_others_a_half(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls without a message took all there may be at once."""
    grpc = pytest.importorskip("grpc")
    monkeypatch.setattr(rpc, "_CALLS", 8)
    server = start(grpc_port=0, keys=(KEY, OTHER))
    assert server.app.rpc is not None
    over, refused = threading.Event(), threading.Semaphore(0)
    codes = []

    def nothing() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    def ended(call: Any) -> None:
        codes.append((call.code(), call.details()))
        refused.release()

    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}") as channel:
        call = channel.stream_unary(f"/{SERVICE}/ModelReady")
        for _ in range(7):
            call.future(nothing(), metadata=(("x-api-key", OTHER),)).add_done_callback(ended)
        try:
            for _ in range(3):
                assert refused.acquire(timeout=60)
            assert {code for code, _ in codes} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert all("4 calls are under way" in text for _, text in codes)
            ready = channel.unary_unary(f"/{SERVICE}/ModelReady")
            own = (("x-api-key", KEY),)
            assert ready(b"\x0a\x06double", timeout=60, metadata=own) == b"\x08\x01"
        finally:
            over.set()


def test_answers_to_probes_that_nobody_takes_have_a_short_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without a window kept each call for half a minute."""
    monkeypatch.setattr(rpc, "_PROBE_S", 0.2)
    pytest.importorskip("grpc")
    server = start(grpc_port=0, keys=(KEY,), limits=RequestLimits(body_s=2.0))
    assert server.app.rpc is not None
    head = b"".join(
        b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/{SERVICE}/ServerLive".encode()),
            (b":authority", b"a"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    # Settings with SETTINGS_INITIAL_WINDOW_SIZE=0, a call's head, and an empty message of it.
    frames = ((4, 0, 0, b"\0\4\0\0\0\0"), (1, 4, 1, head), (0, 1, 1, bytes(5)))
    with socket.create_connection(("127.0.0.1", server.app.rpc.port)) as client:
        client.settimeout(60)
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        for kind, flags, stream, data in frames:
            size = len(data).to_bytes(3, "big")
            client.sendall(size + bytes([kind, flags]) + stream.to_bytes(4, "big") + data)
        with contextlib.suppress(ConnectionError):
            while client.recv(1 << 16):
                pass
