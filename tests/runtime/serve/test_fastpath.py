"""The fast path: answers, counters and refusals are those of the way that all requests take."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl

from edgeinfer.runtime.serve import fastpath, protocol
from edgeinfer.runtime.serve.exchange import WholeRequest
from edgeinfer.runtime.serve.fastpath import FastPath
from edgeinfer.runtime.serve.inflight import LARGE_BYTES
from edgeinfer.runtime.serve.requestlog import LOG, JsonLines, _line
from edgeinfer.runtime.serve.stacks import Stack
from tests.runtime.conftest import Fakes
from tests.runtime.serve.conftest import KEY, Server, Start

URL = "/v2/models/double/infer"
OTHER = "another-key-of-enough-letters"
HEAD = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %%d\r\n\r\n" % URL.encode()
LENGTH = "inference-header-content-length"


def told(value: float = 1.5, **more: Any) -> bytes:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [value] * 3}
    k = {"name": "k", "datatype": "INT64", "shape": [1], "data": [4]}
    return json.dumps({"inputs": [x, k], **more}).encode()


def raw(value: float = 1.5, **more: Any) -> tuple[bytes, int]:
    """Return a body with raw tensors, and the size of its JSON."""
    x, k = np.full((1, 3), value, np.float32), np.array([4])
    items = [
        {"name": n, "datatype": d, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
        for n, d, a in (("x", "FP32", x), ("k", "INT64", k))
    ]
    head = json.dumps({"inputs": items, **more}).encode()
    return head + x.tobytes() + k.tobytes(), len(head)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that grows by the address of each request that the fast path takes."""
    found: list[bytes] = []
    take, answer = FastPath.take, Stack.answer

    def watched(self: FastPath, request: WholeRequest) -> bool:
        if not take(self, request):
            return False
        found.append(request.url)
        return True

    def answered(self: Stack, facts: Any, body: Any, default: Any) -> bytes | None:
        made = answer(self, facts, body, default)
        if made is not None:
            found.append(facts.path.encode())
        return made

    monkeypatch.setattr(FastPath, "take", watched)
    monkeypatch.setattr(Stack, "answer", answered)
    # A client may send head and body apart, and be slow.
    monkeypatch.setattr(protocol, "SOON_S", 60.0)
    return found


WHOLE, SIZE = raw(parameters={"binary_data_output": True})


@pytest.mark.parametrize(
    ("body", "headers", "is_fast"),
    [
        (told(), {}, True),
        (told(id="seven"), {}, True),
        (told(outputs=[{"name": "k'"}]), {}, True),
        (told(parameters={"priority": 2, "timeout": 1e6}), {}, True),
        (WHOLE, {LENGTH: str(SIZE)}, True),
        (*raw()[:1], {LENGTH: str(raw()[1])}, True),
        (WHOLE[:-1], {LENGTH: str(SIZE)}, False),
        (WHOLE, {LENGTH: "-1"}, False),
        (WHOLE, {LENGTH: "1e3"}, False),
        (WHOLE, {LENGTH: "999999"}, False),
        (WHOLE, {LENGTH: "9" * 20}, False),
        (WHOLE, {LENGTH: "9" * 5000}, False),
        (WHOLE, {LENGTH: str(SIZE).zfill(5000)}, True),
        (b"{", {}, False),
        (b"[" * 5000, {}, False),
        (told(parameters={"sequence_id": 3}), {}, False),
        (told(parameters={"colour": 3}), {}, False),
        (told(outputs=[{"name": "none"}]), {}, False),
        (told().replace(b"FP32", b"FP64"), {}, False),
        (told().replace(b"[1, 3]", b"[3, 1]"), {}, True),
        (told(), {"content-encoding": "gzip"}, False),
        (told(), {"origin": "http://elsewhere"}, False),
        (told(), {"host": "elsewhere"}, False),
        (told(), {"x-request-id": "mine"}, True),
        (told(), {"connection": "close"}, True),
    ],
)
def test_both_ways_say_the_same(
    server: Server,
    taken: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    headers: dict[str, str],
    is_fast: bool,
) -> None:
    def ask() -> tuple[int, dict[str, str], bytes]:
        given = {"x-request-id": "same", **headers}
        found = server.client.post(URL, content=body, headers=given)
        return found.status_code, {**found.headers, "date": ""}, found.content

    # What is written once is the same the second time.
    fast = [ask(), ask()]
    assert len(taken) == 2 * is_fast
    monkeypatch.setattr(FastPath, "take", lambda *_: False)
    assert fast == [ask()] * 2
    # A request ends after its client has the answer.
    until(lambda: server.hub.memory.used == server.hub.models["double"].waiting == 0)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(
    ("size", "length", "status"),
    [("9" * 5000, "", 400), ("x", "", 400), ("0" * 5000, "", 400), ("", "0" * 5000, 200)],
)
def test_numbers_of_headers_end_no_connection(
    server: Server, pieces: int, size: str, length: str, status: int
) -> None:
    """However long they are, and in however many pieces the request comes."""
    body = told()
    lines = f"{LENGTH}: {size}\r\ncontent-length" if size else "content-length"
    head = HEAD.replace(b"content-length", lines.encode()) % len(body)
    head = head.replace(b"content-length: ", b"content-length: " + length.encode())
    with connected(server) as line:
        for piece in [head + body] if pieces == 1 else [head, body]:
            line.sendall(piece)
            # The server reads one before the other comes.
            time.sleep(0.05)
        answer = line.recv(1 << 16)
    assert int(answer.split()[1]) == status
    assert (b'"error":' in answer) == (status == 400)


