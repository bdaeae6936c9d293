"""Keys, limits, counters and the end of a server."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.errors import UsageError
from edgeinfer.runtime.serve.options import (
    RequestLimits,
    ServeOptions,
    keys_of,
    model_name,
)
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.serve.conftest import KEY, Server, Start
from tests.runtime.serve.test_v2 import URL, body


def test_a_key_is_needed_where_there_are_keys(start: Start) -> None:
    server = start(keys=(KEY, "another-key-of-somebody"))
    post = server.client.post
    assert post(URL, json=body()).status_code == 401
    for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        assert post(URL, json=body(), headers=headers).status_code == 200
    wrong = {"authorization": f"Bearer {KEY}x"}
    assert post(URL, json=body(), headers=wrong).status_code == 401
    assert server.client.get("/metrics").status_code == 401
    assert server.client.get("/v2/health/ready").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "board.local"])
def test_other_machines_need_a_key_or_a_word(host: str) -> None:
    with pytest.raises(UsageError, match="is open to other machines"):
        ServeOptions(host=host)
    assert ServeOptions(host=host, insecure=True).keys == ()
    assert ServeOptions(host=host, keys=(KEY,)).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_alone_needs_none(host: str) -> None:
    assert ServeOptions(host=host).host == host


def test_keys_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n{KEY}\n\n")
    assert keys_of(file) == (KEY,)
    monkeypatch.setenv("EDGEINFER_SERVE_KEYS", f"{KEY}, {KEY}2")
    assert keys_of(None) == (KEY, f"{KEY}2")
    (tmp_path / "none").write_text("# none\n")
    with pytest.raises(UsageError, match="has no keys"):
        keys_of(tmp_path / "none")
    with pytest.raises(UsageError, match="could be guessed"):
        ServeOptions(keys=("short",))


def test_names_of_models() -> None:
    assert model_name("dir/net.edge") == ("net", "dir/net.edge")
    assert model_name("a=dir/net.edge") == ("a", "dir/net.edge")
    for wrong in ("../x=net.edge", "a/b=net.edge", "=net.edge", "dir/ü.edge"):
        with pytest.raises(UsageError, match="is no name for a model"):
            model_name(wrong)


def test_bodies_have_a_limit(start: Start) -> None:
    server = start(limits=RequestLimits(body_bytes=1000))
    found = server.client.post(URL, content=b"x" * 1001)
    assert found.status_code == 413
    assert "larger than 1000 bytes" in found.json()["error"]
    assert server.client.post(URL, json=body()).status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(start: Start) -> None:
    import socket

    server = start(limits=RequestLimits(body_s=0.2))
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as slow:
        head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{{"
        slow.sendall(head.encode())
        slow.settimeout(30)
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_metrics_are_what_prometheus_reads(start: Start) -> None:
    server = start()
    from prometheus_client.parser import text_string_to_metric_families

    server.client.post(URL, json=body())
    server.client.post(URL, json={})
    text = server.client.get("/metrics").text
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["edgeinfer_requests_total", ("model", "double"), ("status", "200")] == 1
    assert found["edgeinfer_requests_total", ("model", "double"), ("status", "400")] == 1
    assert found["nv_inference_request_success", ("model", "double"), ("version", "1")] == 1
    assert found["vllm:num_requests_running", ("model_name", "tiny")] == 0
    assert found["edgeinfer_llm_pages", ("model", "tiny")] == 128


def test_an_engine_that_fails_tells_no_secrets(
    start: Start, fakes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    fakes["fake"].run_error = "/home/me/secret failed"
    with caplog.at_level(logging.ERROR, "edgeinfer.serve"):
        found = server.client.post(URL, json=body())
    assert found.status_code == 500
    assert "secret" not in found.text
    assert "secret" in caplog.text
    fakes["fake"].run_error = ""
    assert server.client.post(URL, json=body()).status_code == 200


def test_unknown_addresses(server: Server) -> None:
    for path in ("/nothing", "/v2/nothing", "/v1/nothing", "/v2/models/double/infer/more"):
        assert server.client.get(path).status_code == 404
    assert server.client.get(URL).status_code == 405
    assert server.client.get("/" + "a" * 3000).status_code == 414


@pytest.mark.usefixtures("on_threads")
def test_what_runs_is_answered_before_the_end(start: Start, fakes: Any) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    server = start()
    gate = fakes["fake"].gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.client.post, URL, json=body())
        while not any(e.inside for e in fakes["fake"].open):
            pass
        ending = pool.submit(server.stop)
        gate.set()
        assert running.result().status_code == 200
        ending.result()
    assert fakes["fake"].open == []


def test_tensors_alone_need_no_modules_of_texts_and_pages(tmp_path: Path) -> None:
    """A small server has little memory; what nobody asks for takes none."""
    write_graph(tmp_path, "net", "net (float[N] x) => (float[N] y) { y = Add(x, x) }")
    code = (
        "import sys\n"
        "from edgeinfer.runtime.serve.app import App\n"
        "from edgeinfer.runtime.serve.hub import Hub\n"
        "from edgeinfer.runtime.serve.options import ServeOptions\n"
        "hub = Hub([sys.argv[1]], ServeOptions())\n"
        "app = App(hub)\n"
        "hub.loader.load_all(hub.models.values())\n"
        "assert hub.is_ready\n"
        "names = ('edgeinfer.runtime.llm', 'edgeinfer.runtime.pipelines', 'prometheus_client')\n"
        "print([name for name in sys.modules if name.startswith(names)])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "net.edge")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
