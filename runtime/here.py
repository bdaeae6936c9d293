"""This machine and what each engine can use of it."""

from __future__ import annotations

from edgeinfer.backends import registry
from edgeinfer.backends.base import Probe
from edgeinfer.machine import fingerprint as machines
from edgeinfer.machine.fingerprint import Facts, Fingerprint
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class Devices:
    """This machine and what each engine can use of it.

    Attributes:
        machine: what measurements are kept under.
        facts: what the system says of processor, memory, board, GPUs, heat and power.
        backends: one probe for each engine: its version and devices, or why it cannot run.
    """

    machine: Fingerprint
    facts: Facts
    backends: tuple[Probe, ...]

    def __repr__(self) -> str:
        usable = ", ".join(p.backend for p in self.backends if p.available)
        return f"<Devices {self.machine.cpu} ({self.machine.arch}): {usable or 'no engine'}>"


def devices() -> Devices:
    """Look at this machine and ask each engine what it can use of it."""
    facts = machines.read_facts()
    return Devices(machines.fingerprint(facts), facts, registry.probe_all())
