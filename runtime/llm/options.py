"""How an engine works."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a step may take.

    Attributes:
        slowdown: a step that also reads prompts takes at most so many times what the running
            sequences alone take.
        step_s: seconds that such a step may take even if that is more; None for none.
        chunk: the most tokens of prompts in a step.
        reading_s: seconds that a step which only reads prompts may take: so long a new request, a
            cancellation or a question waits at most.
    """

    slowdown: float = 2.0
    step_s: float | None = None
    chunk: int = 512
    reading_s: float = 0.25


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine works.

    Attributes:
        limits: Limits of a step.
        max_queue: requests that may wait; more are refused.
        lookup: guess by copying what followed the same words before.
        disk: folder for pages of the cache that outlive the process; None for none.
        disk_mb: that its files may have together.
        calibrate: measure steps when the engine is opened.
    """

    limits: StepLimits = field(default_factory=StepLimits)
    max_queue: int = 1024
    lookup: bool = True
    disk: Path | None = None
    disk_mb: int = 1024
    calibrate: bool = True
