"""All requests together take no more memory than they may: who comes then waits, or comes back."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve import hub as hub_module
from edgeinfer.runtime.serve import inflight, openai, streams, tasks
from edgeinfer.runtime.serve.app import _Sent
from edgeinfer.runtime.serve.http import (
    LENGTH,
    RequestError,
    answer,
    from_json,
    in_time,
    to_json,
)
from edgeinfer.runtime.serve.inflight import Held, InFlight, weigh
from edgeinfer.runtime.serve.options import RequestLimits
from edgeinfer.runtime.serve.streams import submit
from tests.runtime.conftest import Fakes
from tests.runtime.serve.conftest import Server, Start
from tests.runtime.serve.test_faults import raw
from tests.runtime.serve.test_v2 import URL, body


def read_late(client: socket.socket, memory: InFlight, size: int) -> None:
    """Let an answer of that many bytes wait, and see that it counts until it is read."""
    assert client.recv(15) == b"HTTP/1.1 200 OK"
    # For a moment it may be counted as neither: it is on its way to the connection.
    time.sleep(0.2)
    assert memory.used > size // 4
    taken = 0
    while taken < size:
        taken += len(client.recv(1 << 20))
    end = time.monotonic() + 60
    while memory.used and time.monotonic() < end:
        time.sleep(0.01)
    assert memory.used == 0


def test_what_does_not_fit_waits_for_others_to_end() -> None:
    async def main() -> None:
        memory = InFlight(100)
        first, second = Held(memory), Held(memory)
        await first.take(60)
        waiting = asyncio.ensure_future(second.take(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        first.release()
        await waiting
        assert memory.used == 60
        second.release()
        second.release()
        assert memory.used == 0

    asyncio.run(main())


def test_who_is_alone_may_take_more() -> None:
    async def main() -> None:
        memory = InFlight(100)
        only = Held(memory)
        for _ in range(3):
            await only.take(90)
        assert memory.used == 270
        only.release()

    asyncio.run(main())


def test_a_key_has_a_share_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.01)

    async def main() -> None:
        memory = InFlight(100)
        first, second, other = Held(memory, b"a"), Held(memory, b"a"), Held(memory, b"b")
        # A request that is the key's only one may be larger.
        await first.take(70)
        with pytest.raises(RequestError, match="of this key") as caught:
            await second.take(1)
        assert (caught.value.status, caught.value.retry_s) == (429, 1.0)
        await other.take(30)
        with pytest.raises(RequestError, match="under way") as caught:
            await other.take(1)
        assert caught.value.status == 503
        first.drop_data()
        first.release()
        await second.take(25)
        await first.take(25)
        with pytest.raises(RequestError, match="of this key"):
            await first.take(1)
        for each in (first, second, other):
            each.release()
        assert (memory.used, memory._of) == (0, {})

    asyncio.run(main())


def test_an_answer_has_its_place_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.01)
    size = inflight.LARGE_BYTES

    async def main() -> None:
        memory = InFlight(3 * size)
        first, second = Held(memory, b"a", copies=2), Held(memory)
        # Small ones are none of memory's.
        await second.reserve(size - 1)
        await second.take(1)
        assert memory.used == 1
        await first.reserve(size)
        first.made(size)
        assert memory.used == 2 * size + 1
        with pytest.raises(RequestError, match="under way"):
            await second.reserve(size)
        with pytest.raises(RequestError, match="under way"):
            second.made(size)
        # What is larger than was known needs a place for the rest alone.
        first.made(size + size // 4)
        await first.take(1)
        first.keep_answer()
        assert memory.used == 2 * (size + size // 4) + 1
        with pytest.raises(RequestError, match="of this key") as caught:
            Held(memory, b"a").made(1)
        assert caught.value.status == 429
        first.release()
        second.release()
        assert memory.used == 0

    asyncio.run(main())


@pytest.mark.parametrize("way", ["take", "made", "late"])
def test_a_refused_request_is_gone_at_once(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The error and a frame held each other, and all that was read, until they were looked for."""
    monkeypatch.setattr(inflight, "WAIT_S", 0.0)
    gone: list[weakref.ref[Data]] = []

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    async def ask(memory: InFlight) -> None:
        body = Data()
        gone.append(weakref.ref(body))
        if way == "take":
            await Held(memory).take(1)
        elif way == "made":
            Held(memory).made(1)
        else:
            await in_time(never(), 0.0, RequestError(408, "late"))

    async def main() -> None:
        memory = InFlight(1)
        memory.add(1, b"")
        gc.disable()
        try:
            with pytest.raises(RequestError):
                await ask(memory)
            # The one that pytest has.
            sys.exc_info()
            await asyncio.sleep(0)
        finally:
            found = [each() for each in gone]
            gc.enable()
        assert found == [None]

    asyncio.run(main())