@pytest.mark.parametrize(
    ("url", "method"),
    [
        ("/v2/models/none/infer", "POST"),
        ("/v2/models/tiny/infer", "POST"),
        ("/v2/models/double/versions/1/infer", "POST"),
        ("/v2/models/d%6Fuble/infer", "POST"),
        (URL + "?a=b", "POST"),
        (URL, "PUT"),
    ],
)
def test_other_addresses_go_the_other_way(
    server: Server, taken: list[bytes], url: str, method: str
) -> None:
    found = server.client.request(method, url, content=told())
    assert not taken
    assert found.status_code in (200, 400, 404, 405)


def test_a_key_is_counted_once(start: Start, taken: list[bytes]) -> None:
    server = start(keys=(f"{KEY} requests=3/h models=double", f"{OTHER} models=tiny"))
    wrong = server.client.post(URL, content=told(), headers={"x-api-key": "wrong" * 5})
    hidden = server.client.post(URL, content=told(), headers={"x-api-key": OTHER})
    mine = [
        server.client.post(URL, content=told(), headers={"authorization": f"Bearer {KEY}"})
        for _ in range(4)
    ]
    assert (wrong.status_code, hidden.status_code) == (401, 404)
    assert [found.status_code for found in mine] == [200, 200, 200, 429]
    assert len(taken) == 3
    assert mine[3].headers["retry-after"]


def test_what_was_read_before_is_another_keys_too(start: Start, taken: list[bytes]) -> None:
    """What one key may ask for, a kept text does not let the other one have."""
    server = start(keys=(f"{KEY} priority=5", OTHER))
    whole, size = raw(parameters={"priority": 5})
    found = [
        server.client.post(URL, content=whole, headers={LENGTH: str(size), "x-api-key": key})
        for key in (KEY, KEY, OTHER)
    ]
    assert [one.status_code for one in found] == [200, 200, 403]
    assert len(taken) == 2


def test_a_known_head_lets_nobody_in_where_the_model_is_gone(
    start: Start, taken: list[bytes]
) -> None:
    server = start()

    def ask() -> int:
        return server.client.post(URL, content=WHOLE, headers={LENGTH: str(SIZE)}).status_code

    def change(what: str) -> None:
        # Another connection, so that this one's head stays known.
        httpx.post(f"{server.url}/v2/repository/models/double/{what}").raise_for_status()

    assert [ask(), ask()] == [200, 200]
    change("unload")
    assert ask() == 503
    change("load")
    assert [ask(), ask()] == [200, 200]
    assert len(taken) == 4


