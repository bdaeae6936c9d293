"""A device behind ssh, played by a program that runs the device's commands here."""

from __future__ import annotations

import os
import resource
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from edgeinfer.errors import NotAvailableError
from edgeinfer.kernels.tuning import processor
from edgeinfer.kernels.tuning.ssh import Tunnel, _Printed
from edgeinfer.remote import ssh
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


FLOOD = """#!/bin/sh
case "$*" in
*cpuinfo*) head -c 100000000 /dev/zero ;;
*) for word; do :; done
   port=${word##*--port }
   echo "INFO:RPCServer:bind to 127.0.0.1:${port%% *}"
   head -c 100000000 /dev/zero; echo done >&2; cat >/dev/null ;;
esac
"""


def test_of_what_a_device_prints_only_the_first_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = tmp_path / "flood"
    flood.write_text(FLOOD)
    flood.chmod(0o755)
    monkeypatch.setenv(ssh.CLIENT, str(flood))
    kept: list[_Printed] = []

    class Noted(_Printed):
        def __init__(self, stream: IO[bytes] | None) -> None:
            kept.append(self)
            super().__init__(stream)

    monkeypatch.setattr("edgeinfer.kernels.tuning.ssh._Printed", Noted)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert Tunnel("ssh://board").processor() == ""
    with Tunnel("ssh://board"):
        # It is read to its end, or the device would wait.
        pass
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50 << 10
    assert [len(each.ended(60)) for each in kept] == [1 << 20, 0, 1 << 20]


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
