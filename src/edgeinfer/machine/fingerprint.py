"""What this machine is, as far as it decides which artifact is best on it."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from edgeinfer.machine.board import Gpu
from edgeinfer.machine.cgroup import available_cpus
from edgeinfer.machine.device import DeviceKind
from edgeinfer.machine.facts import Facts, read_facts
from edgeinfer.machine.power import power_mode
from edgeinfer.records import dataclass

__all__ = ["Facts", "Fingerprint", "fingerprint", "known_facts", "read_facts"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A device, for telling whether what was measured on one counts on another.

    Attributes:
        os: ``linux``, ``android``, ``macos`` or ``windows``.
        arch: ``x86_64``, ``aarch64`` or what the system calls it.
        cpu: the processor's own name.
        features: instruction sets that kernels are chosen by, sorted.
        cpus: how many CPUs this process may keep busy.
        memory_mb: memory of the machine; 0 when unknown.
        gpus: NVIDIA GPUs, each with its driver, as far as somebody requested them.
        power_mode: a Jetson's or a Mac's; it caps the clocks.
    """

    os: str
    arch: str
    cpu: str
    features: tuple[str, ...]
    cpus: int
    memory_mb: int = 0
    gpus: tuple[str, ...] = ()
    power_mode: str = ""

    def key(self, kind: DeviceKind) -> str:
        """Return a short digest of what decides the speed of a kind of unit; memory is left out.

        NVIDIA's GPUs are part of a GPU's alone, so that whoever uses none need not ask for them.
        """
        parts = (self.os, self.arch, self.cpu, *self.features, str(self.cpus))
        gpus = self.gpus if kind == "gpu" else ()
        text = "\n".join((*parts, *gpus, *filter(None, [self.power_mode])))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(facts: Facts | None = None, *, ask_driver: bool = False) -> Fingerprint:
    """Return what identifies a device.

    Args:
        facts: Facts of the device; None looks at this one.
        ask_driver: whether NVIDIA's driver then tells of its GPUs, as in ``read_facts``.
    """
    here = facts or known_facts(ask_driver=ask_driver)
    # A Jetson's owner may change it while a program runs for months.
    mode = here.power.mode if facts or here.os == "macos" else power_mode(Path("/"))
    return Fingerprint(
        os=here.os,
        arch=here.arch,
        cpu=here.cpu.name,
        features=here.cpu.features,
        cpus=available_cpus(),
        memory_mb=here.memory_mb,
        gpus=tuple(map(_identity, here.gpus)),
        # A governor comes and goes with the load; a power mode is set by the owner.
        power_mode=mode if mode.startswith("nvpmodel") or mode.endswith("power mode") else "",
    )


def _identity(gpu: Gpu) -> str:
    """What decides a GPU's speed; a lowered power limit caps its clock for good."""
    limit = f", limited to {gpu.power_limit_w} W" if gpu.power_limit_w is not None else ""
    return f"{gpu.name}, driver {gpu.driver or 'unknown'}{limit}"


def known_facts(*, ask_driver: bool = False) -> Facts:
    """Return the facts of this device in brief, as they were first read.

    Args:
        ask_driver: as in ``read_facts``.
    """
    return _known(ask_driver)


@functools.cache
def _known(ask_driver: bool) -> Facts:
    return read_facts(Path("/"), ask_driver=ask_driver, brief=True)
