"""What a request took goes when it is answered, not when Python looks for rings of garbage."""

from __future__ import annotations

import gc
import json
import socket
import time
from collections import Counter

import pytest

from tests.runtime.serve.conftest import Server, Start
from tests.runtime.serve.test_fastpath import HEAD, SIZE, WHOLE, told

LARGE = 3000


def large() -> bytes:
    x = {"name": "x", "datatype": "FP32", "shape": [LARGE, 3], "data": [1.5] * 3 * LARGE}
    k = {"name": "k", "datatype": "INT64", "shape": [LARGE], "data": [4] * LARGE}
    return json.dumps({"inputs": [x, k]}).encode()


def ask(server: Server, body: bytes, more: bytes = b"") -> None:
    """Ask twice over a connection of its own."""
    place = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    head = (HEAD % len(body))[:-2] + more + b"\r\n"
    with socket.create_connection(place) as client, client.makefile("rb") as answers:
        client.settimeout(60)
        for _ in range(2):
            client.sendall(head + body)
            size = 0
            while (line := answers.readline()) != b"\r\n":
                assert line
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            assert len(answers.read(size)) == size


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (told(), b""),
        (WHOLE, b"inference-header-content-length: %d\r\n" % SIZE),
        (large(), b""),
        (b"{", b""),
    ],
    ids=["json", "raw", "large", "wrong"],
)
def test_a_request_leaves_no_ring(start: Start, body: bytes, more: bytes) -> None:
    """Each output of a thread stayed, with futures that held each other: ten megabytes of them."""
    server = start()
    server.client.close()
    ask(server, body, more)
    time.sleep(0.05)
    gc.collect()
    gc.disable()
    try:
        ask(server, body, more)
        time.sleep(0.05)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert {
        name: n for name, n in found.items() if name.startswith(("edgeinfer.", "uvicorn."))
    } == {}
