"""What is asked of a race of regions, and what came out of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import field
from pathlib import Path

from edgeinfer.records import dataclass
from edgeinfer.types import Array

MODULE = "edgeinfer.convert.lower.regions.race"
"""The process that races."""

WORTH = 1.03
"""How many times as fast the whole model has to be for a region to stay."""


@dataclass(frozen=True, slots=True)
class RegionRequest:
    """What is requested.

    Attributes:
        plain: the graph as the engine gets it otherwise.
        folder: where the graph with regions and their library go.
        machine: instruction set of the code.
        records: files of tuned kernels.
        feeds: inputs to time with.
        seconds: after which nothing new is tried.
    """

    plain: Path
    folder: Path
    machine: str
    records: tuple[str, ...]
    feeds: dict[str, Array]
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Two graphs measured in turns by bound calls; microseconds, medians of rounds.

    Attributes:
        before: without a region.
        after: with it.
        before_cpu: time of the processor.
        after_cpu: likewise.
        gain: how many times as fast, median of the rounds.
        sure: how many times as fast three rounds in four at least were.
        sure_cpu: the same by time of the processor.
        spread: Spread of ``after``, half the distance of the quartiles over the median.
        rounds: that were measured.
    """

    before: float
    after: float
    before_cpu: float
    after_cpu: float
    gain: float
    sure: float
    sure_cpu: float
    spread: float
    rounds: int

    @property
    def pays(self) -> bool:
        """Whether the gain is worth it, and no noise.

        By the clock it has to be faster. That this is no noise has to show in three rounds of
        four, by the clock or, where other work disturbs that, by the time of the processor.
        """
        return self.gain > WORTH and max(self.sure, self.sure_cpu) > WORTH

    def __str__(self) -> str:
        return (
            f"{self.gain:.2f} times as fast, {self.after:.3g} µs for {self.before:.3g}; three "
            f"rounds in four of {self.rounds} at least {self.sure:.2f}, by processor time "
            f"{self.sure_cpu:.2f} (±{self.spread:.0%})"
        )


@dataclass(slots=True)
class Trial:
    """What became of one part.

    Attributes:
        name: Name of the operator that stands for it.
        nodes: names of the nodes that it replaces.
        kept: whether it stays.
        reason: why it does not; empty where figures say it.
        alone: the part by itself, in the engine and as code in the engine.
        whole: the whole model without and with this part as code, where that was asked.
    """

    name: str
    nodes: tuple[str, ...]
    kept: bool = False
    reason: str = ""
    alone: Figures | None = None
    whole: Figures | None = None

    @property
    def saved_us(self) -> float:
        """What the part alone saves."""
        return self.alone.before - self.alone.after if self.alone is not None else 0.0


@dataclass(slots=True)
class RegionOutcome:
    """What came out.

    Attributes:
        trials: in the order they were made.
        final: the whole model without any region and with all that stay.
        left: how many parts were not tried, for want of time.
        notes: Notes of the code that was written.
    """

    trials: list[Trial] = field(default_factory=list)
    final: Figures | None = None
    left: int = 0
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> list[Trial]:
        """Regions that stay."""
        return [t for t in self.trials if t.kept]


def to_json(outcome: RegionOutcome) -> bytes:
    """What is written next to the graph."""
    data = dataclasses.asdict(outcome)
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
