"""A device that is reached over ssh: TVM's RPC server is started there, and heard by nobody else.

The server listens on the device's loopback only, and one connection of ssh carries it here. It ends
with that connection, which ends with this process, however that ends: a shell on the device waits
for the end of its input.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import socket
import subprocess
import threading
import time
from typing import IO

from edgeinfer.errors import NotAvailableError
from edgeinfer.kernels.tuning import processor
from edgeinfer.remote.ssh import FAILED, client, last_line, place

_HINT = "pip install 'apache-tvm[rpc,popen-pool]' on the device"
_LOGIN_S, _START_S, _ATTEMPTS = 30.0, 90.0, 3
_PORTS = range(20000, 60000)

_MOST = 1 << 20
"""Bytes of what a device prints; the rest is not kept."""


class Tunnel:
    """TVM's RPC server on a device and the way to it; a context manager.

    Raises:
        UsageError: the device's name is none.
        NotAvailableError: there is no ssh, nobody answers, or the server does not start.
    """

    def __init__(self, device: str) -> None:
        self._device, self._place = device, place(device)
        self._client = client(device, self._place)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def __enter__(self) -> Tunnel:
        for attempt in range(_ATTEMPTS):
            # Which port is free there is known only there.
            output = self._started(random.choice(_PORTS))
            if not output:
                return self
            self.close()
            if "bind" not in output.lower() and "in use" not in output.lower():
                break
            time.sleep(attempt)
        hint = f"; {_HINT}" if "No module named" in output else ""
        raise NotAvailableError(f"device {self._device!r}: no RPC server: {output}{hint}")

    def __exit__(self, *_: object) -> None:
        self.close()

    def processor(self) -> str:
        """Return this project's name of the device's processor; empty if it does not say.

        Raises:
            NotAvailableError: nobody answers.
        """
        command = [*self._client, "--", self._place.host, "cat /proc/cpuinfo"]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        found, errors = _Printed(process.stdout), _Printed(process.stderr)
        try:
            code = process.wait(_LOGIN_S)
        except subprocess.TimeoutExpired as error:
            raise NotAvailableError(
                f"device {self._device!r}: no answer for {_LOGIN_S:g} s"
            ) from error
        finally:
            process.kill()
            process.wait()
        if code == FAILED:
            why = last_line(errors.ended()) or "it ended with 255"
            raise NotAvailableError(f"device {self._device!r}: ssh: {why}")
        return processor.named(found.ended().decode(errors="replace"))

    def close(self) -> None:
        """End the server; twice is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _started(self, port: int) -> str:
        """Start the server; returns why it did not, empty if it did."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = free.getsockname()[1]
        python = shlex.quote(self._place.python)
        server = f"{python} -u -m tvm.exec.rpc_server --host 127.0.0.1 --port {port}"
        # The shell ends the server when the connection does.
        remote = f"{server} --port-end {port + 1} </dev/null & P=$!; cat >/dev/null; kill $P"
        forward = ["-o", "ExitOnForwardFailure=yes", "-L", f"{here}:127.0.0.1:{port}"]
        self._process = subprocess.Popen(
            [*self._client, *forward, "--", self._place.host, remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        why = self._waited(_Printed(self._process.stdout), port)
        self.address = "" if why else f"127.0.0.1:{here}"
        return why

    def _waited(self, output: _Printed, port: int) -> str:
        process = self._process
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            text = output.text
            if re.search(rb"bind to .*:%d\b" % port, text):
                return ""
            ended = process is None or process.poll() is not None
            if ended or re.search(rb"\b\w*Error\b|not found", text):
                return last_line(output.ended(0.2)) or "the connection ended"
            time.sleep(0.1)
        return f"it did not start in {_START_S:g} s"


class _Printed:
    """Reads what a device prints, and keeps the first of it.

    Args:
        stream: Pipe of its process, which is closed at its end.

    Attributes:
        text: what came.
    """

    def __init__(self, stream: IO[bytes] | None) -> None:
        if stream is None:
            raise AssertionError("a pipe was asked for")
        self.text = b""
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while block := os.read(self._stream.fileno(), 1 << 16):
                self.text += block[: _MOST - len(self.text)]

    def ended(self, seconds: float = 5.0) -> bytes:
        """Return it, after waiting so long for what is still on its way."""
        self._thread.join(seconds)
        return self.text