def test_who_waits_too_long_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.01)

    async def main() -> None:
        memory = InFlight(100)
        first, second = Held(memory), Held(memory)
        await first.take(60)
        with pytest.raises(RequestError) as caught:
            await second.take(60)
        assert (caught.value.status, caught.value.retry_s) == (503, 1.0)
        assert memory.used == 60
        first.release()
        await second.take(60)

    asyncio.run(main())


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "part",
    [
        *(b"[]", b"[[]]", b"[[],[[]]]", b"{}", b'{"":0}', b'{"a":{}}', b'[{"":[]}]', b"0", b"300"),
        *(b"1.5", b'"ab"', b'"\\u20ac"', b"[0]", b"null", b'[0,{"a":0,"b":[]}]', b'{"%d":0}'),
    ],
)
@pytest.mark.parametrize("is_list", [True, False])
def test_json_weighs_what_it_becomes(part: bytes, is_list: bool) -> None:
    parts = (part.replace(b"%d", b"%d" % i) for i in range(20_000))
    if not is_list:
        parts = (b'"%d":%s' % (i, each) for i, each in enumerate(parts))
    text = b'{"user":' + (b"[%s]" if is_list else b"{%s}") % b",".join(parts) + b"}"
    tracemalloc.start()
    try:
        data = from_json(text)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data["user"]) == 20_000
    assert taken <= weigh(text)


@pytest.mark.parametrize(
    "text", ["one word more, " * 9000, "é" * 9000, "€" * 9000, "a" * 9000 + "😀"]
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_texts_weigh_what_they_are(text: str, is_ascii: bool) -> None:
    body = json.dumps({"prompt": text}, ensure_ascii=is_ascii).encode()
    assert sys.getsizeof(text) <= weigh(body) <= 8 * len(body) + 1000


def ends_empty(server: Server) -> None:
    """Wait until nothing is held: a request ends after its client has the answer."""
    end = time.monotonic() + 20
    while server.hub.memory.used and time.monotonic() < end:
        time.sleep(0.005)
    assert server.hub.memory.used == 0


class Data(dict[str, Any]):
    """JSON that was read, of which is known when nobody has it any more."""


ASKED = {"model": "tiny", "max_tokens": 40, "ignore_eos": True, "stream": True}
MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {**ASKED, "prompt": "hello"}),
        ("/v1/chat/completions", {**ASKED, **MESSAGES}),
        ("/v1/messages", {**MESSAGES, "model": "tiny", "max_tokens": 40, "stream": True}),
        ("/v2/models/tiny/generate_stream", {"text_input": "hello", "max_tokens": 40}),
    ],
)
@pytest.mark.parametrize("extra", [0, 100_000])
def test_what_was_read_is_dropped_before_the_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any], extra: int
) -> None:
    server = start()
    made: list[weakref.ref[Data]] = []
    ticks: list[tuple[bool, int]] = []

    def read(text: bytes) -> Data:
        data = Data(from_json(text))
        made.append(weakref.ref(data))
        return data

    async def looking(*given: Any) -> Any:
        ticks.append((made[0]() is None, server.hub.memory.used))
        return await submit(*given)

    monkeypatch.setattr(hub_module, "from_json", read)
    for module in (openai, streams):
        monkeypatch.setattr(module, "submit", looking)
    # Spaces are read in a thread where they are many.
    text = json.dumps(asked).encode() + b" " * extra
    assert server.client.post(path, content=text).status_code == 200
    assert ticks == [(True, len(text))]
    ends_empty(server)


