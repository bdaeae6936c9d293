"""A device behind ssh, played by a program that runs the device's commands here."""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.errors import NotAvailableError
from edgeinfer.kernels.tuning import processor
from edgeinfer.kernels.tuning.ssh import Tunnel
from edgeinfer.remote import printed, ssh
from tests.remote import stand_in_ssh

STAND_IN = Path(stand_in_ssh.__file__)

SERVER = """
import argparse, socket, sys, time
given = argparse.ArgumentParser()
for name in ("host", "port", "port-end"):
    given.add_argument(f"--{name}")
given = given.parse_args()
listening = socket.create_server((given.host, int(given.port)))
print(f"INFO:RPCServer:bind to {given.host}:{given.port}", file=sys.stderr)
while True:
    listening.accept()[0].sendall(b"tvm")
"""


@pytest.fixture(autouse=True)
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "ssh"
    place.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STAND_IN}" "$@"\n')
    place.chmod(place.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(ssh.CLIENT, str(place))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    """A device whose Python has an RPC server that says one word."""
    (tmp_path / "server.py").write_text(SERVER)
    python = tmp_path / "python"
    # As Python is called: -u -m tvm.exec.rpc_server ...
    python.write_text(
        f'#!/bin/sh\nshift 3\nexec "{sys.executable}" -S "{tmp_path / "server.py"}" "$@"\n'
    )
    python.chmod(0o755)
    yield f"ssh://pi@board{python}"
    assert _running(tmp_path) == []


def _running(folder: Path) -> list[int]:
    """What still runs of a folder's server, after some time to end in."""
    until = time.monotonic() + 5
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                told = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder / "server.py") in told:
                found.append(int(entry.name))
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def test_the_server_is_reached_and_ends_with_the_tunnel(device: str) -> None:
    with Tunnel(device) as tunnel:
        host, _, port = tunnel.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            assert connection.recv(3) == b"tvm"
    tunnel.close()


def test_the_device_is_asked_for_its_processor() -> None:
    assert Tunnel("ssh://pi@board").processor() == processor.name()


def test_what_goes_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailableError, match=r"'ssh://nobody@board': ssh: .*Permission denied"):
        Tunnel("ssh://nobody@board").processor()
    with pytest.raises(NotAvailableError, match=r"no RPC server: .*Permission denied"):
        Tunnel("ssh://nobody@board").__enter__()
    with pytest.raises(NotAvailableError, match=r"no RPC server: .*/no/python: not found"):
        Tunnel("ssh://pi@board/no/python").__enter__()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ModuleNotFoundError: No module named cloudpickle; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(NotAvailableError, match=r"No module named .*pip install 'apache-tvm\[rpc"):
        Tunnel(f"ssh://pi@board{python}").__enter__()
    monkeypatch.setenv(ssh.CLIENT, "no-such-client")
    with pytest.raises(NotAvailableError, match="needs no-such-client; apt-get install"):
        Tunnel("ssh://board")


def test_a_device_that_prints_without_an_end_is_ended(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed, "MOST_SAID", 1 << 20)
    # More than a pipe holds, once it listens: it is read, and not kept.
    flooding = SERVER.replace("while True", "sys.stderr.write('x' * 900_000)\nwhile True", 1)
    (tmp_path / "server.py").write_text(flooding)
    with Tunnel(device) as tunnel:
        host, _, port = tunnel.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            assert connection.recv(3) == b"tvm"
    (tmp_path / "server.py").write_text(flooding.replace("900_000", "2_000_000"))
    with Tunnel(device) as tunnel:
        assert tunnel._process is not None
        assert tunnel._process.wait(30) < 0
    place = tmp_path / "ssh"
    for stream in ("1", "2"):
        place.write_text(f"#!/bin/sh\nexec head -c 3000000 /dev/zero >&{stream}\n")
        with pytest.raises(NotAvailableError, match=r"board': it printed more than 1048576 bytes"):
            Tunnel("ssh://board").processor()
    with pytest.raises(NotAvailableError, match=r"RPC server: it printed more than 1048576 bytes"):
        Tunnel("ssh://board").__enter__()
    place.write_text("#!/bin/sh\necho model name: $(head -c 30000 /dev/zero | tr '\\0' x)\n")
    assert len(Tunnel("ssh://board").processor()) == 200
