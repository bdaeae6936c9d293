"""The outcome of a choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from edgeinfer.backends.base import Executable
from edgeinfer.bundle.manifest import Variant
from edgeinfer.machine.fingerprint import Fingerprint
from edgeinfer.records import dataclass
from edgeinfer.runtime.failover import SurvivingExecutable
from edgeinfer.runtime.select import Candidate, Plan
from edgeinfer.runtime.settling import SettlingExecutable


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and everything that was considered.

    Attributes:
        executable: loaded.
        concurrent: whether it takes several runs at once.
        candidate: the pair it is.
        variant: its variant.
        plan: the ranking that put it first.
        machine: this machine.
        threads: that it was loaded with.
        notes: what the user should know.
        isolated: whether the engine runs in a process of its own.
        variants: all of the bundle, by id.
    """

    executable: Executable
    concurrent: bool
    candidate: Candidate
    variant: Variant
    plan: Plan
    machine: Fingerprint
    threads: int
    notes: tuple[str, ...]
    isolated: bool = False
    variants: Mapping[str, Variant] = field(default_factory=dict)

    @property
    def ranking(self) -> Plan:
        """The ranking that put first what runs now."""
        if isinstance(self.executable, SettlingExecutable):
            return self.executable.plan
        return self.plan

    @property
    def current(self) -> tuple[Candidate, Variant]:
        """What runs now: the choice, or what took over from it."""
        if not isinstance(self.executable, SurvivingExecutable | SettlingExecutable):
            return self.candidate, self.variant
        candidate = self.executable.candidate
        return candidate, self.variants[candidate.pair.variant]
