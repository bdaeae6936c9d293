"""What runs out or jumps under a server: memory, disk, bodies without end, the clock, its time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from edgeinfer.runtime import memory_budget
from edgeinfer.runtime.serve.options import RequestLimits
from tests.runtime.conftest import Fakes, write_bundle
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.serve.conftest import KEY, Start
from tests.runtime.serve.test_faults import DOUBLE, raw
from tests.runtime.serve.test_v2 import URL, body


def test_a_body_of_a_gigabyte_is_refused_unread(start: Start) -> None:
    server = start()
    head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {1 << 30}\r\n\r\n"
    with raw(server, head) as made:
        assert made.recv(100).startswith(b"HTTP/1.1 413")
        assert server.hub.memory.used == 0
    assert server.client.post(URL, json=body()).status_code == 200


@pytest.mark.slow
def test_a_body_of_a_gigabyte_that_does_not_say_so_is_not_kept(start: Start) -> None:
    limit = 8 << 20
    server = start(limits=RequestLimits(body_bytes=limit))
    head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    part = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    before, most = psutil.Process().memory_info().rss, 0
    with raw(server, head) as made:
        for _ in range(1024):
            made.sendall(part)
            most = max(most, psutil.Process().memory_info().rss)
            assert server.hub.memory.used <= limit * 12 + len(part) * 12
        assert made.recv(100).startswith(b"HTTP/1.1 413")
    assert most - before < 200 << 20
    assert server.client.post(URL, json=body()).status_code == 200


def test_three_models_with_room_for_one(
    start: Start, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = [f"m{i}" for i in range(3)]
    for i, name in enumerate(names):
        fakes.add(name, bias=float(i))
    monkeypatch.setattr(
        memory_budget, "resident_mb", lambda: 100.0 * sum(len(f.open) for f in fakes.values())
    )
    bundles = [str(write_bundle(tmp_path / f"{n}.edge", n, vectors=0)) for n in names]
    server = start(*bundles, only=True, memory_mb=150.0, threads=2)
    assert [m.state for m in server.hub.models.values()] == ["ready"] * 3

    def ask(number: int) -> None:
        for _ in range(10):
            found = server.client.post(f"/v2/models/m{number % 3}/infer", json=body())
            assert found.status_code == 200
            want = [2 * v + number % 3 for v in range(1, 7)]
            assert found.json()["outputs"][0]["data"] == want

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(ask, number) for number in range(6)]:
            done.result(120)
    # Each had its turn, and there was room for one all the time.
    assert sum(len(f.open) for f in fakes.values()) == 1
    assert min(fakes[name].loads for name in names) >= 2
    assert {m.waiting for m in server.hub.models.values()} == {0}


@pytest.mark.parametrize("jump", [-(10.0**9), 10.0**9])
def test_the_clock_jumps(start: Start, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    real = time.time
    server = start(keys=(f"{KEY} requests=6/h",), limits=RequestLimits(wait_s=60.0))
    mine = {"x-api-key": KEY}

    def ask() -> int:
        given = {**body(), "parameters": {"timeout": 60_000_000}}
        return server.client.post(URL, json=given, headers=mine).status_code

    assert [ask() for _ in range(3)] == [200] * 3
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    text = {"model": "tiny", "prompt": "the cat", "max_tokens": 2}
    assert server.client.post("/v1/completions", json=text, headers=mine).status_code == 200
    # What was allowed an hour does not come back by it, and is not lost.
    assert [ask() for _ in range(3)] == [200, 200, 429]


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def is_ready(client: httpx.Client, path: str) -> bool:
    """Whether a server is there and says so."""
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


@contextlib.contextmanager
def process(*given: str, **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a server in a process of its own; wait until it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "edgeinfer", "serve", *given, "--port", str(port)]
    with subprocess.Popen(command, **options) as made:
        try:
            url = f"http://127.0.0.1:{port}"
            while status(f"{url}/v2/health/ready") != 200:
                assert made.poll() is None
                time.sleep(0.05)
            yield made, url
        finally:
            made.kill()


def status(url: str, data: bytes | None = None) -> int:
    """Return the status; 0 where nobody answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as found:
            found.read()
            return int(found.status)
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return 0


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """Make a file system of 64 kB."""
    mount, folder = shutil.which("mount"), tmp_path / "full"
    folder.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk(full: Path, tmp_path: Path) -> None:
    path = write_graph(tmp_path, "net", DOUBLE)
    places = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "TMPDIR")
    env = {**os.environ, **dict.fromkeys(places, str(full))}
    log = full / "log"
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    asked = json.dumps({"inputs": [x]}).encode()
    with (
        log.open("wb") as out,
        process(str(path), "--log", stdout=out, stderr=out, env=env) as (made, url),
    ):
        with contextlib.suppress(OSError), (full / "rest").open("wb", buffering=0) as rest:
            while True:
                rest.write(b"\0" * 512)
        size = log.stat().st_size
        assert [status(f"{url}/v2/models/net/infer", asked) for _ in range(50)] == [200] * 50
        for what in ("unload", "load"):
            assert status(f"{url}/v2/repository/models/net/{what}", b"") == 200
        assert status(f"{url}/v2/models/net/infer", asked) == 200
        assert status(f"{url}/health/run") == 200
        # The disk was full: no line of the log found room.
        assert log.stat().st_size < size + 4096
        made.send_signal(signal.SIGTERM)
        made.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_the_end_comes_within_five_seconds_under_load(tmp_path: Path) -> None:
    path = write_graph(tmp_path, "net", DOUBLE)
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    asked = json.dumps({"inputs": [x]}).encode()
    with process(str(path), stderr=subprocess.DEVNULL) as (made, url):
        begun, found = threading.Event(), list[list[int]]()

        def ask() -> None:
            mine: list[int] = []
            found.append(mine)
            while not mine or mine[-1]:
                mine.append(status(f"{url}/v2/models/net/infer", asked))
                begun.set()

        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask) for _ in range(8)]
            assert begun.wait(60)
            # One that never comes to an end does not keep it.
            with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as slow:
                slow.sendall(b"POST /v2/models/net/infer HTTP/1.1\r\nhost: localhost\r\n")
                slow.sendall(b"content-length: 100\r\n\r\n{")
                start = time.monotonic()
                made.send_signal(signal.SIGTERM)
                made.wait(60)
                spent = time.monotonic() - start
            for each in asking:
                each.result()
        # All that was taken was answered, or told to come back.
        answered = {each for mine in found for each in mine[:-1]}
        assert answered <= {200, 503}
        assert sum(map(len, found)) > 8
        # Five for requests under way, and what a busy machine takes to end a process.
        assert spent < 5 + 5
        assert made.returncode == 128 + signal.SIGTERM
