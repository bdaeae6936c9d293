"""Copies of the server on Ray: the same answers and keys, also when one or its node is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.runtime.serve.cluster import (
    PATIENCE,
    Replicas,
    _start_proxies,
    check_cluster,
    deployment,
    read_replicas,
)
from edgeinfer.runtime.serve.hub import Hub
from edgeinfer.runtime.serve.options import ServeOptions
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.serve.conftest import KEY
from tests.runtime.serve.test_faults import DOUBLE

INFER = "/v2/models/net/infer"
BACK_S = 240.0
"""Seconds, on a busy machine, until all replicas answer again; a process of Ray's takes many."""


def asked(value: float) -> dict[str, Any]:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [value] * 3}
    return {"inputs": [x]}


def test_how_many() -> None:
    assert read_replicas("3") == (3, 3)
    assert read_replicas("1:4") == (1, 4)
    for wrong in ("", "0", "2:1", "1:", "a", "1:2:3", "-1", "²", "9" * 5000):
        with pytest.raises(UsageError, match="replicas"):
            read_replicas(wrong)


@pytest.mark.parametrize("version", ["2.50.0", "2.59.1"])
def test_a_ray_that_asks_for_no_token_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches its ports could run programs."""
    old = types.ModuleType("ray")
    old.__version__, old.serve = version, types.ModuleType("ray.serve")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", old)
    monkeypatch.setitem(sys.modules, "ray.serve", old.serve)
    options = ServeOptions(keys=(KEY,))
    hub = Hub((), options)
    with pytest.raises(NotAvailableError, match=f"needs Ray 2.60 or newer.*{version}"):
        check_cluster(options, Replicas(), hub)
    hub.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"grpc_port": 1}, "--grpc-port"),
        ({"mdns": True, "host": "0.0.0.0"}, "--mdns"),
        ({"shared_memory": "a"}, "--shared-memory"),
    ],
)
def test_what_copies_cannot_do(given: dict[str, Any], text: str) -> None:
    options = ServeOptions(keys=(KEY,), **given)
    hub = Hub((), options)
    with pytest.raises(UsageError, match=f"--ray: {text}: not supported"):
        check_cluster(options, Replicas(), hub)
    hub.close()


def test_proxies_that_are_late_are_waited_for_again() -> None:
    late = TimeoutError("HTTP proxies not available after 60s.")
    _start_proxies(Mock(side_effect=[late, late, None]))
    with pytest.raises(TimeoutError, match="proxies"):
        _start_proxies(Mock(side_effect=late))


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def add_node(nodes: Any, **given: Any) -> None:
    """Add a node; again where it did not come up in Ray's own half minute, which is fixed."""
    end = time.monotonic() + BACK_S
    while True:
        try:
            nodes.add_node(num_cpus=1, **given)
        except Exception as e:
            if "timed out during startup" not in str(e) or time.monotonic() > end:
                raise
        else:
            return


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, httpx.Client]]:
    """Start three nodes, which are processes here, with one replica on each."""
    ray = pytest.importorskip("ray")
    serve = pytest.importorskip("ray.serve")
    from ray.cluster_utils import Cluster

    path = write_graph(tmp_path_factory.mktemp("models"), "net", DOUBLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        # Or the proxy asks the replica of its own node alone, and no kill is ever noticed.
        patch.setenv("RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING", "0")
        # Ray's own minute for it is fixed, and a busy machine takes more.
        for module in ("api", "client"):
            patch.setattr(f"ray.serve._private.{module}.HTTP_PROXY_TIMEOUT", BACK_S)
        nodes = Cluster()
        add_node(nodes, include_dashboard=False)
        for _ in range(2):
            add_node(nodes)
        try:
            ray.init(address=nodes.address, log_to_driver=False)
            port = free_port()
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            options = ServeOptions(port=port, keys=(KEY,), threads=1)
            copies = Replicas(3, 3, cpus=0.5, a_node=1)
            serve.run(deployment([str(path)], options, copies), name="edgeinfer", route_prefix="/")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=BACK_S) as client:
                client.headers["x-api-key"] = KEY
                yield nodes, client
        finally:
            serve.shutdown()
            ray.shutdown()
            nodes.shutdown()


