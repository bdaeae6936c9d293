"""Two graphs timed in turns, and their results compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert.lower.regions.outcome import Figures
from edgeinfer.errors import RunError
from edgeinfer.records import dataclass
from edgeinfer.types import Array

ROUNDS = 21
_TURNS = 4
_LEAST_ROUNDS = 9
_BATCH_S = 0.002
_RACE_S = 8.0
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call in each round, by the clock and of the processor."""

    wall: list[float]
    cpu: list[float]


def compare(artifacts: Sequence[Artifact], feeds: Mapping[str, Array]) -> Figures:
    """Run two graphs of the same inputs and outputs in turns.

    Raises:
        BackendError: one cannot be opened or run, or gives other numbers than the first.
    """
    backend = registry.get("onnxruntime")
    loaded = [backend.load(artifact, LoadOptions()) for artifact in artifacts]
    try:
        results = [executable.run(feeds) for executable in loaded]
        if (fault := difference(*results)) is not None:
            raise RunError(fault)
        calls = [
            executable.bind(feeds, {k: np.empty_like(v) for k, v in result.items()})
            for executable, result in zip(loaded, results, strict=True)
        ]
        return figures(*in_turns(calls))
    finally:
        for executable in loaded:
            executable.close()


def figures(before: Times, after: Times) -> Figures:
    """Put together what was measured round by round."""
    ratios = _ratios(before.wall, after.wall)
    low, middle, high = np.quantile(after.wall, (0.25, 0.5, 0.75))
    return Figures(
        before=median(before.wall) * 1e6,
        after=float(middle) * 1e6,
        before_cpu=median(before.cpu) * 1e6,
        after_cpu=median(after.cpu) * 1e6,
        gain=float(median(ratios)),
        sure=float(np.quantile(ratios, 0.25)),
        sure_cpu=float(np.quantile(_ratios(before.cpu, after.cpu), 0.25)),
        spread=float((high - low) / 2 / middle),
        rounds=len(before.wall),
    )


def _ratios(before: list[float], after: list[float]) -> list[float]:
    return [b / max(a, 1e-9) for b, a in zip(before, after, strict=True)]


def in_turns(calls: Sequence[Callable[[], object]]) -> list[Times]:
    """Time calls in turns, for a bounded time.

    A round has several turns, of which the least counts: other work on the machine only adds. Every
    other turn goes backwards: on a busy machine a slice of time ends again and again in the second
    of two calls.
    """
    counts = []
    spent = 0.0
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        took = max(1e-7, time.perf_counter() - start)
        counts.append(max(1, int(_BATCH_S / took)))
        spent += counts[-1] * took * _TURNS
    rounds = max(_LEAST_ROUNDS, min(ROUNDS, int(_RACE_S / spent)))
    found = [Times([], []) for _ in calls]
    for _ in range(rounds):
        turns: list[list[tuple[float, float]]] = [[] for _ in calls]
        for turn in range(_TURNS):
            order = range(len(calls)) if turn % 2 == 0 else reversed(range(len(calls)))
            for index in order:
                turns[index].append(_timed(calls[index], counts[index]))
        for times, mine in zip(found, turns, strict=True):
            times.wall.append(min(wall for wall, _ in mine))
            times.cpu.append(min(cpu for _, cpu in mine))
    return found


def _timed(call: Callable[[], object], count: int) -> tuple[float, float]:
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count, (time.process_time() - cpu) / count


def difference(before: Mapping[str, Array], after: Mapping[str, Array]) -> str | None:
    """Say how far results are apart where that is too far; the gate judges them later."""
    for name, wanted in before.items():
        found = after[name]
        if wanted.shape != found.shape:
            return f"output {name!r} has another shape"
        if wanted.dtype.kind != "f":
            continue
        finite = np.isfinite(wanted)
        scale = float(np.max(np.abs(wanted), initial=0.0, where=finite)) or 1.0
        if not np.allclose(wanted, found, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
            return f"output {name!r} is another one than the engine's"
    return None
