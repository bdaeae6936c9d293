"""Whole requests and answers: the same as by ASGI's messages, and all are counted."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from edgeinfer.runtime.serve.exchange import Exchange
from tests.runtime.serve.conftest import Server

BODY = json.dumps(
    {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.5, 2, 3]},
            {"name": "k", "datatype": "INT64", "shape": [1], "data": [4]},
        ]
    }
).encode()
ASK = "POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n{}\r\n"


@pytest.fixture
def line(server: Server) -> Iterator[socket.socket]:
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
        yield made


def whole(more: str = "", body: bytes = BODY) -> bytes:
    return ASK.format(len(body), more).encode() + body


def read(line: socket.socket, count: int = 1) -> list[tuple[bytes, bytes]]:
    """Return head and body of so many answers."""
    found: list[tuple[bytes, bytes]] = []
    data = b""
    while len(found) < count:
        while b"\r\n\r\n" not in data:
            data += line.recv(65536)
        head, _, data = data.partition(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(data) < size:
            data += line.recv(65536)
        found.append((head, data[:size]))
        data = data[size:]
    assert not data
    return found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/double/infer", BODY),
        ("/v2/models/double/infer", b"{"),
        ("/v2/models/none/infer", BODY),
        ("/tokenize", b'{"prompt": "the cat"}'),
    ],
)
def test_answers_are_those_of_messages(
    server: Server, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> tuple[int, dict[str, str], bytes]:
        headers = {"x-request-id": "mine", "origin": server.url}
        found = server.client.post(path, content=body, headers=headers)
        return found.status_code, {**found.headers, "date": ""}, found.content

    fast = told()
    monkeypatch.setattr(Exchange, "answer", lambda *_: False)
    monkeypatch.setattr(Exchange, "body", lambda _: None)
    assert told() == fast


def test_requests_in_one_piece_are_answered_in_their_order(line: socket.socket) -> None:
    line.sendall(whole("x-request-id: a\r\n") + whole("x-request-id: b\r\n", b"{") + whole())
    answers = read(line, 3)
    assert [head.split()[1] for head, _ in answers] == [b"200", b"400", b"200"]
    assert b"x-request-id: a" in answers[0][0]
    assert json.loads(answers[2][1])["outputs"][0]["data"] == [3.0, 4.0, 6.0]


def test_a_body_may_come_in_pieces(line: socket.socket) -> None:
    given = whole()
    for start in range(0, len(given), 37):
        line.sendall(given[start : start + 37])
        time.sleep(0.001)
    assert json.loads(read(line)[0][1])["outputs"][0]["data"] == [3.0, 4.0, 6.0]


def test_a_client_that_waits_for_leave_gets_it(line: socket.socket) -> None:
    line.sendall(ASK.format(len(BODY), "expect: 100-continue\r\n").encode())
    assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.sendall(BODY)
    assert read(line)[0][0].split()[1] == b"200"


@pytest.mark.parametrize("name", ["h2c", "websocket"])
@pytest.mark.parametrize("cut", [0, 60, 150, 260])
def test_another_protocol_is_offered_in_vain(line: socket.socket, name: str, cut: int) -> None:
    """As clients of HTTP/2 do: the body was taken for the other protocol."""
    offer = f"connection: keep-alive, Upgrade, HTTP2-Settings\r\nupgrade: {name}\r\n"
    given = whole(f"{offer}http2-settings: AAMAAABkAAQAAP__\r\nx-request-id: a\r\n")
    line.sendall(given[:cut])
    time.sleep(0.002)
    line.sendall(given[cut:] + whole("x-request-id: b\r\n"))
    answers = read(line, 2)
    assert [json.loads(body)["outputs"][0]["data"] for _, body in answers] == [[3.0, 4.0, 6.0]] * 2
    assert [head.lower().split(b"x-request-id: ")[1][:1] for head, _ in answers] == [b"a", b"b"]


@pytest.mark.parametrize("path", ["/v2/models/double", "/v2/health/live", "/", "/metrics"])
def test_a_head_alone_is_that_of_the_whole_answer(server: Server, path: str) -> None:
    head, whole = server.client.head(path), server.client.get(path)
    assert (head.status_code, head.content) == (whole.status_code, b"") == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert abs(int(head.headers["content-length"]) - len(whole.content)) < 100


def test_an_address_may_end_in_a_slash(server: Server) -> None:
    assert server.client.post("/v2/models/double/infer/", content=BODY).status_code == 200
    for path in ("/v2/", "/v2/health/live/", "/v2/models/double/", "/v1/models/", "/metrics/"):
        assert server.client.get(path).status_code == 200, path
    assert "v2/nothing for" in server.client.get("/v2/nothing/").text


@pytest.mark.parametrize("more", ["connection: close\r\n", ""])
def test_a_connection_is_kept_unless_it_is_to_close(line: socket.socket, more: str) -> None:
    line.sendall(whole(more))
    head, _ = read(line)[0]
    assert (b"connection: close" in head) == bool(more)
    line.settimeout(0.3)
    if more:
        assert line.recv(1) == b""
    else:
        line.sendall(whole())
        assert read(line)[0][0].split()[1] == b"200"
