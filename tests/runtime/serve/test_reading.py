"""Bodies that come in pieces are whole and in order, and memory that is lent is given back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState

from edgeinfer.runtime.serve import connections, protocol
from edgeinfer.runtime.serve.exchange import WholeRequest
from edgeinfer.runtime.serve.reading import HEAD_BYTES, RequestBody

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Any], Awaitable[None]]


class Taker:
    """Answers with the body, or leaves it to ASGI."""

    def __init__(self, takes: bool) -> None:
        self.takes, self.asked = takes, list[bytes]()

    def take(self, request: WholeRequest) -> bool:
        body = bytes(request.body)
        self.asked.append(body)
        if self.takes:
            request.answer(200, [(b"content-length", b"%d" % len(body))], body)
        return self.takes


def talked(talk: Talk, taker: Taker) -> None:
    """Talk over one connection to a server that gives bodies back, with each kind of loop."""
    loops: list[Any] = [asyncio.new_event_loop]
    if sys.platform != "win32":
        uvloop = pytest.importorskip("uvloop")
        loops.append(uvloop.new_event_loop)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def run() -> None:
        config = uvicorn.Config(app, lifespan="off", ws="none")
        config.load()
        make, state = protocol.protocol(30.0, taker), ServerState()
        made: list[Any] = []

        def one() -> Any:
            made.append(make(config=config, server_state=state, app_state={}))
            return made[-1]

        server = await asyncio.get_running_loop().create_server(one, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            await asyncio.wait_for(talk(reader, writer, lambda: made[0]._connection), 30)
        finally:
            writer.close()
            server.close()

    for loop in loops:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())


def head(size: int, more: str = "") -> bytes:
    return (
        f"POST /echo HTTP/1.1\r\nhost: localhost\r\n{more}content-length: {size}\r\n\r\n".encode()
    )


def text(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


async def answer(reader: asyncio.StreamReader) -> bytes:
    found = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert found.startswith(b"http/1.1 200")
    size = int(found.split(b"content-length: ")[1].split(b"\r\n")[0])
    return await reader.readexactly(size)


async def given(writer: asyncio.StreamWriter, data: bytes, *cuts: int) -> None:
    """Send data in pieces, each of which is read on its own."""
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        writer.write(data[start:end])
        await writer.drain()
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("size", [1, 300, HEAD_BYTES, 40_000, 110_000, 300_000, 1 << 20])
def test_pieces_are_put_together(monkeypatch: pytest.MonkeyPatch, takes: bool, size: int) -> None:
    monkeypatch.setattr(protocol, "SOON_S", 60.0)
    taker = Taker(takes)
    body = text(size)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        begin = len(head(size))
        ways = [(), (begin,), (begin + size // 2,), (begin - 5, begin + size // 3)]
        for cuts in ways:
            await given(writer, head(size) + body, *cuts)
            assert await answer(reader) == body
        assert connection().doors.lent == 0

    talked(talk, taker)
    # Each was whole when it was asked about: neither loop gave one up.
    assert taker.asked == [body] * 8


@pytest.mark.parametrize("takes", [True, False])
def test_a_body_that_is_late_is_begun_without_it(
    monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    monkeypatch.setattr(protocol, "SOON_S", 0.01)
    taker, body = Taker(takes), text(110_000)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        writer.write(head(len(body)) + body[:50_000])
        await asyncio.sleep(0.1)
        assert connection().body is None
        assert connection().doors.lent == 0
        await given(writer, body[50_000:], 20_000)
        assert await answer(reader) == body
        # The next one is read as any other.
        await given(writer, head(5) + b"after")
        assert await answer(reader) == b"after"

    talked(talk, taker)
    assert taker.asked == [b"after"] * 2


@pytest.mark.parametrize("takes", [True, False])
def test_what_comes_behind_a_body_is_the_next_request(
    monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    monkeypatch.setattr(protocol, "SOON_S", 60.0)
    bodies = [text(50_000), text(7), text(90_000)]

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        every = b"".join(head(len(body)) + body for body in bodies)
        await given(writer, every, 10_000, 50_200)
        assert [await answer(reader) for _ in bodies] == bodies

    talked(talk, Taker(takes))


def test_a_larger_body_is_begun_at_once() -> None:
    taker, body = Taker(True), text((1 << 20) + 1)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        await given(writer, head(len(body)) + body, 9_000)
        assert await answer(reader) == body

    talked(talk, taker)
    assert not taker.asked


def test_so_much_is_waited_for_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is required before such bodies are there."""
    monkeypatch.setattr(connections, "_MOST_LENT", 100_000)
    monkeypatch.setattr(protocol, "SOON_S", 60.0)
    taker = Taker(True)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        for size in (100_000, 100_001):
            body = text(size)
            await given(writer, head(size) + body, 20_000)
            assert await answer(reader) == body

    talked(talk, taker)
    assert list(map(len, taker.asked)) == [100_000] * 2


def test_who_leaves_gives_back_what_was_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SOON_S", 60.0)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        writer.write(head(100_000) + b"x" * 50_000)
        while not (doors := connection().doors).lent:
            await asyncio.sleep(0.002)
        assert doors.lent == 100_000
        writer.close()
        while doors.lent:
            await asyncio.sleep(0.002)

    talked(talk, Taker(True))


def test_a_connection_is_closed_behind_what_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SOON_S", 60.0)
    body = text(60_000)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        await given(writer, head(len(body), "connection: close\r\n") + body, 20_000)
        assert await answer(reader) == body
        assert await reader.read() == b""

    talked(talk, Taker(True))


@pytest.mark.parametrize("start", [0, 1, 133, 140, 8_000])
def test_raw_tensors_lie_where_engines_like_them(start: int) -> None:
    body = RequestBody(9_000, b"x" * 100, start)
    assert np.frombuffer(body.whole(), np.uint8, offset=start).ctypes.data % 16 == 0
    with pytest.raises(TypeError):
        body.whole()[0] = 0
