"""The same requests to Triton's own front end: the same numbers, and refusals as it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.runtime.conftest import Fakes
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.serve.conftest import Server, Starter
from tests.runtime.serve.test_faults import DOUBLE
from tests.runtime.serve.test_resources import free_port, is_ready

PYTHON = "TRITON_PYTHON"
PREFIX = f"edgeinfer-triton-{os.getpid()}-"
SERVER = Path(__file__).with_name("triton_server.py")
SIZE = "inference-header-content-length"
INFER = "/v2/models/net/infer"

Asked = tuple[str, bytes, dict[str, str]]
X = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
RAW = {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
VALUES = np.arange(6, dtype=np.float32).tobytes()
BOTH = {"binary_data_output": True}


def told(path: str = INFER, **given: Any) -> Asked:
    return path, json.dumps(given).encode(), {}


def x(**other: Any) -> Asked:
    return told(inputs=[{**X, **other}])


def raw(data: bytes = VALUES, **more: Any) -> Asked:
    text = json.dumps({"inputs": [RAW], **more}).encode()
    return INFER, text + data, {SIZE: str(len(text))}


ANSWERED = {
    "values": x(),
    "nested": x(data=[[1, 2, 3], [4, 5, 6]]),
    "id": told(inputs=[X], id="7"),
    "output": told(inputs=[X], outputs=[{"name": "y"}]),
    "one output raw": told(
        inputs=[X], outputs=[{"name": "y", "parameters": {"binary_data": True}}]
    ),
    "all outputs raw": told(inputs=[X], parameters=BOTH),
    "raw": raw(),
    "raw, with an id": raw(id="a"),
    "raw both ways": raw(parameters=BOTH),
    "of a version": told("/v2/models/net/versions/1/infer", inputs=[X]),
}
REFUSED = {
    "too short": raw(VALUES[:-4]),
    "too long": raw(VALUES + b"more"),
    "no inputs": told(inputs=[]),
    "unknown input": x(name="z"),
    "another type": x(datatype="INT32"),
    "no type": x(datatype="FLOAT"),
    "another shape": x(shape=[3, 2]),
    "unknown output": told(inputs=[X], outputs=[{"name": "z"}]),
    "twice": told(inputs=[X, X]),
    "a size that is none": (INFER, x()[1], {SIZE: "x"}),
    "a size beyond the body": (INFER, x()[1], {SIZE: "9999"}),
    "unknown model": told("/v2/models/none/infer", inputs=[X]),
    "unknown version": told("/v2/models/net/versions/9/infer", inputs=[X]),
}
# Of these Triton says that the fault is its own.
CLIENTS_FAULT = {
    "nothing": told(),
    "no JSON": (INFER, b"{", {}),
    "too few": x(data=[1, 2]),
    "a negative size": x(shape=[-1, 3]),
    "texts": x(data=["1"] * 6),
    "truth": x(data=[True] * 6),
    "null": x(data=[None] * 6),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no Python with pytriton"),
]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    start = Starter(folder, Fakes())
    try:
        yield start(str(write_graph(folder, "net", DOUBLE)), only=True, shared_memory=PREFIX)
    finally:
        start.close()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    port, place = free_port(), tmp_path_factory.mktemp("triton")
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [os.environ[PYTHON], str(SERVER), str(port)]
    with (
        (place / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=place, env=alone) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:
            while not is_ready(client, "/v2/models/net/ready"):
                assert process.poll() is None, (place / "log").read_text("utf-8")[-2000:]
                time.sleep(0.2)
            yield client
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def answers(client: httpx.Client, asked: Asked) -> tuple[int, Any, bytes]:
    """Return status, what the JSON says, and the raw bytes behind it."""
    path, content, headers = asked
    found = client.post(path, content=content, headers=headers)
    size = int(found.headers.get(SIZE, len(found.content)))
    return found.status_code, json.loads(found.content[:size]), found.content[size:]


@pytest.mark.parametrize("case", ANSWERED)
def test_numbers_are_the_same(case: str, ours: Server, theirs: httpx.Client) -> None:
    found = answers(ours.client, ANSWERED[case])
    assert found[0] == 200
    assert found == answers(theirs, ANSWERED[case])


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_has_the_same_status(case: str, ours: Server, theirs: httpx.Client) -> None:
    status, told, _ = answers(ours.client, REFUSED[case])
    assert status == answers(theirs, REFUSED[case])[0]
    assert 400 <= status < 500
    assert told["error"]


@pytest.mark.parametrize("case", CLIENTS_FAULT)
def test_a_clients_fault_is_never_the_servers(
    case: str, ours: Server, theirs: httpx.Client
) -> None:
    assert answers(ours.client, CLIENTS_FAULT[case])[0] == 400
    assert answers(theirs, CLIENTS_FAULT[case])[0] == 500


@pytest.mark.parametrize("path", ["/v2/models/net", "/v2/models/net/versions/1"])
def test_what_is_told_of_a_model_is_the_same(path: str, ours: Server, theirs: httpx.Client) -> None:
    mine, other = ours.client.get(path).json(), theirs.get(path).json()
    assert mine.pop("platform") != other.pop("platform")
    assert mine == other


def test_shared_memory_is_the_same(ours: Server, theirs: httpx.Client) -> None:
    base, found = "/v2/systemsharedmemory", []
    region = {"key": f"{PREFIX}a", "offset": 0, "byte_size": 64}

    def at(offset: int, size: int = 24) -> dict[str, Any]:
        where = {"shared_memory_region": "r", "shared_memory_byte_size": size}
        return {"parameters": {**where, **({"shared_memory_offset": offset} if offset else {})}}

    given = {"name": "x", "datatype": "FP32", "shape": [2, 3], **at(0)}
    for client in (ours.client, theirs):
        memory: Any = SharedMemory(f"{PREFIX}a", create=True, size=64)
        try:
            memory.buf[:24] = VALUES
            post, said = client.post, list[Any]()
            said.append(post(f"{base}/region/r/register", json=region))
            said.append(client.get(f"{base}/status"))
            for goes in (at(24, 40), at(32)):
                asked = {"inputs": [given], "outputs": [{"name": "y", **goes}]}
                said.append(post(INFER, json=asked))
                said.append(bytes(memory.buf[24:64]))
            said.append(post(INFER, json={"inputs": [{**given, **at(41)}]}))
            said.append(post(INFER, json={"inputs": [{**given, **at(0, 20)}]}))
            said.append(post(f"{base}/region/none/unregister"))
            said.append(post(f"{base}/region/r/unregister"))
            said.append(client.get(f"{base}/status"))
            said.append(post(INFER, json={"inputs": [given]}))
        finally:
            memory.close()
            memory.unlink()
        found.append([each if isinstance(each, bytes) else answered(each) for each in said])
    assert found[0] == found[1]


def answered(found: httpx.Response) -> tuple[int, Any]:
    """Return status and data; of an error the words are each server's own."""
    is_good = found.status_code == 200 and found.content
    return found.status_code, found.json() or None if is_good else None
