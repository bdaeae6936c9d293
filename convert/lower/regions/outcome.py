"""What is asked of a race of regions, and what came out of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from edgeinfer.types import Array

MODULE = "edgeinfer.convert.lower.regions.race"
"""The process that races."""

WORTH = 1.03
"""How many times as fast the whole model has to be for a region to stay."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for.

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
class Trial:
    """What became of one part.

    Attributes:
        name: of the operator that stands for it.
        nodes: names of the nodes that it replaces.
        kept: whether it stays.
        reason: why not, or how it was measured.
        before_us: the whole model without it, median of rounds of a bound call.
        after_us: with it.
        before_cpu_us: time of the processor, likewise.
        after_cpu_us: with it.
        gain: how many times as fast the whole model is, median of the rounds.
        sure: how many times as fast three rounds in four at least were.
        sure_cpu: the same by time of the processor.
        spread: of ``after_us``, half the distance of the quartiles over the median.
        rounds: measured in turns.
        engine_us: what the nodes take by the engine's profile.
    """

    name: str
    nodes: tuple[str, ...]
    kept: bool = False
    reason: str = ""
    before_us: float = 0.0
    after_us: float = 0.0
    before_cpu_us: float = 0.0
    after_cpu_us: float = 0.0
    gain: float = 0.0
    sure: float = 0.0
    sure_cpu: float = 0.0
    spread: float = 0.0
    rounds: int = 0
    engine_us: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What came out.

    Attributes:
        trials: in the order they were made.
        final: one last race of all regions that stay against the graph without any.
        left: how many parts were not tried, for want of time.
        notes: of the code that was written.
    """

    trials: list[Trial] = field(default_factory=list)
    final: Trial | None = None
    left: int = 0
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> list[Trial]:
        """Regions that stay."""
        return [t for t in self.trials if t.kept]


def to_json(outcome: Outcome) -> bytes:
    """What is written beside the graph."""
    data = {
        "trials": [dataclasses.asdict(t) for t in outcome.trials],
        "whole": dataclasses.asdict(outcome.final) if outcome.final else None,
        "left": outcome.left,
    }
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
