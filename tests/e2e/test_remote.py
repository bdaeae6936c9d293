"""Commands on a device through a real ssh server, here and in an emulated arm64 userland."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.remote import ssh

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh-keygen") is None, reason="needs openssh-server"
)

CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
PidFile none
"""
CLIENT = """#!/bin/sh
exec ssh -F none -i "{folder}/user" -o StrictHostKeyChecking=no \
  -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"
"""
PYTHON = """#!/bin/sh
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}" PYTHONHOME="{root}/usr"
exec {qemu} -0 "$0" -cpu cortex-a76 -L "{root}" "{root}/usr/bin/python3.11" "$@"
"""
"""Named by its own path, so that what it starts is emulated too."""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The place of this machine as a device, as ssh reaches it."""
    for name in ("host", "user"):
        keygen = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name))
        subprocess.run(keygen, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = CONFIGURATION.format(port=port, folder=tmp_path)
    (tmp_path / "sshd").write_text(text)
    (tmp_path / "client").write_text(CLIENT.format(folder=tmp_path))
    (tmp_path / "client").chmod(0o755)
    monkeypatch.setenv(ssh.CLIENT, str(tmp_path / "client"))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([SSHD or "", "-D", "-e", "-f", str(tmp_path / "sshd")])
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
        yield f"ssh://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def edgeinfer(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeinfer", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    import onnx

    graph = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[1, 3, 16, 16] x) => (float[1, 4, 14, 14] y)
    <float[4, 3, 3, 3] w = {WEIGHTS}>
    { c = Conv (x, w)  y = Relu (c) }
    """
    weights = ", ".join(f"{(i * 37 % 101) / 50 - 1:.2f}" for i in range(108))
    onnx.save(onnx.parser.parse_model(graph.replace("WEIGHTS", weights)), tmp_path / "m.onnx")
    made = edgeinfer("convert", tmp_path / "m.onnx", "-t", "rpi5", "-o", tmp_path / "m.edge")
    assert made.returncode == 0, made.stderr
    return tmp_path / "m.edge"


@pytest.mark.sweep
def test_verify_and_bench_through_a_real_server(board: str, bundle: Path, tmp_path: Path) -> None:
    place = f"{board}{sys.executable}"
    verified = edgeinfer("verify", bundle, "--device", place)
    assert verified.returncode == 0, verified.stderr
    assert verified.stdout.splitlines()[-1].endswith("on each: all within budget")
    saved = tmp_path / "figures.json"
    words = ("--seconds", "1", "--runs", "5", "-o", saved, "--json")
    timed = edgeinfer("bench", bundle, *words, "--device", place)
    assert timed.returncode == 0, timed.stderr
    assert json.loads(timed.stdout) == json.loads(saved.read_text())
    assert edgeinfer("verify", bundle, "--device", f"{board}/no/python").returncode == 3


@pytest.mark.slow
def test_an_arm_board_brings_a_full_table_back(board: str, bundle: Path, tmp_path: Path) -> None:
    from edgeinfer.backends.process.emulator import emulator
    from edgeinfer.errors import NotAvailableError

    try:
        qemu, _, _, _, root, _ = emulator("aarch64", "cortex-a76").command
    except NotAvailableError as error:
        pytest.skip(str(error))
    python = tmp_path / "python3"
    site = Path(root).with_name("site")
    python.write_text(PYTHON.format(qemu=qemu, root=root, site=site))
    python.chmod(0o755)
    verified = edgeinfer("verify", bundle, "--device", f"{board}{python}")
    assert verified.returncode == 0, verified.stderr
    rows = [line.split()[:2] + line.split()[-1:] for line in verified.stdout.splitlines()[1:3]]
    assert rows == [
        ["rpi5-tflite-fp32", "litert", "pass"],
        ["rpi5-onnx-fp32", "onnxruntime", "pass"],
    ]
    saved = tmp_path / "figures.json"
    words = ("--seconds", "2", "--runs", "3", "-o", saved)
    timed = edgeinfer("bench", bundle, *words, "--device", f"{board}{python}")
    assert timed.returncode == 0, timed.stderr
    figures = json.loads(saved.read_text())
    assert figures["machine"]["arch"] == "aarch64"
    assert {row["engine"] for row in figures["rows"]} >= {"litert", "onnxruntime"}
