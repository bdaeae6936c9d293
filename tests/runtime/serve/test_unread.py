"""Answers that nobody reads: they count to their last byte, and end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import numpy as np
import pytest

from edgeinfer.runtime.serve import unread
from edgeinfer.runtime.serve.inflight import InFlight
from edgeinfer.runtime.serve.options import RequestLimits
from edgeinfer.runtime.serve.unread import Unread, end_connections, place_of
from tests.runtime.serve.conftest import Server, Start


@pytest.mark.parametrize("is_read", [True, False])
def test_who_reads_nothing_is_let_go(is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads, as fast as anybody can, is not."""
    monkeypatch.setattr(unread, "LEAST", 1)

    class Transport:
        left, is_aborted = 100, False

        def get_write_buffer_size(self) -> int:
            self.left -= is_read
            return self.left

        def abort(self) -> None:
            self.is_aborted = True

    async def main() -> None:
        memory, transport = InFlight(1000), Transport()
        found = Unread(transport, memory, b"a", 0.1)
        before = memory.used
        assert before in (99, 100)
        if is_read:
            while transport.left > 50:
                await asyncio.sleep(0.01)
        else:
            while not transport.is_aborted:
                await asyncio.sleep(0.01)
        # Its memory is one piece: with a byte of it left all of it is there.
        assert memory.used == before
        assert transport.is_aborted != is_read
        found.end()
        assert memory.used == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_reads_next_to_nothing_is_let_go() -> None:
    """A byte now and then kept an answer for ever."""

    class Transport:
        left, is_aborted = 1 << 20, False

        def get_write_buffer_size(self) -> int:
            self.left -= 1
            return self.left

        def abort(self) -> None:
            self.is_aborted = True

    async def main() -> None:
        transport = Transport()
        Unread(transport, InFlight(1000), b"a", 0.1)
        while not transport.is_aborted:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    ("peer", "place"),
    [
        ("ipv4:10.0.0.1:5", ("10.0.0.1", 5)),
        ("ipv6:[2001:db8::1]:5", ("2001:db8::1", 5)),
        ("ipv6:%5B2001:db8::1%5D:5", ("2001:db8::1", 5)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5", ("10.0.0.1", 5)),
        ("unix:", ("", 0)),
    ],
)
def test_who_calls_has_a_place(peer: str, place: tuple[str, int]) -> None:
    assert place_of(peer) == place


@pytest.mark.parametrize(
    ("family", "host", "said"),
    [
        (socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1:"),
        (socket.AF_INET6, "::1", "ipv6:%5B::1%5D:"),
        # A socket of both kinds.
        (socket.AF_INET6, "127.0.0.1", "ipv4:127.0.0.1:"),
    ],
)
def test_of_all_connections_those_end(family: int, host: str, said: str) -> None:
    with contextlib.ExitStack() as stack:
        try:
            listening = stack.enter_context(socket.create_server(("", 0), family=family))
            if family == socket.AF_INET6:
                listening.close()
                listening = socket.socket(family)
                stack.enter_context(listening)
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listening.bind(("::", 0))
                listening.listen()
            port = listening.getsockname()[1]
            clients = [stack.enter_context(socket.create_connection((host, port))) for _ in "ab"]
        except OSError as error:
            pytest.skip(f"no such address here: {error}")
        taken = [stack.enter_context(listening.accept()[0]) for _ in clients]
        own = f"{said}{clients[0].getsockname()[1]}"
        end_connections(port + 1 if port < 65535 else port - 1, {own})
        taken[0].sendall(b"a")
        end_connections(port, {own, "unix:"})
        clients[0].settimeout(60)
        assert [clients[0].recv(10), clients[0].recv(10)] == [b"a", b""]
        taken[1].sendall(b"b")
        assert clients[1].recv(10) == b"b"


@pytest.fixture
def large(start: Start) -> tuple[Server, bytes]:
    """Start a server whose clients have little time, and make a message of many values."""
    pytest.importorskip("grpc")
    from edgeinfer.runtime.serve.messages import messages

    server = start(grpc_port=0, limits=RequestLimits(body_s=0.1))
    request = messages()["ModelInferRequest"](model_name="double", id="17")
    rows = 1 << 16
    for name, kind, shape in (("x", "FP32", [rows, 3]), ("k", "INT64", [rows])):
        request.inputs.add(name=name, datatype=kind, shape=shape)
    request.raw_input_contents.append(np.zeros((rows, 3), np.float32).tobytes())
    request.raw_input_contents.append(np.zeros(rows, np.int64).tobytes())
    return server, request.SerializeToString()


@pytest.mark.parametrize("way", ["ModelInfer", "ModelStreamInfer"])
def test_a_call_whose_answer_nobody_reads_ends(large: tuple[Server, bytes], way: str) -> None:
    """It counted for as long as the client liked: all that a key, or everybody, may have."""
    import grpc

    from edgeinfer.runtime.serve.messages import SERVICE

    server, raw = large
    assert server.app.rpc is not None
    own = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65535)]
    with grpc.insecure_channel(f"127.0.0.1:{server.app.rpc.port}", own) as channel:
        # Nobody asks it for an answer.
        call = channel.stream_stream(f"/{SERVICE}/{way}")(iter([raw]))
        end = time.monotonic() + 60
        while not server.hub.memory.used and time.monotonic() < end:
            time.sleep(0.001)
        assert server.hub.memory.used
        while server.hub.memory.used and time.monotonic() < end:
            time.sleep(0.01)
        assert server.hub.memory.used == 0
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
