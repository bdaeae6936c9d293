"""All requests together take no more memory than they may: who comes then waits, or comes back."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edgeinfer.runtime.serve import inflight
from edgeinfer.runtime.serve.http import RequestError, Scope
from edgeinfer.runtime.serve.inflight import JSON_WEIGHT, Held, InFlight, hold
from edgeinfer.runtime.serve.options import Limits
from tests.runtime.conftest import Fakes
from tests.runtime.serve.conftest import Start
from tests.runtime.serve.test_faults import raw
from tests.runtime.serve.test_v2 import URL, body


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


@pytest.mark.parametrize(
    ("path", "told", "weight"),
    [
        ("/v2/models/a/infer", None, JSON_WEIGHT),
        ("/v2/models/a/infer", b"200", 1),
        ("/v2/models/a/infer", b"65537", JSON_WEIGHT),
        ("/v2/models/a/infer", b"1000000000", JSON_WEIGHT),
        ("/v1/pipelines/a", None, 1),
    ],
)
def test_lists_of_numbers_weigh_what_they_become(
    path: str, told: bytes | None, weight: int
) -> None:
    headers = [] if told is None else [(inflight.LENGTH, told)]
    scope: Scope = {"path": path, "headers": headers}
    memory = InFlight(1 << 20)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 10}

    async def main() -> None:
        await hold(memory, scope).received(receive)()

    asyncio.run(main())
    assert memory.used == 10 * weight


@pytest.mark.usefixtures("on_threads")
def test_bodies_of_all_together(
    start: Start, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "WAIT_S", 0.05)
    text = json.dumps(body()).encode()
    size = len(text) * JSON_WEIGHT
    server = start(batch=1, limits=Limits(memory_bytes=2 * size + 1))
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
    assert server.hub.memory.used == 0


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
    server = start(batch=1, grpc_port=0, limits=Limits(memory_bytes=30_000))
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
    assert server.hub.memory.used == 0