def test_a_request_is_counted_and_logged_once(
    start: Start, caplog: pytest.LogCaptureFixture, taken: list[bytes]
) -> None:
    server = start(keys=(f"{KEY} name=phone",))
    counts = server.hub.models["double"].metrics.statuses
    before = counts.get(200, 0)
    with caplog.at_level(logging.INFO, "edgeinfer.serve"):
        headers = {"x-api-key": KEY, "x-request-id": "once"}
        assert server.client.post(URL, content=told(), headers=headers).status_code == 200
    lines = [r for r in caplog.records if getattr(r, "request_id", None) == "once"]
    assert [(r.getMessage(), getattr(r, "key", "")) for r in lines] == [
        (f"POST {URL} 200", "phone")
    ]
    assert counts[200] == before + 1
    assert len(taken) == 1


def test_lines_of_json_say_what_the_logger_says(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []
    handler = JsonLines()
    monkeypatch.setattr(handler, "add", lambda each: lines.append(json.loads(_line(each))))
    monkeypatch.setattr(LOG, "level", logging.INFO)
    monkeypatch.setattr(LOG, "handlers", [handler])
    LOG.manager._clear_cache()  # type: ignore[attr-defined]
    for propagates in (False, True):
        monkeypatch.setattr(LOG, "propagate", propagates)
        server.client.post(URL, content=told(), headers={"x-request-id": "one"})
    direct, record = ({**line, "time": 0, "seconds": 0} for line in lines)
    assert direct == record
    assert direct["message"] == f"POST {URL} 200"


def test_an_address_begins_no_line_of_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is one of 60 kB written, which is refused."""
    caplog.set_level(logging.INFO, LOG.name)
    assert server.client.get("/x%0aforged%1b[31m").status_code == 404
    assert server.client.get("/" + "z" * 30_000).status_code == 414
    lines = [r.getMessage() for r in caplog.records if r.name == LOG.name]
    assert lines == ["GET /x\\nforged\\x1b[31m 404", f"GET /{'z' * 2047} 414"]


@pytest.mark.parametrize(
    ("site", "status"), [("none", 200), ("same-origin", 200), ("cross-site", 403)]
)
def test_a_page_of_this_server_may_ask_without_an_origin(
    server: Server, site: str, status: int
) -> None:
    """It was called an invalid request: who looks at sites looks at the address, too."""
    found = server.client.post(URL, content=told(), headers={"sec-fetch-site": site})
    assert found.status_code == status


def test_a_fault_of_ours_is_left_to_the_slower_way(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: Any) -> Any:
        raise KeyError("path")

    monkeypatch.setattr(FastPath, "_facts", fault)
    assert server.client.post(URL, content=told()).status_code == 200
    assert "left to the slower way" in caplog.text


def test_one_bad_request_does_not_spoil_the_others(start: Start, fakes: Fakes) -> None:
    server = start()
    fakes["fake"].poison = 7.0
    values = (1.0, 7.0, 3.0)
    lines = [connected(server) for _ in values]
    try:
        for line, value in zip(lines, values, strict=True):
            line.sendall(HEAD % len(told(value)) + told(value))
        answers = [line.recv(1 << 16) for line in lines]
    finally:
        for line in lines:
            line.close()
    assert [answer.split()[1] for answer in answers] == [b"200", b"500", b"200"]
    assert b"[6.0,6.0,6.0]" in answers[2]


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=20)


@pytest.fixture
def occupied(start: Start) -> Iterator[tuple[Server, Callable[[], None]]]:
    """Return a server whose engine is not free until it is told."""
    server = start(threads=1)
    model = server.hub.models["double"].tensors
    assert model is not None
    entered, over = threading.Event(), threading.Event()

    def occupy(_: object) -> bool:
        entered.set()
        return over.wait(20)

    thread = threading.Thread(target=lambda: model._runtime._scheduler.here(model, occupy, None))
    thread.start()
    assert entered.wait(10)

    def free() -> None:
        over.set()
        thread.join()

    yield server, free
    free()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def asked(server: Server) -> socket.socket:
    """Ask, and return when the request waits."""
    line = connected(server)
    line.sendall(HEAD % len(told()) + told())
    until(lambda: server.hub.models["double"].waiting == 1)
    return line


def test_an_engine_that_is_not_free_is_waited_for(
    occupied: tuple[Server, Callable[[], None]], taken: list[bytes]
) -> None:
    server, free = occupied
    line = asked(server)
    free()
    assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
    line.close()
    assert len(taken) == 1


def test_who_leaves_is_not_run(occupied: tuple[Server, Callable[[], None]]) -> None:
    server, free = occupied
    model = server.hub.models["double"]
    assert model.tensors is not None
    before = model.tensors.stats().calls.runs
    line = asked(server)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()
    until(lambda: model.waiting == 0)
    free()
    assert model.metrics.statuses[499] == 1
    assert server.hub.memory.used == 0
    assert server.client.post(URL, content=told()).status_code == 200
    assert model.tensors.stats().calls.runs == before + 1


def test_a_full_queue_refuses(occupied: tuple[Server, Callable[[], None]]) -> None:
    server, free = occupied
    line = asked(server)
    object.__setattr__(server.hub.options.limits, "queue", 1)
    found = server.client.post(URL, content=told())
    assert (found.status_code, found.headers["retry-after"]) == (429, "1")
    free()
    assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
    line.close()


def test_large_outputs_are_written_elsewhere(
    server: Server, monkeypatch: pytest.MonkeyPatch, taken: list[bytes]
) -> None:
    small = server.client.post(URL, content=WHOLE, headers={LENGTH: str(SIZE)}).content
    monkeypatch.setattr(fastpath, "LARGE_BYTES", 1)
    large = server.client.post(URL, content=WHOLE, headers={LENGTH: str(SIZE)}).content
    assert large == small
    assert len(taken) == 2
    until(lambda: server.hub.memory.used == 0)


def test_large_json_is_read_here_where_nobody_waits(start: Start, taken: list[bytes]) -> None:
    server, body = start(), told() + b" " * LARGE_BYTES

    def ask() -> tuple[int, bytes]:
        found = server.client.post(URL, content=body)
        return found.status_code, found.content

    alone = [ask(), ask()]
    assert len(taken) == 2
    with connected(server) as line:
        line.sendall(HEAD % len(told()) + told())
        assert b" 200 " in line.recv(1 << 16)
        assert [ask(), ask()] == alone
        assert len(taken) == 3
    memory, limits = server.hub.memory, server.hub.options.limits
    until(lambda: memory.used == 0)
    # What nobody else holds is one request's, whatever the limit: here another holds a byte.
    memory.add(1, b"")
    object.__setattr__(memory, "_limit", len(body) + 1)
    assert ask()[0] == 503
    memory.give(1, b"")
    object.__setattr__(limits, "json_bytes", len(body) - 1)
    assert ask()[0] == 413
    assert len(taken) == 3


def test_who_may_not_ask_is_told_before_the_body(start: Start) -> None:
    line = connected(start(keys=(KEY,)))
    line.sendall(HEAD % 10)
    assert line.recv(1 << 16).startswith(b"HTTP/1.1 401")
    line.close()


def test_a_body_that_comes_later_is_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for soon_s in (0.0, 60.0):
        monkeypatch.setattr(protocol, "SOON_S", soon_s)
        with connected(server) as line:
            head = (
                f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(told())}\r\n\r\n"
            )
            for part in (head.encode(), told()[:40], told()[40:90], told()[90:]):
                line.sendall(part)
                time.sleep(0.01)
            assert b"[3.0,3.0,3.0]" in line.recv(1 << 16)


def test_who_reads_no_answers_is_not_taken(
    server: Server, taken: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer would wait in memory, as many as are requested."""

    class Paused(FlowControl):
        write_paused = property(lambda _: True, lambda *_: None)

    monkeypatch.setattr(httptools_impl, "FlowControl", Paused)
    with connected(server) as line:
        line.sendall(HEAD % len(told()) + told())
        assert b" 200 " in line.recv(1 << 16)
    assert not taken
