"""What goes wrong around a server: one clear answer to who it concerns, others unharmed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edgeinfer.runtime.serve.fastpath import FastPath
from edgeinfer.runtime.serve.options import RequestLimits
from tests.runtime.conftest import Fakes, write_bundle
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.serve.conftest import Server, Start, Starter
from tests.runtime.serve.test_fastpath import until
from tests.runtime.serve.test_v2 import URL, body

DOUBLE = "double (float[N, 3] x) => (float[N, 3] y) { y = Add(x, x) }"


def raw(server: Server, text: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    made.settimeout(30)
    made.sendall(text.encode())
    return made


def test_a_model_that_cannot_be_loaded_leaves_the_others(start: Start, fakes: Fakes) -> None:
    server = start()
    post = server.client.post
    model = server.hub.models["double"]
    post("/v2/repository/models/double/unload")
    fakes["fake"].load_error = f"{model.path.resolve()}: no such operator"
    refused = post("/v2/repository/models/double/load")
    assert refused.status_code == 503
    assert "no such operator" in refused.json()["error"]
    found = post(URL, json=body())
    assert found.status_code == 503
    assert found.headers["retry-after"] == "1"
    # Where bundles lie is nobody's business.
    assert str(model.path.parent) not in refused.text + found.text
    assert server.client.get("/v2/health/ready").status_code == 503
    given = {"model": "tiny", "prompt": "the cat", "max_tokens": 2}
    assert post("/v1/completions", json=given).status_code == 200
    fakes["fake"].load_error = ""
    assert post("/v2/repository/models/double/load").status_code == 200
    assert post(URL, json=body()).status_code == 200
    assert server.client.get("/v2/health/ready").status_code == 200


def test_another_bundle_is_not_loaded_under_a_name_that_is_known(
    start: Start, tmp_path: Path
) -> None:
    """Inputs, outputs and states were read of the first one."""
    server = start()
    post = server.client.post
    place = server.hub.models["double"].path
    kept = shutil.copy(place, tmp_path / "kept.edge")
    os.replace(write_bundle(tmp_path / "other.edge", "fake", vectors=3), place)
    assert post(URL, json=body()).status_code == 200
    post("/v2/repository/models/double/unload")
    refused = post("/v2/repository/models/double/load")
    assert refused.status_code == 503
    assert "another bundle than the one that this server began with" in refused.json()["error"]
    assert post(URL, json=body()).status_code == 503
    os.replace(kept, place)
    assert post("/v2/repository/models/double/load").status_code == 200
    assert post(URL, json=body()).status_code == 200


def test_another_language_model_is_not_loaded_under_a_name_that_is_known(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    post, place = server.client.post, server.hub.models["tiny"].path
    kept = shutil.copy(place, tmp_path / "kept.edge")
    shutil.copy(server.hub.models["double"].path, place)
    post("/v2/repository/models/tiny/unload")
    refused = post("/v2/repository/models/tiny/load")
    assert refused.status_code == 503
    assert "another bundle than the one that this server began with" in refused.json()["error"]
    os.replace(kept, place)
    assert post("/v2/repository/models/tiny/load").status_code == 200


def test_a_surprise_while_loading_is_a_state(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    post = server.client.post
    post("/v2/repository/models/double/unload")

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("/secret: no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(server.hub._runtime, "add", fail)
        refused = post("/v2/repository/models/double/load")
    assert refused.status_code == 503
    assert refused.json() == {"error": "model 'double': OSError; the log says more"}
    assert post("/v2/repository/models/double/load").status_code == 200


def test_a_request_that_runs_says_whether_models_are_well(start: Start, fakes: Fakes) -> None:
    server = start()
    found = server.client.get("/health/run")
    assert (found.status_code, found.json()) == (200, {"double": "good", "tiny": "good"})
    fakes["fake"].run_error = "broken"
    found = server.client.get("/health/run")
    assert found.status_code == 503
    assert found.json()["tiny"] == "good"
    assert found.json()["double"] != "good"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="engines have processes of their own on POSIX")
def test_an_engine_that_is_killed_is_started_again(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    path = write_graph(tmp_path, "net", DOUBLE)
    start = Starter(tmp_path / "served", Fakes())
    (tmp_path / "served").mkdir()
    try:
        server = start(str(path), only=True, isolate=True)
        pids = {child.pid for child in psutil.Process().children(recursive=True)} - before
        assert pids
        done = threading.Event()

        def ask(value: int) -> set[int]:
            statuses = set()
            while not done.is_set():
                x = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [value] * 3}
                found = server.client.post("/v2/models/net/infer", json={"inputs": [x]})
                statuses.add(found.status_code)
                if found.status_code == 200:
                    assert found.json()["outputs"][0]["data"] == [2 * value] * 3
                else:
                    assert found.headers["retry-after"]
            return statuses

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, value) for value in range(4)]
            time.sleep(0.1)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            done.set()
            statuses = set.union(*(each.result() for each in asked))
        assert statuses <= {200, 503}
        while server.client.get("/health/run").status_code != 200:
            time.sleep(0.05)
        now = {child.pid for child in psutil.Process().children(recursive=True)} - before
        assert now
        assert not now & pids
    finally:
        start.close()


def test_models_are_reloaded_under_load(start: Start, fakes: Fakes) -> None:
    server = start()
    done = threading.Event()

    def ask() -> set[int]:
        statuses = set()
        while not done.is_set():
            found = server.client.post(URL, json=body())
            statuses.add(found.status_code)
            if found.status_code == 200:
                assert found.json()["outputs"][0]["data"] == [2, 4, 6, 8, 10, 12]
        return statuses

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        for what in ("unload", "load") * 3:
            found = server.client.post(f"/v2/repository/models/double/{what}")
            assert found.status_code == 200
        done.set()
        assert set.union(*(each.result() for each in asked)) <= {200, 503}
    assert server.hub.models["double"].waiting == 0
    assert len(fakes["fake"].open) == 1


def test_changes_of_one_model_are_made_in_their_order(
    start: Start, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes while another is made waits for it; other models do not."""
    server = start()
    model, add, gate = server.hub.models["double"], server.hub._runtime.add, threading.Event()
    begun = threading.Event()

    def slow(*args: Any, **named: Any) -> Any:
        begun.set()
        assert gate.wait(30)
        return add(*args, **named)

    def change(what: str, name: str = "double") -> int:
        return server.client.post(f"/v2/repository/models/{name}/{what}").status_code

    assert change("unload") == 200
    monkeypatch.setattr(server.hub._runtime, "add", slow)
    with ThreadPoolExecutor(3) as pool:
        changes = [pool.submit(change, "load")]
        assert begun.wait(30)
        for what in ("unload", "load"):
            changes.append(pool.submit(change, what))
            until(lambda: len(server.hub.loader._changes._waiting) == len(changes) - 1)
        assert (change("unload", "tiny"), change("load", "tiny")) == (200, 200)
        assert server.client.get("/health/run").json() == {"tiny": "good"}
        assert not any(each.done() for each in changes)
        gate.set()
        assert [each.result() for each in changes] == [200, 200, 200]
    assert (model.state, model.loads) == ("ready", 2)
    assert server.client.post(URL, json=body()).status_code == 200
    assert len(fakes["fake"].open) == 1


