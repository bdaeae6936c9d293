"""The machine that this process runs on: whose times it takes, and whose device it is."""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path

from edgeinfer.machine import apple_chips
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.cpu import usual_name
from edgeinfer.machine.sysfs import text
from edgeinfer.profiles.schema import Profile
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class MachineHost:
    """A machine, as far as a reader of figures must know it.

    Attributes:
        processor: its own name.
        arch: ``x86_64``, ``aarch64`` or what the system calls it.
        system: ``linux``, ``macos``, ``windows`` or what Python calls it.
        cpus: how many CPUs this process may keep busy.
    """

    processor: str
    arch: str
    system: str
    cpus: int

    def is_kind(self, profile: Profile) -> bool:
        """Whether a target's devices are of this system and architecture."""
        return (not profile.arch or self.arch in profile.arch) and self.system in profile.os

    def __str__(self) -> str:
        """Name it in a report."""
        return f"{self.processor} ({self.arch}, {self.system})"


@functools.cache
def host() -> MachineHost:
    """Return this machine."""
    return MachineHost(
        _processor(),
        {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine()),
        {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform),
        available_cpus(),
    )


def _processor() -> str:
    for line in text(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return apple_chips.processor() or usual_name()
