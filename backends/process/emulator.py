"""Python for another CPU, run here under qemu-user.

An emulator is used for its numbers only: how long anything takes under it says nothing. It needs
an arm64 userland with the engines' wheels, which ``python -m edgeinfer.convert.arm_userland`` makes
in the user's cache. EDGEINFER_QEMU names the emulator, EDGEINFER_ARM the folder.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path

from edgeinfer import _version
from edgeinfer.errors import NotAvailableError
from edgeinfer.machine.sysfs import text
from edgeinfer.records import dataclass

QEMU, FOLDER = "EDGEINFER_QEMU", "EDGEINFER_ARM"
OLDEST = 9
"""Under qemu-user 7.2 engines crash that run on a device."""

INSTALL = (
    "apt-get install qemu-user debootstrap (9 or newer: bookworm-backports, trixie), then "
    "python -m edgeinfer.convert.arm_userland"
)
_PYTHON = "usr/bin/python3.11"

_FAMILIES = {
    **dict.fromkeys(("x86_64", "amd64", "i686", "i386"), "x86"),
    **dict.fromkeys(("aarch64", "arm64", "armv8l", "armv7l", "armv6l", "arm"), "arm"),
}
"""Architectures whose programs the other's kernel runs by itself, in 64 bits and in 32."""


@dataclass(frozen=True, slots=True)
class Emulator:
    """How Python is started for another CPU.

    Attributes:
        command: up to Python's own arguments.
        environment: variables in addition to this process's own.
        version: Version of the emulator.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


def emulated() -> str:
    """Return the architecture of the kernel where this very process is for another; else nothing.

    An emulator shows a program the CPU that it asks for, but the kernel's files as they are.
    """
    mine = _FAMILIES.get(platform.machine().lower(), "")
    kernel = text(Path("/proc/sys/kernel/arch"))
    if not kernel and text(Path("/proc/self/status")).startswith("Name:\tqemu-"):
        kernel = "another"
    return kernel if mine and kernel and _FAMILIES.get(kernel, "") != mine else ""


def folder() -> Path:
    """Return where the userland is: ``root`` is Debian's, ``site`` has the wheels."""
    if given := os.environ.get(FOLDER):
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgeinfer-arm"))


def emulator(arch: str, cpu: str) -> Emulator:
    """Return what runs Python for a CPU.

    Raises:
        NotAvailableError: there is no emulator, or nothing to run in it; has the install line.
    """
    if arch != "aarch64":
        raise NotAvailableError(f"code for {arch} cannot be run here, there is no emulator for it")
    where = folder()
    root, site = where / "root", where / "site"
    qemu, version = _qemu(os.environ.get(QEMU, ""))
    for needed in (root / _PYTHON, site / "numpy", site / "tvm_ffi"):
        if not needed.exists():
            raise NotAvailableError(f"code for {cpu} needs {needed} to be tried here; {INSTALL}")
    source = Path(_version.__file__).parents[1]
    command = (qemu, "-cpu", cpu, "-L", str(root), str(root / _PYTHON))
    environment = {"PYTHONPATH": f"{site}{os.pathsep}{source}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Emulator(command, environment, version)


@cache
def _qemu(given: str) -> tuple[str, str]:
    """Return path and version of an emulator that the engines run under."""
    old = ""
    for name in (given,) if given else ("qemu-aarch64", "qemu-aarch64-static"):
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"version ((\d+)[\d.]*)", said.stdout)
        if found and int(found[2]) >= OLDEST:
            return path, found[1]
        old = f"{path} is {found[1] if found else 'of unknown version'}; "
    what = f"{QEMU}={given}" if given else "qemu-aarch64"
    raise NotAvailableError(
        f"code for aarch64 needs an emulator to be tried here: {old or f'{what} is missing; '}"
        f"{INSTALL}"
    )