def places(client: httpx.Client, count: int = 40) -> dict[str, int]:
    """Return how often each replica answered, by its node and process."""
    found: dict[str, int] = {}
    for value in range(count):
        answer = client.post(INFER, json=asked(value))
        if answer.status_code == 200:
            assert answer.json()["outputs"][0]["data"] == [2.0 * value] * 3
            place = answer.headers["x-edgeinfer-replica"]
            found[place] = found.get(place, 0) + 1
    return found


def under_load(client: httpx.Client, kill: Any) -> list[int]:
    """Kill something under three clients; return all statuses: none hangs."""
    done, statuses = threading.Event(), list[int]()

    def ask() -> None:
        while not done.is_set():
            answer = client.post(INFER, json=asked(1))
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                assert answer.json()["outputs"][0]["data"] == [2.0] * 3

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        while len(statuses) < 30:
            time.sleep(0.01)
        kill()
        time.sleep(5)
        done.set()
        for each in asking:
            each.result(60)
    return statuses


def back(client: httpx.Client, count: int) -> dict[str, int]:
    """Wait until so many replicas answer."""
    end = time.monotonic() + BACK_S
    while len(found := places(client)) < count:
        assert time.monotonic() < end, found
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_copies_answer_alike_and_ask_for_the_key(cluster: tuple[Any, httpx.Client]) -> None:
    _, client = cluster
    found = back(client, 3)
    assert len({place.split("-")[0] for place in found}) == 3
    assert client.post(INFER, json=asked(1), headers={"x-api-key": "none"}).status_code == 401
    assert client.get("/v2/health/ready").status_code == 200
    assert client.post(INFER, json={"inputs": []}).status_code == 400
    # What one replica alone would know or do.
    unload = client.post("/v2/repository/models/net/unload")
    assert unload.status_code == 400
    assert "replicas keep their models" in unload.json()["error"]
    assert client.get("/metrics").status_code == 404


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replica_is_killed(cluster: tuple[Any, httpx.Client]) -> None:
    _, client = cluster
    before = back(client, 3)
    victim = max(before, key=lambda place: before[place])
    statuses = under_load(client, lambda: os.kill(int(victim.split("-")[1]), signal.SIGKILL))
    # What was under way there was asked again elsewhere.
    assert set(statuses) == {200}
    assert victim not in back(client, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_is_killed(cluster: tuple[Any, httpx.Client]) -> None:
    nodes, client = cluster
    before = back(client, 3)
    # Every node has answered before, so that the one that goes is missed.
    assert len({place.split("-")[0] for place in before}) == 3
    victim = next(iter(nodes.worker_nodes))
    gone = victim.node_id[:12]
    assert any(place.startswith(gone) for place in before)
    statuses = under_load(client, lambda: nodes.remove_node(victim, allow_graceful=False))
    assert set(statuses) == {200}
    after = back(client, 2)
    assert not any(place.startswith(gone) for place in after)
    # A new node takes over what the lost one did.
    add_node(nodes)
    assert len({place.split("-")[0] for place in back(client, 3)}) == 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_command_starts_and_ends(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    path, keys, port = write_graph(tmp_path, "net", DOUBLE), tmp_path / "keys", free_port()
    keys.write_text(KEY)
    command = [sys.executable, "-m", "edgeinfer", "serve", str(path), "--ray", "--replicas", "1"]
    command += ["--keys", str(keys), "--port", str(port), "--threads", "1"]
    env = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("RAY_ADDRESS", None)
    # Ray makes folders of its sockets that everybody may write: they lie in one that is private.
    temporary = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    temporary.chmod(0o755)
    env["TMPDIR"] = str(temporary)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as made:
        assert made.stderr is not None
        try:
            told = [""]
            while "serving at" not in (line := made.stderr.readline()):
                told.append(line)
                assert line, "".join(told)
            url = line.split()[-1]
            sockets = [*temporary.glob("*/ray/session_2*/sockets")]
            assert sockets
            assert {s.parents[2].stat().st_mode & 0o777 for s in sockets} == {0o700}
            found = httpx.post(
                f"{url}{INFER}", json=asked(2), headers={"x-api-key": KEY}, timeout=BACK_S
            )
            assert found.json()["outputs"][0]["data"] == [4.0] * 3
            made.send_signal(signal.SIGTERM)
            made.communicate(timeout=BACK_S)
        finally:
            made.kill()
    assert made.returncode == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v2/health/live")
    assert not [*temporary.iterdir()]
    temporary.rmdir()
