"""What this machine is, as far as it decides which artifact is best on it."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends.checks import available_cpus

__all__ = ["Fingerprint", "available_cpus", "fingerprint"]

_DECISIVE = frozenset(
    {
        *("f16c", "fma", "avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("avx_vnni", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "sme", "neon", "vfpv4"),
    }
)
"""Features that kernels are chosen by; the rest of the list differs between systems on one CPU."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A device, for telling whether what was measured on one counts on another.

    Attributes:
        os: ``linux``, ``macos`` or ``windows``.
        arch: ``x86_64``, ``aarch64`` or what the system calls it.
        cpu: the processor's own name.
        features: instruction sets that kernels are chosen by, sorted.
        cpus: how many CPUs this process may keep busy.
        memory_mb: memory of the machine; 0 when unknown.
    """

    os: str
    arch: str
    cpu: str
    features: tuple[str, ...]
    cpus: int
    memory_mb: int = 0

    @property
    def key(self) -> str:
        """Short digest of what decides speed; memory is left out."""
        text = "\n".join((self.os, self.arch, self.cpu, *self.features, str(self.cpus)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint() -> Fingerprint:
    """Look at this machine."""
    name, features = _cpu()
    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    machine = platform.machine().lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    return Fingerprint(system, arch, name, features, available_cpus(), _memory_mb())


@functools.cache
def _cpu() -> tuple[str, tuple[str, ...]]:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), ()
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the processor's name and decisive features from the text of ``/proc/cpuinfo``."""
    keys = dict(re.findall(r"(?m)^([^\t:\n]+?)\s*:[ \t]*(.*)$", text))
    parts = (keys.get("CPU implementer"), keys.get("CPU part"))
    name = keys.get("model name") or keys.get("Hardware") or " ".join(p for p in parts if p)
    flags = keys.get("flags") or keys.get("Features") or ""
    return name or platform.machine(), tuple(sorted(_DECISIVE & set(flags.split())))


def _memory_mb() -> int:
    if sys.platform == "win32":
        return 0
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    except (OSError, ValueError):
        return 0
