"""Mixed requests for long: every reply belongs to its request, memory and descriptors stay.

``EDGEINFER_SOAK`` is the count of requests, 5,000 where it is not set; two million take about half
an hour on a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from tests.runtime.pipelines.conftest import write_graph

DOUBLE = "double (float[N, 3] x) => (float[N, 3] y) { y = Add(x, x) }"
COUNT = """
count (float[1] x, float[1] s) => (float[1] y, float[1] t)
{ y = Add(x, s)
  one = Constant <value_floats = [1.0]> ()
  t = Add(s, one) }
"""
REQUESTS = int(os.environ.get("EDGEINFER_SOAK", "5000"))
CLIENTS = 16
SAMPLES = 40
GROWTH_MB = 1.0

pytestmark = pytest.mark.slow
Ask = Callable[[httpx.AsyncClient, random.Random, int], Coroutine[Any, Any, None]]


async def by_json(client: httpx.AsyncClient, rng: random.Random, number: int) -> None:
    rows = rng.randint(1, 4)
    data = [float(number % 1000 + i) for i in range(rows * 3)]
    x = {"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": data}
    found = await client.post("/v2/models/double/infer", json={"id": str(number), "inputs": [x]})
    answer = found.json()
    assert answer["id"] == str(number)
    assert answer["outputs"][0]["data"] == [2 * v for v in data]


async def by_bytes(client: httpx.AsyncClient, rng: random.Random, number: int) -> None:
    x = np.full((rng.randint(1, 64), 3), number % 4096, np.float32)
    item = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    item["parameters"] = {"binary_data_size": x.nbytes}  # type: ignore[assignment]
    head = {"inputs": [item], "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    headers = {"inference-header-content-length": str(len(text))}
    found = await client.post(
        "/v2/models/double/infer", content=text + x.tobytes(), headers=headers
    )
    size = int(found.headers["inference-header-content-length"])
    np.testing.assert_array_equal(np.frombuffer(found.content[size:], np.float32), 2 * x.ravel())


async def by_sequence(client: httpx.AsyncClient, rng: random.Random, number: int) -> None:
    steps = rng.randint(1, 5)
    for step in range(steps):
        x = {"name": "x", "datatype": "FP32", "shape": [1], "data": [number % 1000]}
        parameters = {"sequence_id": number + 1, "sequence_start": step == 0}
        given = {"inputs": [x], "parameters": {**parameters, "sequence_end": step == steps - 1}}
        found = await client.post("/v2/models/count/infer", json=given)
        assert found.json()["outputs"][0]["data"] == [number % 1000 + step]


async def wrong(client: httpx.AsyncClient, rng: random.Random, number: int) -> None:
    given = rng.choice([b"", b"{", b'{"inputs": []}', b'{"inputs": [{"name": "z"}]}', b"\xff" * 99])
    found = await client.post("/v2/models/double/infer", content=given)
    assert found.status_code == 400
    assert found.json()["error"]


async def left(client: httpx.AsyncClient, rng: random.Random, number: int) -> None:
    """Leave in the middle: of the head, of the body, or before the answer."""
    url = client.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n"
    whole = head + b" " * 50
    writer.write(whole[: rng.randint(0, len(whole))])
    await writer.drain()
    writer.close()


KINDS: list[tuple[Ask, int]] = [
    (by_json, 45), (by_bytes, 35), (by_sequence, 8), (wrong, 8), (left, 4),
]  # fmt: skip


async def load(url: str, process: psutil.Process) -> tuple[list[float], list[int]]:
    """Ask; return samples of memory in MB and of open descriptors."""
    kinds, weights = [k for k, _ in KINDS], [w for _, w in KINDS]
    numbers = iter(range(REQUESTS))
    memory: list[float] = []
    files: list[int] = []

    async def client(seed: int) -> None:
        rng = random.Random(seed)
        async with httpx.AsyncClient(base_url=url, timeout=120) as session:
            for number in numbers:
                await rng.choices(kinds, weights)[0](session, rng, number)
                if number % (REQUESTS // SAMPLES) == 0:
                    memory.append(process.memory_info().rss / 2**20)
                    files.append(process.num_fds())

    await asyncio.gather(*map(client, range(CLIENTS)))
    return memory, files


@pytest.mark.timeout(4 * 3600)
@pytest.mark.skipif(os.name != "posix", reason="descriptors are counted on POSIX")
def test_nothing_is_mixed_up_and_nothing_grows(tmp_path: Path) -> None:
    from edgeinfer.bundle.manifest import StateRecord

    bundles = [
        write_graph(tmp_path, "double", DOUBLE),
        write_graph(tmp_path, "count", COUNT, states=(StateRecord("s", "t"),)),
    ]
    command = [sys.executable, "-m", "edgeinfer", "serve", *map(str, bundles), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = server.stderr.readline().split()[-1]
            while httpx.get(f"{url}/v2/health/ready", timeout=120).status_code != 200:
                pass
            process = psutil.Process(server.pid)
            memory, files = asyncio.run(load(url, process))
            third, last = memory[SAMPLES // 2 : -SAMPLES // 4], memory[-SAMPLES // 4 :]
            assert statistics.median(last) - statistics.median(third) < GROWTH_MB, memory
            assert max(files[SAMPLES // 2 :]) <= max(files[: SAMPLES // 2]) + CLIENTS
            stats = httpx.get(f"{url}/v2/models/stats").json()["model_stats"]
            assert {s["name"]: s["waiting"] for s in stats} == {"double": 0, "count": 0}
            assert stats[1]["sequences"] == 0
        finally:
            server.send_signal(signal.SIGTERM)
