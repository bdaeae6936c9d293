"""Tokens of other servers: a server of a few lines answers as ours would not."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import pytest

from edgeinfer.runtime.serve import charged
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.runtime.serve.options import RequestLimits
from tests.runtime.serve.conftest import KEY, Start
from tests.runtime.serve.test_openai import CHAT, MESSAGES

T = TypeVar("T")
ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
USAGE = {"prompt_tokens": 500, "completion_tokens": 500}
WORDS = 5
MINE = {"x-api-key": KEY}


class Other(BaseHTTPRequestHandler):
    """Answers by the model that is asked: an end of lines, or how it goes wrong."""

    protocol_version = "HTTP/1.0"
    go_on = threading.Event()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["model"] in ENDS:
            self.stream(ENDS[asked["model"]], asked)
            return
        status, kind, more, body = {
            "whole": (200, "application/json; charset=utf-8", {}, _whole()),
            "html": (200, "text/html", {}, b"<script>"),
            "busy": (429, "text/plain", {}, b"busy"),
            "refused": (400, "application/problem+json", {"retry-after": "7"}, b'{"error":1}'),
            "moved": (307, "application/json", {"location": "http://127.0.0.1:1/"}, b"{}"),
            "gzip": (
                *(200, "application/json", {"content-encoding": "gzip"}),
                gzip.compress(bytes(64 << 20)),
            ),
            "large": (200, "application/json", {}, b" " * (2 << 20)),
            "events": (200, "text/event-stream", {}, b"data: {}\n\n"),
            "slow": (200, "application/json", {}, b""),
        }[asked["model"]]
        if asked["model"] == "slow":
            self.go_on.wait(20)
        self.send_response(status)
        for name, value in {"content-type": kind, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, end: bytes, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "Text/Event-Stream; charset=utf-8")
        self.end_headers()
        for number in range(WORDS):
            text = json.dumps({"choices": [{"delta": {"content": f"w{number}"}}]}).encode()
            self.wfile.write(b"data:" + text + 2 * end)
        self.go_on.wait(20)
        if asked.get("stream_options", {}).get("include_usage"):
            text = json.dumps({"choices": [], "usage": USAGE}).encode()
            self.wfile.write(b"event: x" + end + b"data: " + text + 2 * end)
        self.wfile.write(b"data: [DONE]" + 2 * end)


def _whole() -> bytes:
    return json.dumps({"choices": [{"text": "t"}], "usage": USAGE}).encode()


@pytest.fixture
def url() -> Iterator[str]:
    Other.go_on.set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        Other.go_on.set()
        server.shutdown()
        thread.join()


def asked(model: str, **changes: Any) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, **changes}


@pytest.mark.parametrize("end", ENDS)
def test_streams_count_however_their_lines_end(start: Start, url: str, end: str) -> None:
    server = start(upstreams=(f"{end}={url}",), keys=(f"{KEY} tokens=1500/h",))
    for _ in range(2):
        found = server.client.post(CHAT, json=asked(end, stream=True), headers=MINE)
        assert found.status_code == 200
        assert found.content.count(b"data:") == WORDS + 1
        assert b"usage" not in found.content
    assert server.client.post(CHAT, json=asked(end), headers=MINE).status_code == 429


@pytest.mark.parametrize("end", ENDS)
def test_events_come_as_they_are_made(start: Start, url: str, end: str) -> None:
    server = start(upstreams=(f"{end}={url}",), keys=(f"{KEY} tokens=1500/h",))
    Other.go_on.clear()
    with server.client.stream(
        "POST", CHAT, json=asked(end, stream=True), headers=MINE, timeout=15
    ) as response:
        got = b""
        for part in response.iter_raw():
            got += part
            if got.count(b"data:") == WORDS:
                # The other server waits until these have come.
                Other.go_on.set()
    assert got.endswith(b"[DONE]" + 2 * ENDS[end])


def test_who_leaves_has_paid_for_what_came(
    start: Start, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(
        "edgeinfer.runtime.serve.keys.Grant.count_tokens", lambda _, n: used.append(n)
    )
    server = start(upstreams=(f"lf={url}", f"slow={url}"), keys=(KEY,))
    Other.go_on.clear()
    long = [{"role": "user", "content": "a word " * 1000}]
    given = asked("lf", stream=True, messages=long)
    with server.client.stream("POST", CHAT, json=given, headers=MINE) as response:
        got = b""
        for part in response.iter_raw():
            got += part
            if got.count(b"data:") == WORDS:
                break
    assert 1750 <= used[0] <= 1850
    assert used[1:] == [1] * WORDS
    # Nobody knows what was written of a whole answer, but not more than was requested.
    for more, want in (({"max_tokens": 40, "n": 2}, 80), ({}, charged.MOST_UNTOLD)):
        used.clear()
        body = json.dumps(asked("slow", **more)).encode()
        with socket.create_connection(("127.0.0.1", server.client.base_url.port)) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nx-api-key: {KEY}\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            while not used:
                time.sleep(0.01)
        while len(used) < 2:
            time.sleep(0.01)
        assert used[1] == want


def test_an_estimate_is_taken_back(start: Start, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(
        "edgeinfer.runtime.serve.keys.Grant.count_tokens", lambda _, n: used.append(n)
    )
    names = ("whole", "refused", "html", "gzip", "moved", "gone")
    given = [f"{name}={url}" for name in names[:-1]]
    server = start(upstreams=(*given, "gone=http://127.0.0.1:9"), keys=(KEY,))
    for name in names:
        used.clear()
        server.client.post(CHAT, json=asked(name), headers=MINE)
        assert used[0] > 0
        assert sum(used) == (1000 if name == "whole" else 0), name


def test_what_is_neither_true_nor_false(start: Start, url: str) -> None:
    server = start(upstreams=(f"lf={url}",), keys=(KEY,))
    wrong: list[dict[str, Any]] = [
        {"stream": 1},
        {"stream": "true"},
        {"stream": True, "stream_options": []},
        {"stream": True, "stream_options": {"include_usage": 1}},
    ]
    for more in wrong:
        found = server.client.post(CHAT, json=asked("lf", **more), headers=MINE)
        assert found.status_code == 400, more
        assert "expected " in found.json()["error"]["message"], more


def test_answers_that_do_not_go_on(start: Start, url: str) -> None:
    answers = {
        "html": (502, "answered with status 200 and no JSON"),
        "busy": (429, "answered with status 429 and no JSON"),
        "moved": (502, "answered with status 307"),
        "events": (502, "answered with status 200 and no JSON"),
        "gzip": (502, "answered with status 200, compressed"),
        "large": (502, "and more than 1048576 bytes"),
    }
    given = tuple(f"{model}={url}" for model in answers)
    server = start(upstreams=given, limits=RequestLimits(body_bytes=1 << 20))
    for model, (status, text) in answers.items():
        found = server.client.post(CHAT, json=asked(model))
        assert found.status_code == status, model
        assert text in found.json()["error"]["message"], model
        assert found.headers["content-type"] == "application/json", model


def test_refusals_go_on(start: Start, url: str) -> None:
    server = start(upstreams=(f"refused={url}",))
    found = server.client.post(CHAT, json=asked("refused"))
    assert (found.status_code, found.json(), found.headers["retry-after"]) == (
        *(400, {"error": 1}, "7"),
    )


def test_headers_that_cannot_be_sent(start: Start, url: str) -> None:
    post = start(upstreams=(f"whole={url}",)).client.post
    for name in ("x-request-id", "traceparent", "anthropic-version"):
        for value in (b"\xff\xfe", b"a\tb"):
            found = post(CHAT, json=asked("whole"), headers={name.encode(): value})
            assert found.status_code == 400
            assert f"{name}: expected plain ASCII" in found.json()["error"]["message"]
        assert post(CHAT, json=asked("whole"), headers={name: "a b"}).is_success


async def parts(stream: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(stream), size):
        yield stream[at : at + size]


async def gathered(source: AsyncIterator[bytes]) -> list[bytes]:
    return [part async for part in source]


def split(stream: bytes, size: int) -> list[bytes]:
    async def all_of() -> list[bytes]:
        return [e async for events in charged.split(parts(stream, size)) for e in events]

    return asyncio.run(all_of())


async def at_once(size: int, work: Callable[[], T]) -> T:
    """Read as a server does what is small."""
    return work()


@pytest.mark.parametrize("size", [1, 2, 3, 11, 1000])
def test_events_are_split_as_they_end(size: int) -> None:
    for end in (*ENDS.values(), b"\r\n\r", b"\n\r\n"):
        whole = [b"data: a" + 2 * end, b": b" + 2 * end, b"data: c"]
        found = split(b"".join(whole), size)
        assert b"".join(found) == b"".join(whole)
        assert [text for e in found if (text := e.strip())] == [e.strip() for e in whole]


def test_time_of_a_split_grows_with_what_comes() -> None:
    def taken(size: int) -> float:
        start = time.thread_time()
        assert len(split(b"a" * size, 1)) == 1
        return time.thread_time() - start

    # Eight times as much; caches that others take cost a part of it.
    assert min(taken(320_000) for _ in range(2)) < 32 * min(taken(40_000) for _ in range(3))


def test_an_event_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charged, "MOST_EVENT", 100)
    assert len(split(b"data: a\n\n" * 100, 64)) == 100
    with pytest.raises(RequestError, match="larger than 100"):
        split(b"data: a\n" * 100, 64)


class Counts:
    used = 0

    def count_tokens(self, count: int) -> None:
        self.used += count


def test_what_is_large_is_read_beside_the_loop_and_what_is_small_sent_together() -> None:
    """A server held the loop of this one with an event of lists, or with many that are empty."""
    large = b'data: {"choices":[' + b"[]," * 60000 + b"1]}\n\n"
    sizes: list[int] = []

    async def reads(size: int, work: Callable[[], T]) -> T:
        sizes.append(size)
        return work()

    async def passed(stream: bytes) -> list[bytes]:
        made: Any = Counts()
        found = charged.Charged(made, CHAT, {"stream": True})
        return await gathered(found.events(parts(stream, 1 << 16), reads))

    assert b"".join(asyncio.run(passed(large))) == large
    assert sizes == [len(large)]
    empty = asyncio.run(passed(b"\n" * 600_000))
    assert (len(b"".join(empty)), len(empty)) == (600_000, 10)
    assert sizes == [len(large)]
    found, made = charged.Charged(Counts(), CHAT, {}), b'{"choices": [%s1]}' % (b"[]," * 60000)  # type: ignore[arg-type]
    asyncio.run(found.whole(200, made, reads))
    assert sizes == [len(large), len(made)]


def test_tokens_count_once_however_often_they_are_told(start: Start) -> None:
    given = {"messages": MESSAGES, "max_tokens": 5, "stream": True, "model": "tiny"}
    client = start().client
    streams = {
        "/v1/messages": client.post("/v1/messages", json=given).content,
        "/v1/responses": b'event: a\ndata: {"response":{"usage":{"input_tokens":7,'
        b'"output_tokens":5}}}\n\n',
        CHAT: b"".join(
            b'data: {"choices":[1],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n' % n
            for n in range(6)
        ),
        # What is told before the texts is not all.
        "/v1/completions": b'data: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
        + b'data: {"choices":[{"text":"eight letters of text"}]}\n\n',
    }
    whole = client.post("/v1/messages", json={**given, "stream": False}).json()
    wanted = dict.fromkeys(streams, 12)
    wanted["/v1/messages"] = sum(whole["usage"][f"{side}_tokens"] for side in ("input", "output"))

    async def passed(tokens: charged.Charged, stream: bytes) -> bytes:
        with tokens.sent(4000):
            return b"".join(await gathered(tokens.events(parts(stream, 11), at_once)))

    for path, stream in streams.items():
        counts: Any = Counts()
        assert (
            asyncio.run(passed(charged.Charged(counts, path, {"stream": True}), stream)) == stream
        )
        assert counts.used == wanted[path], path
