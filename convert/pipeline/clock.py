"""How far a conversion is: stages that are counted ahead, timed, and reported to the user."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edgeinfer.convert.pipeline.plan import Job, shared
from edgeinfer.convert.pipeline.request import Request
from edgeinfer.convert.pipeline.rows import conversions, on_request
from edgeinfer.convert.quantize.half.stage import is_here
from edgeinfer.convert.quantize.recipe import AUTO, recipe
from edgeinfer.machine.host import host
from edgeinfer.records import dataclass
from edgeinfer.types import Progress

_OPENING = 3
"""The model is read, normalised, and checked against the targets."""

ASKING = 2
"""Test vectors are gathered, and the oracles are asked; once for all precisions."""

_WRITING = 1

_COMPARED = frozenset({"onnx", "openvino_ir", "tflite"})
"""Formats whose engine computes integers and floats, and takes its time from what it is given."""

_COUNTED = re.compile(r"stage [0-9]+ of [0-9]+: ")


@dataclass(slots=True)
class Stages:
    """How far a conversion is.

    Attributes:
        number: Number of the stage that runs, from 1.
        total: how many there will be; 0 where nobody counts.
        after: how many belong to what follows this conversion in the same command.
    """

    number: int = 0
    total: int = 0
    after: int = 0

    def expect(self, left: int) -> None:
        """Say how many are left of this conversion: what was foreseen and is not done is skipped.

        So the total stays what it was, and only grows where more is to be done than was foreseen.
        """
        left += self.after
        self.total = max(self.total, self.number + left)
        self.number = self.total - left

    def go_on_behind(self, other: Stages) -> None:
        """Go on where another conversion of the same command has come to its end."""
        other.expect(0)
        self.number, self.total, self.after = other.number, other.total, other.after


def foreseen(request: Request) -> Stages:
    """Return the stages of a conversion before its model was read."""
    after = _WRITING + sum(_of_one(further) for further in conversions(request))
    return Stages(total=ASKING + _of_one(request) + after, after=after)


def followed(stages: Stages, request: Request) -> Stages:
    """Return the stages of a conversion to a further precision, which go on where one was."""
    return Stages(stages.number, stages.total, stages.after - _of_one(request))


def _of_one(request: Request) -> int:
    integers = recipe(request.precision).is_quantized
    jobs = shared(request.profiles, integers, frozenset())
    return _OPENING + lowering(request, jobs) + judging(request, jobs)


def lowering(request: Request, jobs: Sequence[Job]) -> int:
    """Count the stages that write so many artifacts."""
    wanted = recipe(request.precision)
    extra = sum(
        not is_here(kind, job.profile, job.format)
        for job in jobs
        for kind in requested(request, job)
    )
    each = 1 + (wanted.name in ("fp16", "bf16")) + request.layers
    return wanted.is_quantized + each * len(jobs) + extra


def judging(request: Request, jobs: Sequence[Job]) -> int:
    """Count the stages that run them."""
    each = 1 + request.layers
    return sum(each + len(requested(request, job)) + is_raced(request, job) for job in jobs)


def is_raced(request: Request, job: Job) -> bool:
    """Whether an artifact of integers is timed against the float model, on this machine."""
    asked = recipe(request.precision)
    if not asked.is_quantized or asked.name == AUTO or job.format not in _COMPARED:
        return False
    return any(host().is_kind(profile) for profile in job.profiles)


def requested(request: Request, job: Job) -> tuple[str, ...]:
    """Return the precisions that engines of an artifact are set to compute it in besides."""
    kinds = (k for p in job.profiles for k in on_request(p, job.format, request.also))
    return tuple(dict.fromkeys(kinds))


def uncounted(what: str) -> str:
    """Return what is being done, without how far a conversion is."""
    return _COUNTED.sub("", what, count=1)


class StageClock:
    """Tells the user what is being done and how far it is, and remembers how long it took."""

    def __init__(
        self,
        progress: Progress | None,
        seconds: dict[str, float] | None = None,
        stages: Stages | None = None,
    ) -> None:
        self.seconds = {} if seconds is None else seconds
        self.stages = stages or Stages()
        self._progress = progress

    @contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Time a stage."""
        self.stages.number += 1
        self.tell(what, None)
        start = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def tell(self, what: str, done: float | None) -> None:
        """Say what is being done within a stage, and what share of the stage is done."""
        if self._progress is None:
            return
        stages = self.stages
        if not stages.total:
            self._progress(what, done)
            return
        # A stage that is repeated was not foreseen.
        total = max(stages.total, stages.number)
        share = (stages.number - 1 + (done or 0.0)) / total
        self._progress(f"stage {stages.number} of {total}: {what}", min(share, 1.0))