def test_a_model_that_is_loaded_answers_while_it_is_loaded_again(start: Start) -> None:
    server = start()
    model, seen = server.hub.models["double"], list[str]()
    assert model.tensors is not None
    engine = model.tensors.engine
    warm = engine.warm

    def watched() -> None:
        seen.append(model.state)
        warm()

    engine.warm = watched  # type: ignore[method-assign]
    assert server.client.post("/v2/repository/models/double/load").status_code == 200
    assert (seen, model.state) == (["ready"], "ready")


def test_what_was_loaded_of_a_model_that_failed_is_freed(
    start: Start, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second try has the first part of two alone."""
    server = start()
    runtime, model = server.hub._runtime, server.hub.models["double"]
    server.hub.loader.unload(model)
    fakes["fake"].load_error = "no such operator"
    assert server.hub.loader.load(model)
    assert "double" not in runtime.models
    assert (model.engines, model.tensors) == ([], None)
    fakes["fake"].load_error = ""
    assert server.hub.loader.load(model) == ""


def test_a_request_that_runs_while_its_model_is_unloaded_is_answered(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks at a model a thread may have unloaded it."""
    server = start()
    model = server.hub.models["double"]
    lane, tensors = model.lane, model.tensors
    model.lane = model.tensors = None
    # As the loop saw it just before.
    monkeypatch.setattr(FastPath, "_is_open", lambda *_: True)
    found = server.client.post(URL, json=body())
    assert (found.status_code, "unloaded" in found.text) == (503, True)
    model.lane, model.tensors = lane, tensors
    assert server.client.post(URL, json=body()).status_code == 200


def test_a_head_that_does_not_come_is_not_waited_for(start: Start) -> None:
    server = start(limits=RequestLimits(head_s=0.1))
    for text in ("", "GET /health", "GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: "):
        with raw(server, text) as slow:
            assert slow.recv(100) == b""
    with raw(server, "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n") as quick:
        assert quick.recv(100).startswith(b"HTTP/1.1 200")
        quick.sendall(b"GET /hea")
        while quick.recv(1000):
            pass


def test_who_leaves_within_a_body_leaves_nothing(start: Start) -> None:
    server = start()
    head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{{"
    for _ in range(5):
        raw(server, head).close()
    assert server.client.post(URL, json=body()).status_code == 200
    assert server.hub.models["double"].waiting == 0


@pytest.mark.usefixtures("on_threads")
def test_who_leaves_the_queue_is_not_run(start: Start, fakes: Fakes) -> None:
    server = start(batch=1, threads=1)
    model = server.hub.models["double"]
    gate = fakes["fake"].gate = threading.Event()
    text = json.dumps(body())
    request = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text)}\r\n\r\n{text}"
    stays = raw(server, request)
    while model.waiting < 1:
        pass
    leaves = raw(server, request)
    while model.waiting < 2:
        pass
    leaves.close()
    while model.waiting > 1:
        pass
    gate.set()
    assert stays.recv(1000).startswith(b"HTTP/1.1 200")
    stays.close()
    found = server.client.get("/metrics").text
    assert 'edgeinfer_requests_total{model="double",status="499"} 1.0' in found


@pytest.mark.usefixtures("on_threads")
@pytest.mark.parametrize(
    ("limits", "parameters"),
    [(RequestLimits(), {"timeout": 100_000}), (RequestLimits(wait_s=0.1), {})],
    ids=["its own", "the server's"],
)
def test_what_waited_too_long_is_not_run(
    start: Start, fakes: Fakes, limits: RequestLimits, parameters: dict[str, int]
) -> None:
    server = start(batch=1, threads=1, limits=limits)
    model = server.hub.models["double"]
    assert model.tensors is not None
    stats = model.tensors.stats
    before = stats().batches
    gate = fakes["fake"].gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        runs = pool.submit(server.client.post, URL, json=body())
        while not any(e.inside for e in fakes["fake"].open):  # type: ignore[attr-defined]
            time.sleep(0.001)
            if runs.done():
                # A busy machine did not begin it in time either.
                runs = pool.submit(server.client.post, URL, json=body())
        late = pool.submit(server.client.post, URL, json={**body(), "parameters": parameters})
        while model.waiting < 2:
            time.sleep(0.001)
        time.sleep(0.2)
        gate.set()
        assert runs.result().status_code == 200
        found = late.result()
    assert found.status_code == 504
    assert "its deadline passed" in found.json()["error"]
    assert stats().batches == before + 1


@pytest.mark.parametrize(
    "text",
    [
        "GET / HTTP/9.9\r\n\r\n",
        "\x00\x01\x02\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_refused(server: Server, text: str) -> None:
    with raw(server, text) as made:
        assert made.recv(100)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 404", b"")
    assert server.client.get("/health").status_code == 200


def test_requests_have_ids(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    with caplog.at_level(logging.INFO, "edgeinfer.serve"):
        given = server.client.get("/health", headers={"x-request-id": "mine-7"})
        other = server.client.get("/health", headers={"x-request-id": "a" * 200})
    assert given.headers["x-request-id"] == "mine-7"
    made = other.headers["x-request-id"]
    assert made != "a" * 200
    assert made != server.client.get("/health").headers["x-request-id"]
    ids = [getattr(record, "request_id", None) for record in caplog.records]
    assert "mine-7" in ids
    assert made in ids


def test_requests_are_traced(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    server = start()
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    server.client.post(URL, json=body(), headers={"traceparent": parent})
    server.client.post(URL, json={})
    spans = [s for s in exporter.get_finished_spans() if s.name == f"POST {URL}"]
    assert [s.attributes["http.response.status_code"] for s in spans] == [200, 400]
    assert spans[0].context.trace_id == int("ab" * 16, 16)
    assert spans[0].parent.span_id == int("cd" * 8, 16)
    assert spans[1].context.trace_id != spans[0].context.trace_id


def test_numbers_that_are_none_travel_as_bytes_alone(start: Start) -> None:
    server = start()
    x = np.array([[np.nan, np.inf, 1]], np.float32)
    item: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
    k = {"name": "k", "datatype": "INT64", "shape": [1], "data": [1]}
    item["parameters"] = {"binary_data_size": x.nbytes}
    text = json.dumps({"inputs": [item, k]}).encode()
    headers = {"inference-header-content-length": str(len(text))}
    found = server.client.post(URL, content=text + x.tobytes(), headers=headers)
    assert found.status_code in (400, 422)
    assert "NaN" in found.json()["error"] or "finite" in found.json()["error"]
