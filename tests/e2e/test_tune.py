"""``edgeinfer tune`` as it is run, ended in every way, and started again."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

import edgeinfer
from benchmarks.tiny import MLP, save
from edgeinfer.kernels.tuning import processor
from edgeinfer.kernels.tuning.database import FINAL, TRIED, Database, Record
from tests.remote import stand_in_ssh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="tunes for x86-64"),
]

PATIENCE_S = 300.0
STAND_IN = Path(stand_in_ssh.__file__)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    save(MLP, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


def _command(net: Path, database: Database, *more: str) -> list[str]:
    given = ("-t", "tvm-x86-64-v3", "--database", str(database.path), *more)
    return [sys.executable, "-m", "edgeinfer", "tune", str(net), *given]


def _start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def _wait_for(database: Database, count: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE_S
    while len(database.read().records) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.05)


def _tried(database: Database) -> list[Record]:
    return [r for r in database.read().records if r.kind == TRIED and r.trace is not None]


def _finished(net: Path, database: Database, trials: int, *more: str) -> dict[str, Any]:
    """Run to the end: 16 more orders of each kernel."""
    asked = ("--minutes", "5", "--trials", str(trials), "--json", *more)
    done = subprocess.run(
        _command(net, database, *asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S + 300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _orphans(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"edgeinfer.kernels.tuning" in told and str(folder).encode() in (
            (entry / "environ").read_bytes() if os.access(entry / "environ", os.R_OK) else b""
        ):
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-c"])
def test_an_interrupted_run_goes_on(net: Path, database: Database, how: signal.Signals) -> None:
    mark = {**os.environ, "EDGEINFER_TEST": str(net.parent)}
    process = _start(_command(net, database, "--minutes", "9"), env=mark)
    _wait_for(database, 12, process)
    process.send_signal(how)
    process.communicate(timeout=90)
    assert process.returncode != 0
    kept = database.read()
    assert kept.damaged <= (how == signal.SIGKILL)
    assert len(kept.records) >= 12
    before = {json.dumps(r.trace) for r in _tried(database)}
    until = time.monotonic() + 20
    while _orphans(net.parent) and time.monotonic() < until:
        time.sleep(0.2)
    assert _orphans(net.parent) == []
    found = _finished(net, database, 32)
    after = [json.dumps(r.trace) for r in _tried(database) if r.key == found["kernels"][0]["key"]]
    assert len(after) == len(set(after))
    assert before <= {json.dumps(r.trace) for r in _tried(database)}
    assert all(k["trials"] + k["failed"] >= 16 for k in found["kernels"])


def test_a_full_disk_ends_the_run_and_it_goes_on(net: Path, database: Database) -> None:
    def small() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    process = _start(_command(net, database, "--minutes", "9"), preexec_fn=small)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, told
    assert "cannot keep a measurement" in told
    kept = database.read()
    assert kept.damaged == 0
    assert len(kept.records) >= 3
    assert _finished(net, database, 16)["damaged_lines"] == 0


def test_two_tuners_share_a_database(net: Path, database: Database) -> None:
    asked = ("--minutes", "5", "--trials", "16", "--json")
    both = [_start(_command(net, database, *asked, "--seed", s)) for s in ("1", "2")]
    for process in both:
        _, told = process.communicate(timeout=PATIENCE_S + 300)
        assert process.returncode == 0, told
    kept = database.read()
    assert kept.damaged == 0
    assert sum(r.kind == FINAL for r in kept.records) == 4


def test_a_bundle_with_tuned_kernels_is_right(net: Path, database: Database) -> None:
    place = net.with_suffix(".edge")
    found = _finished(net, database, 48, "-o", str(place))
    assert found["whole"]["rounds"] == 21
    assert found["bundle"] == str(place)
    with edgeinfer.load(place, backend="tvm") as session:
        assert session.verify().passed
    assert "times as fast" in found["note"] or "own" in found["note"]


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    if importlib.util.find_spec("cloudpickle") is None:
        pytest.skip("TVM's RPC server needs cloudpickle: pip install 'apache-tvm[rpc,popen-pool]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1"]
    ports = ["--port", str(port), "--port-end", str(port + 1)]
    process = subprocess.Popen(
        [*command, *ports], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "bind to" in line:
            break
    yield process, port
    _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def test_a_device_is_tuned_over_ssh(
    net: Path, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("cloudpickle") is None:
        pytest.skip("TVM's RPC server needs cloudpickle: pip install 'apache-tvm[rpc,popen-pool]'")
    client = tmp_path / "ssh"
    client.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    client.chmod(0o755)
    monkeypatch.setenv("EDGEINFER_SSH", str(client))
    found = _finished(net, database, 16, "--device", f"ssh://pi@board{sys.executable}")
    assert [k["trials"] + k["failed"] for k in found["kernels"]] == [16, 16]
    assert (found["cpu"], found["engine"]) == (processor.name(), "")


def test_a_device_that_dies_ends_the_run_and_it_goes_on(
    net: Path, database: Database, server: tuple[subprocess.Popen[str], int]
) -> None:
    device, port = server
    place = ("--device", f"127.0.0.1:{port}", "--device-name", "far")
    process = _start(_command(net, database, "--minutes", "9", *place))
    _wait_for(database, 8, process)
    _end(device)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, told
    assert "the device is gone" in told
    kept = [r for r in database.read().records if not r.error]
    assert len(kept) >= 7
    assert {r.cpu for r in kept} == {"far"}