def test_of_a_response_only_what_it_says_again_is_kept(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    made: list[weakref.ref[Data]] = []
    ticks: list[tuple[bool, int]] = []

    def read(text: bytes) -> Data:
        data = Data(from_json(text))
        made.append(weakref.ref(data))
        return data

    async def looking(*given: Any) -> Any:
        ticks.append((made[0]() is None, server.hub.memory.used))
        return await submit(*given)

    monkeypatch.setattr(hub_module, "from_json", read)
    monkeypatch.setattr(streams, "submit", looking)
    told = {"instructions": "be brief", "max_output_tokens": 4}
    text = json.dumps({"model": "tiny", "input": "hello", **told}).encode()
    assert server.client.post("/v1/responses", content=text).status_code == 200
    assert ticks == [(True, len(text) + weigh(to_json(told)))]
    ends_empty(server)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
def test_what_was_refused_is_dropped_too(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    server = start()
    made: list[weakref.ref[Data]] = []

    def read(text: bytes) -> Data:
        data = Data(from_json(text))
        made.append(weakref.ref(data))
        return data

    monkeypatch.setattr(hub_module, "from_json", read)
    gc.disable()
    try:
        text = json.dumps({"model": "tiny", "nonsense": 1}).encode() + b" " * 100_000
        assert server.client.post(path, content=text).status_code == 400
        # The server ends a request after its client has the answer.
        end = time.monotonic() + 10
        while made[0]() is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert made[0]() is None
    finally:
        gc.enable()


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "path",
    [
        *("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"),
        *("/v1/embeddings", "/v1/rerank", "/tokenize", "/v1/pipelines/double"),
        *("/v2/models/double/infer", "/v2/models/double/generate"),
        *("/v2/models/tiny/generate", "/v2/repository/index"),
    ],
)
def test_every_address_holds_what_it_reads(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.01)
    server = start(limits=RequestLimits(memory_bytes=200_000))
    monkeypatch.setattr(tasks, "_pipeline", lambda model: model)
    text = b'{"model":"tiny","user":[' + b"[]," * 10_000 + b"[]]}"
    # Somebody else holds a little, so that this one is not alone.
    server.hub.memory.used += 1
    found = server.client.post(path, content=text, headers={"content-type": "application/json"})
    assert (found.status_code, "all the memory" in found.text) == (503, True)
    assert server.hub.memory.used == 1
    server.hub.memory.used = 0


@pytest.mark.usefixtures("on_threads")
def test_bodies_of_all_together(
    start: Start, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.05)
    text = json.dumps(body()).encode()
    # What it became is gone once the request is made of it.
    size = len(text)
    server = start(batch=1, limits=RequestLimits(memory_bytes=2 * size + 1))
    gate = fakes["fake"].gate = threading.Event()
    model = server.hub.models["double"]
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(server.client.post, URL, content=text) for _ in range(2)]
        while model.waiting < 2:
            pass
        refused = server.client.post(URL, content=text)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "all the memory that they may" in refused.json()["error"]
        # Who only asks how things are needs none.
        assert server.client.get("/v2/health/ready").status_code == 200
        # A body that does not come holds nothing.
        assert server.hub.memory.used == 2 * size
        gate.set()
        assert [each.result().status_code for each in running] == [200, 200]
    assert server.client.post(URL, content=text).status_code == 200
    ends_empty(server)


