"""Runs one of our commands on a device: sends the runtime and the files, brings back what it gave.

The device needs Python 3.10 or newer with NumPy, click and an engine. The runtime of this very
version travels with each command and nothing stays there, so that two versions never meet.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from io import BytesIO
from pathlib import Path
from typing import IO

from edgeinfer import _version
from edgeinfer.bounded import parse_json
from edgeinfer.errors import EdgeInferError, NotAvailableError
from edgeinfer.installed import BACKENDS, RUNTIME
from edgeinfer.printable import visible
from edgeinfer.records import dataclass
from edgeinfer.remote import ssh
from edgeinfer.remote.printed import MOST_SAID, Printed, too_much

LEFT_OUT = frozenset({"convert", "kernels", "__pycache__"})
"""Folders of the package that a device has no use for."""

_END_S = 15.0
_REST_S, _SLOWEST = 60.0, 4096
"""Seconds in which what was made on a device must come, and bytes for one more: how long it is
made is the command's."""

_LONGEST = 4096
"""Bytes of a line."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command on a device gave.

    Attributes:
        code: that it exited with.
        said: what it printed on its standard output.
        wrote: the file that it was to write; None where it wrote none.
    """

    code: int
    said: str
    wrote: bytes | None = None


def run(
    device: str,
    command: Sequence[str],
    files: Mapping[str, Path],
    *,
    output: str = "",
    environment: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a command of ours on a device.

    What it prints for people on standard error is printed here while it runs. It ends when this
    process does.

    Args:
        device: ``ssh://[user@]host[:port][/python]``.
        command: its words, without ``edgeinfer``.
        files: files it needs, by their path there, below its working folder.
        output: path there of a file that it writes and that is wanted.
        environment: variables that it gets besides those it has there.

    Raises:
        UsageError: the device's name is none.
        NotAvailableError: nobody answers, or Python there cannot run it.
        EdgeInferError: a file cannot be read, or the device gives no answer that is known.
    """
    at = ssh.place(device)
    mark = secrets.token_hex(16)
    variables = json.dumps(dict(environment or {}))
    there = Path(__file__).with_name("there.py").read_text(encoding="utf-8")
    words = ["-c", there, mark, output, variables, "-m", "edgeinfer", *command]
    remote = " ".join(map(shlex.quote, [at.python, *words]))
    process = subprocess.Popen(
        [*ssh.client(device, at, asks=True), "--", at.host, remote],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    into, out, errors = process.stdin, process.stdout, process.stderr
    if into is None or out is None or errors is None:
        raise AssertionError("pipes were requested")
    said = _Said(process, errors)
    unread: list[OSError] = []

    def send() -> None:
        try:
            _send(into, files)
        except OSError as error:
            # The device waits for the rest.
            unread.append(error)
            process.kill()
            # What it started may have the pipe as well.
            with contextlib.suppress(OSError):
                into.close()

    # A device may answer before it has read everything, or instead.
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        answer = _answer(process, out, mark, device)
    finally:
        out.close()
        if sender.is_alive():
            process.kill()
        sender.join()
        # The program there ends with its input.
        with contextlib.suppress(BrokenPipeError):
            into.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.ended()
    if unread:
        raise EdgeInferError(f"device {device!r}: not everything was sent: {unread[0]}")
    if answer is None:
        raise NotAvailableError(_why(device, at, process.returncode, said.last))
    said.print()
    return answer


def _why(device: str, at: ssh.SshAddress, code: int, last: str) -> str:
    if code == ssh.FAILED:
        return f"device {device!r}: ssh: {last.removeprefix('ssh: ') or 'it ended with 255'}"
    if code == 127:
        return f"device {device!r}: no {at.python} there; ssh://HOST/PYTHON says which to use"
    return f"device {device!r}: {last or f'the connection ended with {code}'}"


class _Said(Printed):
    """Prints what comes over the connection for people, a line late, and keeps the last one."""

    _line = ""

    @property
    def last(self) -> str:
        """The last line; where there was too much, this."""
        return too_much() if self.is_too_much else self._line

    def print(self) -> None:
        """Print the last line."""
        if self._line:
            sys.stderr.write(f"{self._line}\n")

    def _part(self) -> bytes:
        return self._stream.readline(_LONGEST)

    def _take(self, part: bytes) -> None:
        self.print()
        self._line = visible(part.decode(errors="replace").rstrip()[:_LONGEST])


def _send(pipe: IO[bytes], files: Mapping[str, Path]) -> None:
    """Send the runtime and the files, as long as anybody reads them."""
    with contextlib.suppress(BrokenPipeError):
        _pack(pipe, files)


def _pack(pipe: IO[bytes], files: Mapping[str, Path]) -> None:
    with tarfile.open(fileobj=pipe, mode="w|", dereference=True) as archive:
        for name, content in _distribution().items():
            entry = tarfile.TarInfo(f"runtime/{name}")
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))
        for name, path in _package():
            archive.add(path, f"runtime/edgeinfer/{name}", recursive=False)
        for name, path in files.items():
            archive.add(path, f"files/{name}", recursive=False)
    pipe.flush()


def _package() -> Iterator[tuple[str, Path]]:
    """The files of this package that a device needs, as the wheel for devices has them."""
    package = Path(_version.__file__).parent
    for folder, inner, names in os.walk(package, followlinks=True):
        inner[:] = sorted(set(inner) - LEFT_OUT)
        for name in sorted(names):
            path = Path(folder, name)
            yield str(path.relative_to(package)), path


def _distribution() -> dict[str, bytes]:
    """What makes the files a distribution: its name for install lines, and its own backends."""
    folder = f"{RUNTIME.replace('-', '_')}-{_version.__version__}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {RUNTIME}\nVersion: {_version.__version__}\n"
    lines = [f"[{BACKENDS}]"]
    lines += sorted(
        {
            f"{entry.name} = {entry.value}"
            for entry in entry_points(group=BACKENDS)
            if entry.value.startswith("edgeinfer.")
        }
    )
    named = "\n".join(lines) + "\n"
    return {f"{folder}/METADATA": metadata.encode(), f"{folder}/entry_points.txt": named.encode()}


def _header(text: bytes, device: str) -> tuple[int, list[int]]:
    """Read the exit code and the sizes of what follows; a device may say anything.

    Raises:
        EdgeInferError: it is no answer, or a larger one than is taken.
    """
    try:
        found = parse_json(text)
        code, sizes = found["code"], found["sizes"]
    except (ValueError, LookupError, TypeError) as error:
        raise EdgeInferError(f"device {device!r}: no answer that this version knows") from error
    whole = [code, *sizes] if isinstance(sizes, list) else []
    if not 1 < len(whole) < 4 or not all(type(n) is int for n in whole) or min(whole[1:]) < 0:
        raise EdgeInferError(f"device {device!r}: no answer that this version knows")
    if sum(sizes) > MOST_SAID:
        raise EdgeInferError(f"device {device!r}: it gave {sum(sizes)} bytes; at most {MOST_SAID}")
    # What a signal ended has a code below zero.
    return (code if 0 <= code < 256 else 1), sizes


def _answer(
    process: subprocess.Popen[bytes], pipe: IO[bytes], mark: str, device: str
) -> CommandResult | None:
    """Read what comes back; a shell's start-up files may print before it."""
    begun = f"{mark} ".encode()
    read = 0
    while not (line := pipe.readline(_LONGEST)).startswith(begun):
        read += len(line)
        if not line or read > MOST_SAID:
            return None
    code, sizes = _header(line[len(begun) :], device)
    late = threading.Timer(_REST_S + sum(sizes) / _SLOWEST, process.kill)
    late.daemon = True
    late.start()
    try:
        parts = [pipe.read(size) for size in sizes]
    finally:
        late.cancel()
    if [len(part) for part in parts] != sizes:
        return None
    return CommandResult(code, parts[0].decode(errors="replace"), parts[1] if parts[1:] else None)
