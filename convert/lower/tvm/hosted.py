"""Libraries of C around TVM's objects, which need nothing of TVM on the device."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from edgeinfer.backends.tvm import library
from edgeinfer.convert.lower.tvm.machines import Machine
from edgeinfer.errors import NotAvailableError

_HEADERS = Path(__file__).parent
"""Has ``hosted.h``, which each C file includes."""

_SHARED = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-s")
_CLOSED = ("-Wl,-Bsymbolic", "-Wl,--no-undefined", "-Wl,--exclude-libs,ALL")


def link(
    driver: str, parts: Sequence[str], path: Path, kind: str, machine: Machine, *, parallel: bool
) -> None:
    """Link a library and append its description.

    Args:
        driver: the compiler driver that links.
        parts: definitions, C files and objects, in the driver's terms.
        path: Path of the library.
        kind: one of ``library.KINDS``.
        machine: that the objects are for.
        parallel: its functions share work out among threads.

    Raises:
        NotAvailableError: the driver fails.
    """
    command = [driver, *_SHARED, *_CLOSED, f"-I{_HEADERS}", *parts, "-lm", "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotAvailableError(f"{driver} cannot link {kind}: {done.stderr.strip()[-500:]}")
    about = {
        "kind": kind,
        "machine": machine.name,
        "features": list(machine.features),
        "device": "cpu",
        "parallel": parallel,
        "inputs": [],
        "outputs": [],
        "tvm": version("apache-tvm"),
    }
    library.append(path, about, [])