def test_who_leaves_gives_it_back(start: Start) -> None:
    server = start()
    head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{{"
    leaves = raw(server, head)
    while not server.hub.memory.used:
        pass
    leaves.close()
    while server.hub.memory.used:
        pass


@pytest.mark.usefixtures("on_threads")
def test_grpc_counts_too(start: Start, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
    from tests.runtime.serve.test_rpc import connected, inputs

    monkeypatch.setattr(inflight, "WAIT_S", 0.05)
    large = inputs(np.zeros((1000, 3), np.float32), np.zeros(1000, np.int64))
    server = start(batch=1, grpc_port=0, limits=RequestLimits(memory_bytes=30_000))
    gate = fakes["fake"].gate = threading.Event()
    with connected(server) as triton:
        done = threading.Event()
        triton.async_infer("double", large, lambda result, error: done.set())
        while not server.hub.memory.used:
            pass
        with pytest.raises(client.InferenceServerException, match="UNAVAILABLE"):
            triton.infer("double", large)
        gate.set()
        assert done.wait(60)
        triton.infer("double", large)
    ends_empty(server)


def test_an_answer_without_a_place_is_not_run(
    start: Start, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs were there, and waited for the memory that they took."""
    monkeypatch.setattr(inflight, "WAIT_S", 0.05)
    server = start(limits=RequestLimits(memory_bytes=1 << 20))
    rows, memory = 10_000, server.hub.memory
    x, k = np.zeros((rows, 3), np.float32), np.zeros(rows, np.int64)
    items = [
        {"name": n, "datatype": d, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
        for n, d, a in (("x", "FP32", x), ("k", "INT64", k))
    ]
    text = to_json({"inputs": items, "parameters": {"binary_data_output": True}})
    content, headers = text + x.tobytes() + k.tobytes(), {LENGTH.decode(): str(len(text))}

    def status() -> int:
        return server.client.post(URL, content=content, headers=headers).status_code

    (model,) = (m for m in server.hub.models.values() if m.tensors is not None)
    assert model.tensors is not None
    assert status() == 200
    ends_empty(server)
    before = model.tensors.stats().calls.runs
    # There is room for what is asked, and none for the answer.
    others = (1 << 20) - len(content) - 100_000
    memory.add(others, b"")
    assert status() == 503
    memory.give(others, b"")
    assert model.tensors.stats().calls.runs == before
    assert status() == 200
    ends_empty(server)


@pytest.mark.parametrize("is_full", [True, False])
def test_every_large_answer_needs_a_place(is_full: bool) -> None:
    """Those of embeddings, pictures and sound took none, and any number of them waited."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        memory = InFlight(100_000)
        memory.add(50_000 if is_full else 0, b"")
        own = Held(memory, b"")
        told = pytest.raises(RequestError, match="under way") if is_full else nullcontext()
        with told:
            await answer(_Sent(send, (), None, own), 200, bytes(70_000))
        assert bool(sent) != is_full
        own.release()

    asyncio.run(main())


def test_an_answer_that_nobody_reads_counts(start: Start) -> None:
    """It left the count when it was handed to the connection, which kept it for ever."""
    server = start(limits=RequestLimits(elements=1 << 23))
    rows, memory = 1 << 20, server.hub.memory
    size = 20 * rows
    x, k = (
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": own}}
        for name, kind, shape, own in (
            *(("x", "FP32", [rows, 3], 12 * rows), ("k", "INT64", [rows], 8 * rows)),
        )
    )
    text = to_json({"inputs": [x, k], "parameters": {"binary_data_output": True}})
    head = (
        f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text) + size}\r\n"
        f"inference-header-content-length: {len(text)}\r\n\r\n"
    )
    with raw(server, head) as client:
        client.sendall(text + bytes(size))
        client.settimeout(60)
        read_late(client, memory, size)
