"""Heads of requests that are larger than any request needs."""

import socket
from collections.abc import Iterator

import pytest

from tests.runtime.serve.conftest import Server

BEGIN = b"GET /health HTTP/1.1\r\nHost: a\r\n"
CHUNKS = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\ntransfer-encoding: chunked\r\n\r\n"


def _answer(server: Server, sent: bytes) -> bytes:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 20) as client:
        try:
            client.sendall(sent)
            return client.recv(100)
        # It may close before all was sent.
        except (BrokenPipeError, ConnectionResetError):
            return b""


def test_a_head_without_end_is_refused(server: Server) -> None:
    for sent in (
        BEGIN + b"x: " + b"x" * 4_000_000,
        BEGIN + b"a: b\r\n" * 500_000,
        b"GET /" + b"x" * 4_000_000,
        CHUNKS + b"1;" + b"x" * 4_000_000,
        CHUNKS + b"1\r\nx\r\n0\r\nx: " + b"x" * 4_000_000,
        CHUNKS + b"1\r\nx\r\n" * 500_000,
    ):
        answer = _answer(server, sent)
        assert answer == b"" or answer.split()[1] in (b"431", b"400"), (sent[:80], answer)
    assert server.client.get("/v2/health/live").status_code == 200


def test_bodies_in_chunks_have_room(server: Server) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 1000
        yield b"{}"

    answer = server.client.post("/v2/models/double/infer", content=chunks())
    assert answer.status_code == 400
    assert "inputs" in answer.text


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_large_bodies_come_whole(server: Server, size: int) -> None:
    answer = server.client.post("/v2/models/double/infer", content=b'{"x": "' + b"y" * size)
    assert answer.status_code == 400
