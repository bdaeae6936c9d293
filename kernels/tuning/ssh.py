"""A device that is reached over ssh: TVM's RPC server is started there, and heard by nobody else.

The server listens on the device's loopback only, and one connection of ssh carries it here. It ends
with that connection, which ends with this process, however that ends: a shell on the device waits
for the end of its input.
"""

from __future__ import annotations

import random
import re
import shlex
import socket
import subprocess
import time

from edgeinfer.errors import NotAvailableError
from edgeinfer.kernels.tuning import processor
from edgeinfer.remote.printed import Printed, too_much
from edgeinfer.remote.ssh import FAILED, client, place

_HINT = "pip install 'apache-tvm[rpc,popen-pool]' on the device"
_LOGIN_S, _START_S, _ATTEMPTS = 30.0, 90.0, 3
_PORTS = range(20000, 60000)
_LONGEST_NAME = 200


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
        process = subprocess.Popen(
            [*self._client, "--", self._place.host, "cat /proc/cpuinfo"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, errors = (Printed(process, x) for x in (process.stdout, process.stderr))
        why = ""
        try:
            process.wait(_LOGIN_S)
        except subprocess.TimeoutExpired:
            why = f"no answer for {_LOGIN_S:g} s"
        finally:
            process.kill()
            process.wait()
        out.ended()
        errors.ended()
        if out.is_too_much or errors.is_too_much:
            why = too_much()
        elif process.returncode == FAILED:
            why = f"ssh: {errors.last or 'it ended with 255'}"
        if why:
            raise NotAvailableError(f"device {self._device!r}: {why}")
        # The first of its processors is at the beginning.
        return processor.named(out.first.decode(errors="replace"))[:_LONGEST_NAME]

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
        # It prints for as long as it runs, and is read for as long.
        printed = Printed(self._process, self._process.stdout)
        why = _waited(self._process, printed, port)
        self.address = "" if why else f"127.0.0.1:{here}"
        return why


def _waited(process: subprocess.Popen[bytes], output: Printed, port: int) -> str:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        ended = process.poll() is not None
        text = output.first
        if re.search(rb"bind to .{0,100}:%d\b" % port, text):
            return ""
        if ended or re.search(rb"Error\b|not found", text):
            time.sleep(0.2)
            return output.last or "the connection ended"
        time.sleep(0.1)
    return f"it did not start in {_START_S:g} s"
