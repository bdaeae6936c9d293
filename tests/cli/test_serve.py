"""``edgeinfer serve``: what it is told reaches the server, and it starts, answers and ends."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.installed import RUNTIME
from edgeinfer.runtime.serve import run
from edgeinfer.runtime.serve.requestlog import JsonLines
from tests.runtime.pipelines.conftest import write_graph


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def serve(models: Any, options: Any, **more: Any) -> None:
        found.update(more, models=models, options=options)

    monkeypatch.setattr(run, "serve", serve)
    return found


def test_what_it_is_told_reaches_the_server(cli: Any, told: dict[str, Any]) -> None:
    given = "a.edge b=c.edge --pipeline ocr=d.edge,e.edge --port 9 --grpc-port 10 --threads 2"
    more = ["--upstream", "u=http://a", "--fallback", "a=b:2", "--answer-cache-mb", "3"]
    limits = (
        "--queue 3 --max-body-mb 2 --max-json-mb 1 --max-requests-mb 5 --wait-s 0.5 --drain-s 1 "
        "--batch 4 --isolate --allow tf32,bf16"
    )
    assert cli("serve", *given.split(), *limits.split(), *more).code == 0
    assert told["models"] == ("a.edge", "b=c.edge")
    assert told["pipelines"] == ("ocr=d.edge,e.edge",)
    options = told["options"]
    assert (options.host, options.port, options.grpc_port) == ("127.0.0.1", 9, 10)
    assert (options.threads, options.batch, options.isolate) == (2, 4, True)
    assert options.allow == ("bf16", "tf32")
    assert (options.upstreams, options.fallbacks) == (("u=http://a",), ("a=b:2",))
    assert options.answers_mb == 3
    found = options.limits
    assert (found.queue, found.wait_s, found.drain_s) == (3, 0.5, 1)
    assert (found.body_bytes, found.json_bytes) == (2 << 20, 1 << 20)
    assert found.memory_bytes == 5 << 20


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", "no BUNDLE given"),
        ("a.edge --host 0.0.0.0", "is open to other machines"),
        ("a.edge --port 9 --grpc-port 9", "HTTP and gRPC need one each"),
        ("a.edge --certificate a.pem", "TLS needs both"),
    ],
)
def test_usage(cli: Any, told: dict[str, Any], given: str, text: str) -> None:
    result = cli("serve", *given.split())
    assert result.code == 2
    assert text in result.err
    assert told == {}


def test_a_device_is_no_node_of_a_cluster(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeinfer.cli.serve.package", lambda: RUNTIME)
    result = cli("serve", "a.edge", "--ray")
    assert (result.code, "nodes of a cluster have edgeinfer" in result.err) == (2, True)


def asked_of(url: str, headers: dict[str, str]) -> urllib.request.Request:
    return urllib.request.Request(url, data=b'{"x": [1, 2]}', headers=headers)


def answered(asked: urllib.request.Request) -> Any:
    """Return the answer; None while the model is loading."""
    try:
        with urllib.request.urlopen(asked) as found:
            answer = json.load(found)
    except urllib.error.HTTPError as e:
        if e.code != 503:
            raise
        answer = None
    return answer


@pytest.mark.slow
def test_it_starts_answers_and_ends(tmp_path: Path) -> None:
    path = write_graph(tmp_path, "net", "net (float[N] x) => (float[N] y) { y = Add(x, x) }")
    command = [sys.executable, "-m", "edgeinfer", "serve", str(path), "--port", "0", "--log"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            url = server.stderr.readline().split()[-1]
            asked = asked_of(f"{url}/v2/models/net/generate", {"x-request-id": "seven"})
            found = None
            while found is None:
                found = answered(asked)
            assert found["y"] == [2, 4]
        finally:
            server.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in server.stderr if line.startswith("{")]
    assert server.returncode == 128 + signal.SIGTERM
    assert lines[-1] | {"time": "", "seconds": 0} == {
        "time": "",
        "level": "info",
        "message": "POST /v2/models/net/generate 200",
        "request_id": "seven",
        "status": 200,
        "seconds": 0,
    }


def test_lines_that_come_together_are_written_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes: list[bytes] = []

    class Out:
        def write(self, text: bytes) -> None:
            writes.append(text)

        def flush(self) -> None:
            if len(writes) > 2:
                raise OSError("no space left on device")

    handler = JsonLines()
    log = logging.Logger("test", logging.INFO)
    log.addHandler(handler)
    monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(buffer=Out()))

    async def turn() -> None:
        log.info("one", extra={"status": 200, "key": "phone"})
        log.info("two\n%s", "ü")
        assert writes == []
        await asyncio.sleep(0.1)

    asyncio.run(turn())
    (both,) = writes
    first, second = map(json.loads, both.splitlines())
    assert first["message"] == "one"
    assert (first["status"], first["key"], first["level"]) == (200, "phone", "info")
    assert second["message"] == "two\nü"
    log.info("three")
    assert len(writes) == 2
    # A full disk ends nothing.
    log.info("four")
    log.info("five")
    log.error("failed", exc_info=ValueError("six"))
    assert "ValueError: six" in json.loads(writes[-1])["error"]
