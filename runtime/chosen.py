"""The outcome of a choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from edgeinfer.backends.base import Executable
from edgeinfer.bundle.manifest import Variant
from edgeinfer.machine.fingerprint import Fingerprint
from edgeinfer.records import dataclass
from edgeinfer.runtime.select import Candidate, Plan


class Changing:
    """An executable whose engine may give way to another one.

    Attributes:
        candidate: What runs now.
        plan: The ranking that put it first, where that is another one than the choice's.
    """

    candidate: Candidate
    plan: Plan | None = None

    def after(self, last: Callable[[], None]) -> None:
        """Call once nothing needs the bundle any more."""
        last()


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
        running = self.executable
        return running.plan or self.plan if isinstance(running, Changing) else self.plan

    @property
    def current(self) -> tuple[Candidate, Variant]:
        """What runs now: the choice, or what took over from it."""
        if not isinstance(self.executable, Changing):
            return self.candidate, self.variant
        candidate = self.executable.candidate
        return candidate, self.variants[candidate.pair.variant]
