"""A head that comes again is not parsed again, and says what it said before."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import httptools
import numpy as np
import pytest

from edgeinfer.runtime.serve import protocol
from edgeinfer.runtime.serve.known_heads import MOST_BYTES, TRIES, KnownHead, known_head
from tests.runtime.serve.test_reading import Taker, answer, given, head, talked, text


class _Parsed:
    """Takes what a parser finds, as a connection does."""

    def __init__(self) -> None:
        self.url, self.headers, self.found = b"", list[tuple[bytes, bytes]](), list[Any]()
        self.data = b""

    def on_message_begin(self) -> None:
        self.url, self.headers = b"", []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.found.append(known_head(self.data, self.url, self.headers))


def found(data: bytes) -> list[KnownHead | None]:
    to = _Parsed()
    to.data = data
    with contextlib.suppress(httptools.HttpParserUpgrade):
        httptools.HttpRequestParser(to).feed_data(data)
    return to.found


PLAIN = b"POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\n"


@pytest.mark.parametrize(
    ("more", "is_kept"),
    [
        (b"", True),
        (b"connection: Keep-Alive\r\n", True),
        (b"connection: close\r\n", False),
        (b"connection: keep-alive\r\nconnection: close\r\n", False),
        (b"expect: 100-continue\r\n", False),
        (b"connection: upgrade\r\nupgrade: websocket\r\n", False),
        (b"x: " + b"y" * MOST_BYTES + b"\r\n", False),
    ],
)
def test_a_head_is_kept_where_its_bytes_say_all(more: bytes, is_kept: bool) -> None:
    whole = PLAIN + more + b"\r\n"
    for behind in (b"", b"five!", b"five!POST /c HTTP/1.1\r\n") if is_kept else (b"",):
        (one,) = found(whole + behind)[:1]
        assert (one is not None) == is_kept
        if one is not None:
            assert (one.text, one.url, one.length, one.place) == (whole, b"/a", 5, 0)
            assert one.begins(memoryview(whole + behind))
            assert not one.begins(whole[:-1])


@pytest.mark.parametrize(
    "data",
    [
        b"GET /a HTTP/1.1\r\nhost: b\r\ncontent-length: 5\r\n\r\n",
        b"POST /a HTTP/1.0\r\nhost: b\r\ncontent-length: 5\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: b\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: b\r\n\r\n",
        b"\r\n" + PLAIN + b"\r\n",
    ],
)
def test_other_heads_are_parsed_each_time(data: bytes) -> None:
    assert found(data) == [None]


def test_lines_that_the_parser_joined_are_no_head() -> None:
    """What stands in two places was read by other rules."""
    folded = PLAIN + b"x: y\r\n z\r\n\r\n"
    assert known_head(folded, b"/a", [(b"content-length", b"5"), (b"x", b"y z")]) is None
    bare = PLAIN.replace(b"\r\nHost", b"\nHost") + b"\r\n"
    assert known_head(bare, b"/a", [(b"host", b"b"), (b"content-length", b"5")]) is None


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that grows by the address of each head that is parsed."""
    seen: list[bytes] = []
    before = protocol._Protocol.on_headers_complete

    def on_headers_complete(self: Any) -> None:
        seen.append(self.url)
        before(self)

    monkeypatch.setattr(protocol._Protocol, "on_headers_complete", on_headers_complete)
    monkeypatch.setattr(protocol, "SOON_S", 60.0)
    return seen


def test_a_head_is_parsed_once(parsed: list[bytes]) -> None:
    taker, bodies = Taker(True), [text(30_000) for _ in range(4)]

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        for number, body in enumerate(bodies):
            await given(writer, head(len(body)) + body, *([], [200], [9_000], [300, 9_000])[number])
            assert await answer(reader) == body
        assert connection().doors.lent == 0

    talked(talk, taker)
    assert taker.asked == bodies * 2
    assert parsed == [b"/echo"] * 2


def test_what_is_not_taken_is_parsed_and_answered(parsed: list[bytes]) -> None:
    taker, body = Taker(True), text(20_000)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        for takes, cuts in ((True, ()), (False, ()), (True, ()), (True, ()), (False, (200,))):
            taker.takes = takes
            await given(writer, head(len(body)) + body, *cuts)
            assert await answer(reader) == body
        assert connection().doors.lent == 0

    talked(talk, taker)
    # The first, the one that is refused, the one behind it whose head is not known any more, ...
    assert parsed == [b"/echo"] * 8
    assert taker.asked == [body] * 10


def test_a_known_head_whose_body_is_late_is_begun_without_it(
    parsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    taker, body = Taker(True), text(5_000)
    monkeypatch.setattr(protocol, "SOON_S", 0.01)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        for part in (0, 1_000):
            for count in (5_000, part):
                writer.write(head(len(body)) + body[:count])
                if count == part:
                    before = len(parsed)
                    while len(parsed) == before:
                        await asyncio.sleep(0.002)
                    assert connection().body is None
                    assert connection().doors.lent == 0
                    await given(writer, body[part:], 2_000)
                assert await answer(reader) == body

    talked(talk, taker)
    # What is late is handed on, and the head of the connection stays known.
    assert taker.asked == [body] * 4
    assert len(parsed) == 6


def test_who_sends_another_head_each_time_has_none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    monkeypatch.setattr(protocol, "known_head", lambda data, *_: kept.append(bytes(data)))

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        for number in range(3 * TRIES):
            await given(writer, head(3, f"x-number: {number}\r\n") + b"abc")
            assert await answer(reader) == b"abc"

    talked(talk, Taker(True))
    assert len(kept) == 2 * TRIES


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_heads_and_pieces(parsed: list[bytes], seed: int) -> None:
    taker, rng = Taker(True), random.Random(seed)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        for _ in range(40):
            whole, bodies = b"", []
            for _ in range(rng.choice([1, 1, 1, 3])):
                body, more = text(rng.choice([3, 3, 40_000])), rng.choice(["", "", "x: y\r\n"])
                bodies.append(body)
                whole += head(len(body), more) + body
            taker.takes = rng.random() < 0.8
            cuts = sorted(rng.sample(range(1, len(whole)), rng.choice([0, 0, 1, 2])))
            await given(writer, whole, *cuts)
            assert [await answer(reader) for _ in bodies] == bodies
        assert connection().doors.lent == 0

    talked(talk, taker)


def test_what_is_expected_is_read_by_one_call_to_where_it_stays(parsed: list[bytes]) -> None:
    body = text(60_000)
    where: list[int] = []

    class Watched(Taker):
        def take(self, request: Any) -> bool:
            where.append(np.frombuffer(request.body, np.uint8).ctypes.data % 16)
            return super().take(request)

    taker = Watched(True)

    async def talk(reader: Any, writer: Any, connection: Any) -> None:
        for cuts in ((), (), (70,), (200, 30_000)):
            await given(writer, head(len(body)) + body, *cuts)
            assert await answer(reader) == body
        # Another one comes where this one was expected, and a head that ends within it.
        other = head(7, "x: y\r\n") + b"another"
        await given(writer, other + head(len(body)) + body, len(other) + 9)
        assert [await answer(reader) for _ in range(2)] == [b"another", body]

    talked(talk, taker)
    assert len(where) == 12
    assert set(where) == {0}
