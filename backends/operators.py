"""What an engine says of the operators it runs: where each lands, and what each costs.

Engines rename, merge and split a model's operators, so what is listed here are the engine's own
steps; ``nodes`` names the operators of the artifact that one computes, where the engine tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds

Role = Literal["compute", "copy", "reorder", "transpose", "convert", "manage"]
"""``manage`` is what an engine does for itself: memory, shapes, calls."""

SHOWN = 5
"""How many operators a message names; the report has all."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An operator that does not run on the unit that was requested.

    Attributes:
        name: Name of the operator; its type where it has none.
        kind: its type.
        unit: where it runs instead.
        reason: why, as far as the engine says.
    """

    name: str
    kind: str
    unit: str
    reason: str

    def __str__(self) -> str:
        named = self.kind if self.name in ("", self.kind) else f"{self.kind} {self.name!r}"
        return f"{named} on {self.unit} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the operators of a loaded artifact run.

    Attributes:
        unit: that was requested.
        ops: how many operators there are.
        elsewhere: those that run on another unit.
        told_by: how the engine said so.
    """

    unit: str
    ops: int
    elsewhere: tuple[Elsewhere, ...]
    told_by: str

    def __str__(self) -> str:
        if not self.elsewhere:
            return f"all {self.ops} operators run on {self.unit}, by {self.told_by}"
        named = ", ".join(map(str, self.elsewhere[:SHOWN]))
        more = len(self.elsewhere) - SHOWN
        return (
            f"{len(self.elsewhere)} of {self.ops} operators do not run on {self.unit}, by "
            f"{self.told_by}: {named}" + (f", and {more} more" if more > 0 else "")
        )


@runtime_checkable
class Placing(Protocol):
    """An executable that knows where its operators run."""

    def placement(self) -> Placement | None:
        """Say where they run; None where the engine does not tell."""
        ...


@dataclass(frozen=True, slots=True)
class Operator:
    """A step of an engine.

    Attributes:
        name: the engine's.
        kind: its type.
        unit: where it runs.
        us: mean microseconds a run, without steps inside of it; None where there is no clock.
        precision: it computes in; empty where the engine does not tell.
        role: what it is there for.
        nodes: operators of the artifact that it computes, where the engine tells.
    """

    name: str
    kind: str
    unit: str
    us: float | None
    precision: str = ""
    role: Role = "compute"
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """The steps of one artifact in one engine.

    Attributes:
        tool: whose clock timed them; empty where the engine has none.
        operators: in the order they run in.
        runs: how many were timed; where the engine tells each one, the quicker half of them counts.
        whole_us: mean of the same runs, by our own clock around the engine.
        plain_us: median of a run without it.
        note: what the figures do not say.
    """

    tool: str
    operators: tuple[Operator, ...]
    runs: int
    whole_us: float
    plain_us: float
    note: str = ""

    @property
    def timed_us(self) -> float:
        """What the operators take together."""
        return sum(op.us or 0.0 for op in self.operators)

    @property
    def covered(self) -> float:
        """Share of the whole run that the operators account for; above 1 where they overlap."""
        return self.timed_us / self.whole_us if self.whole_us else 0.0

    def by_role(self) -> dict[Role, tuple[int, float]]:
        """How many steps of each role there are, and what they take together."""
        found: dict[Role, tuple[int, float]] = {}
        for op in self.operators:
            count, us = found.get(op.role, (0, 0.0))
            found[op.role] = (count + 1, us + (op.us or 0.0))
        return found


@runtime_checkable
class Profiling(Protocol):
    """A backend that can say what each operator costs."""

    def profile(
        self, artifact: Artifact, options: LoadOptions, feeds: Feeds, *, runs: int
    ) -> OperatorProfile:
        """Open an artifact with the engine's own profiler and run it.

        Raises:
            NotAvailableError: the engine or the device is not here.
            LoadError: the engine refuses the artifact or an option.
            RunError: it fails.
        """
        ...


def timed(call: Callable[[], object], runs: int) -> list[float]:
    """Return what each of some runs took, in microseconds."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e6)
    return found


def undisturbed(spent: Sequence[float]) -> list[int]:
    """Return which runs were the quicker half: other work on the machine hit them least.

    Operators and whole runs are averaged over the same ones, or their sums could not be compared.
    """
    order = sorted(range(len(spent)), key=lambda i: spent[i])
    return sorted(order[: max(1, (len(order) + 1) // 2)])


def role_of(kind: str, table: Mapping[str, Role]) -> Role:
    """What a step is there for, by its type."""
    return table.get(kind, "compute")
