"""Clients that leave, and clients that send and never read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from edgeinfer.runtime.serve import protocol as protocol_module
from edgeinfer.runtime.serve.inflight import Held, InFlight
from edgeinfer.runtime.serve.keys import Keys
from edgeinfer.runtime.serve.options import ServeOptions
from edgeinfer.runtime.serve.protocol import MOST_AHEAD, Joined, protocol


class Transport:
    """What a connection writes to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_lost = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.is_lost

    def close(self) -> None:
        self.is_lost = True


def test_nothing_is_written_to_a_client_that_left() -> None:
    async def told() -> list[bytes]:
        transport = Transport()
        joined = Joined(transport, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        await asyncio.sleep(0)
        joined.write(b"late")
        transport.is_lost = True
        await asyncio.sleep(0)
        joined.close()
        return transport.written

    assert asyncio.run(told()) == [b"head body"]


def test_what_waits_is_written_before_the_end() -> None:
    async def told() -> list[bytes]:
        transport = Transport()
        joined = Joined(transport, asyncio.get_running_loop())
        joined.write(b"last")
        joined.close()
        await asyncio.sleep(0)
        return transport.written

    assert asyncio.run(told()) == [b"last"]


def called(read: Any) -> Any:
    """What gRPC gives a call, as far as streams use it."""
    return SimpleNamespace(
        invocation_metadata=lambda: (), read=read, peer=str, add_done_callback=lambda done: None
    )


def test_a_stream_whose_answers_nobody_reads_is_not_read_further() -> None:
    pytest.importorskip("grpc")
    from edgeinfer.runtime.serve.rpc import Rpc

    class Echo(Rpc):
        async def _streamed(self, raw: list[bytes], held: Held, problem: Any, step: Any) -> Any:
            held.release()
            return raw[0], held

    taken: list[int] = []

    async def read() -> bytes | None:
        if len(taken) == 10_000:
            return None
        taken.append(len(taken))
        return str(taken[-1]).encode()

    async def run() -> None:
        options = ServeOptions()
        hub: Any = SimpleNamespace(memory=InFlight(1 << 20), regions=None, options=options)
        context = called(read)
        answers = Echo(hub, Keys(()))._stream(None, context)
        assert await anext(answers) == b"0"
        for _ in range(20_000):
            await asyncio.sleep(0)
        most = options.limits.queue
        assert len(taken) <= most + 3
        assert [await anext(answers) for _ in range(9_999)][-1] == b"9999"
        assert len(taken) == 10_000

    asyncio.run(run())


def test_a_message_that_waits_for_memory_lets_no_other_be_received() -> None:
    """Each was there already, and counted nowhere."""
    pytest.importorskip("grpc")
    from edgeinfer.runtime.serve.rpc import Rpc

    async def read() -> bytes:
        return b"message"

    async def run() -> None:
        hub: Any = SimpleNamespace(memory=InFlight(10), regions=None, options=ServeOptions())
        rpc, others, own = Rpc(hub, Keys(())), Held(hub.memory), Held(hub.memory)
        free = rpc._reading._all._free
        await others.take(10)
        waiting = asyncio.ensure_future(rpc._received(read, own))
        for _ in range(10):
            await asyncio.sleep(0)
        assert (waiting.done(), rpc._reading._all._free) == (False, free - 1)
        others.release()
        assert await waiting == b"message"
        assert (hub.memory.used, rpc._reading._all._free) == (7, free)

    asyncio.run(run())


def test_of_a_message_without_memory_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc")
    from edgeinfer.runtime.serve.rpc import Rpc

    kept: list[tuple[bytes, int]] = []

    class Echo(Rpc):
        async def _streamed(self, raw: list[bytes], held: Held, problem: Any, step: Any) -> Any:
            kept.append((raw[0], problem.status if problem else 200))
            return raw[0], held

    messages = iter((b"fits", b"too large", b"fits"))

    async def read() -> bytes | None:
        return next(messages, None)

    async def run() -> None:
        monkeypatch.setattr("edgeinfer.runtime.serve.inflight.WAIT_S", 0.0)
        hub: Any = SimpleNamespace(memory=InFlight(8), regions=None, options=ServeOptions())
        context = called(read)
        async for _ in Echo(hub, Keys(()))._stream(None, context):
            pass

    asyncio.run(run())
    assert kept == [(b"fits", 200), (b"", 503), (b"fits", 200)]


ASK = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def over_a_connection(
    rest_s: float,
    talk: Any,
    *,
    tls: Any = None,
    whole: Any = None,
    head_s: float = 30.0,
    loop: Any = None,
) -> Any:
    """Talk over one connection to a server whose connections may rest for so long.

    ``whole`` connects itself, to the address that it is given.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def run() -> Any:
        config = uvicorn.Config(app, timeout_keep_alive=rest_s, lifespan="off", ws="none")  # type: ignore[arg-type]
        kind: Any = protocol(head_s, None, tls)
        state = ServerState()
        config.load()

        def made() -> Any:
            return kind(config=config, server_state=state, app_state={})

        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if whole is not None:
            try:
                return await asyncio.wait_for(whole("127.0.0.1", port), 60)
            finally:
                server.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await asyncio.wait_for(talk(reader, writer), 20)
        finally:
            writer.close()
            server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(run())


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ASK)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


def test_a_connection_that_rests_is_closed() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        await ask(reader, writer)
        await ask(reader, writer)
        start = asyncio.get_running_loop().time()
        assert await reader.read() == b""
        return asyncio.get_running_loop().time() - start

    assert 0.25 < over_a_connection(0.3, talk) < 5


def test_a_connection_that_is_used_is_kept() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        for _ in range(6):
            await ask(reader, writer)
            await asyncio.sleep(0.4)
        return 6

    # Together they rest longer than one may.
    assert over_a_connection(2.0, talk) == 6


def test_who_sends_far_ahead_of_the_answers_is_left() -> None:
    """10,000 requests of one packet were queued, and nobody else was answered for seconds."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(ASK * 10_000)
        found = b""
        # What it did not read makes the end a reset.
        with contextlib.suppress(ConnectionResetError):
            while part := await reader.read(1 << 16):
                found += part
        return found

    answers = over_a_connection(30.0, talk)
    assert answers.count(b"200 OK") <= MOST_AHEAD + 1


def test_a_few_requests_may_be_sent_ahead() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        for _ in range(3):
            writer.write(ASK * MOST_AHEAD)
            for _ in range(MOST_AHEAD):
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        return 1

    assert over_a_connection(30.0, talk)


def test_one_address_has_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,100 silent ones of one client kept everybody else out."""
    monkeypatch.setattr(protocol_module, "files", lambda: 4)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        host, port = writer.get_extra_info("peername")[:2]
        await ask(reader, writer)
        second = await asyncio.open_connection(host, port)
        with contextlib.suppress(ConnectionResetError):
            assert await second[0].read() == b""
        second[1].close()
        # The first goes on.
        await ask(reader, writer)
        return True

    assert over_a_connection(30.0, talk)


def test_what_anybody_provokes_is_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """Each request that is none wrote a line."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        host, port = writer.get_extra_info("peername")[:2]
        for _ in range(5):
            other = await asyncio.open_connection(host, port)
            other[1].write(b"no request\r\n\r\n")
            await other[0].read()
            other[1].close()
        return True

    protocol_module._SELDOM._at = -1e9
    with caplog.at_level("WARNING", logger="uvicorn.error"):
        assert over_a_connection(30.0, talk)
    assert sum("Invalid HTTP request" in r.getMessage() for r in caplog.records) <= 1


def test_a_request_that_the_server_ends_leaves_no_trace(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each body that was half sent when it stopped was a trace of a kilobyte in the log."""
    # Before 0.54 uvicorn's own configuration, of an earlier test, keeps its lines from the root.
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    protocol_module.protocol(30.0)
    log = logging.getLogger("uvicorn.error")
    with caplog.at_level("WARNING", logger="uvicorn.error"):
        for error in (asyncio.CancelledError("timeout graceful shutdown exceeded"), KeyError("x")):
            log.error("Exception in ASGI application\n", exc_info=error)
    # A newer pytest takes what the root would not see itself.
    (shown,) = set(caplog.records)
    assert shown.exc_info is not None
    assert isinstance(shown.exc_info[1], KeyError)
