"""Where a device is that ssh reaches, and how ssh is called."""

from __future__ import annotations

import os
import re
import shutil
import sys

from edgeinfer.bounded import split_address
from edgeinfer.errors import NotAvailableError, UsageError
from edgeinfer.records import dataclass

SCHEME = "ssh://"
CLIENT = "EDGEINFER_SSH"
"""Names another client than ``ssh`` that takes its options."""

FAILED = 255
"""Exit code of ssh itself; every other one is the command's."""

_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
_HOST, _USER = re.compile(r"[\w.:%-]+"), re.compile(r"[\w.@+\\-]*")


@dataclass(frozen=True, slots=True)
class SshAddress:
    """``ssh://[user@]host[:port][/python]``.

    Attributes:
        host: with the user, as ssh takes it.
        port: Port of its server; None is ssh's own choice.
        python: that runs there.
    """

    host: str
    port: int | None = None
    python: str = "python3"


def place(device: str) -> SshAddress:
    """Read where a device is.

    Raises:
        UsageError: that is no place.
    """
    try:
        found = split_address(device)
    except ValueError as error:
        raise UsageError(f"device {device!r}: {error}") from error
    host, user, port = found.hostname or "", found.username or "", found.port
    wrong = not _HOST.fullmatch(host) or host.startswith("-")
    wrong = wrong or not _USER.fullmatch(user) or user.startswith("-")
    if found.scheme != "ssh" or wrong or found.password or found.query or found.fragment:
        raise UsageError(f"device {device!r}: expected ssh://[USER@]HOST[:PORT][/PYTHON]")
    # Names of hosts in ssh's configuration may have capitals, which ``hostname`` loses.
    name = found.netloc.rpartition("@")[2]
    name = name[: len(name) - len(f":{port}")] if port is not None else name
    name = name.strip("[]")
    return SshAddress(f"{user}@{name}" if user else name, port, found.path or "python3")


def client(device: str, at: SshAddress, *, asks: bool = False) -> list[str]:
    """Return the command of ssh up to the host's name.

    Args:
        device: as the user wrote it, for messages.
        at: the same, read.
        asks: whether ssh may ask for a password where somebody sits at the terminal.

    Raises:
        NotAvailableError: there is no ssh.
    """
    name = os.environ.get(CLIENT, "ssh")
    found = shutil.which(name)
    if found is None:
        raise NotAvailableError(f"device {device!r} needs {name}; apt-get install openssh-client")
    asks = asks and sys.stdin is not None and sys.stdin.isatty()
    batch = () if asks else ("-o", "BatchMode=yes")
    port = ("-p", str(at.port)) if at.port else ()
    return [found, *batch, "-o", "ConnectTimeout=15", *_ALIVE, *port]


def last_line(text: bytes) -> str:
    """Return the last line of what a program said, shortened."""
    lines = [x.strip() for x in text.decode(errors="replace").splitlines() if x.strip()]
    return lines[-1][:200] if lines else ""
