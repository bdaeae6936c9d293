"""Try parts of a graph as code, each in the whole model, and keep those that make it faster.

A process of its own: what is tried is machine code that nobody ran before, and a compiler that may
take long over it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.backends import child, registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.checks import one_line
from edgeinfer.backends.onnxruntime_regions import FORMAT, LIBRARY
from edgeinfer.convert import onnx_file
from edgeinfer.convert.lower.regions import candidates, cut
from edgeinfer.convert.lower.regions.candidates import Candidate
from edgeinfer.convert.lower.regions.outcome import WORTH, Order, Outcome, Trial
from edgeinfer.errors import BackendError, EdgeInferError
from edgeinfer.types import Array

ROUNDS = 21
_TURNS = 3
_LEAST_ROUNDS = 9
_BATCH_S = 0.004
_RACE_S = 8.0
_PROFILED = 24
_MOST_FUSED = 4
_MOST_TRIED = 8
_TOLERANCE = 1e-3


class Racer:
    """Knows what was tried; told what is being tried."""

    def __init__(self, order: Order, tell: Callable[[str], None]) -> None:
        self._order, self._tell = order, tell
        self._until = time.monotonic() + order.seconds
        self._model = _named(order.plain)
        self._outcome = Outcome()
        self._compiled: list[Any] = []
        self._removed: set[str] = set()
        self._loaded = LoadOptions()

    def run(self) -> Outcome:
        """Race."""
        order = self._order
        engine_us = self._profile()
        least = (WORTH - 1) * sum(engine_us.values())

        def promising(nodes: Iterable[ir.Node]) -> list[Candidate]:
            found = candidates.find(self._model, engine_us, nodes)
            return [c for c in found if c.gain_us > least]

        if not promising(self._model.graph):
            return self._outcome
        # The compiler is loaded here and not before.
        from edgeinfer.convert.lower.regions.library import supported
        from edgeinfer.convert.lower.tvm import tuned
        from edgeinfer.convert.lower.tvm.machines import machine

        self._machine = machine(order.machine)
        self._tuning = tuned.for_machine(self._machine, order.records)
        tried = promising(supported(self._model))
        for index, candidate in enumerate(tried):
            if time.monotonic() > self._until or index >= _MOST_TRIED:
                self._outcome.left = len(tried) - index
                break
            if self._removed & {n.name or "" for n in candidate.nodes}:
                continue
            self._tell(f"region {index + 1} of {len(tried)}: {candidate.title}")
            self._outcome.trials.append(self._tried(candidate, f"Region{index}"))
        if self._outcome.kept:
            self._outcome.final = self._compare(
                order.plain, "onnx", self._graph(), "all regions", ()
            )
        self._outcome.notes = tuple(self._tuning.lines())
        return self._outcome

    def _profile(self) -> dict[str, float]:
        """Microseconds of each operator in the engine, by name."""
        path = self._order.folder / "named.onnx"
        onnx_file.save(self._model, path)
        backend = registry.get("onnxruntime")
        told = backend.profile(  # type: ignore[attr-defined]
            Artifact("onnx", path, (), ()), self._loaded, self._order.feeds, runs=_PROFILED
        )
        path.unlink()
        # The clock is coarse, and going from one operator to the next is in none of the figures.
        between = max(0.0, told.plain_us - told.timed_us) / max(1, len(told.operators))
        makers = {n.name or "": n for n in self._model.graph}
        makers |= {v.name or "": n for n in self._model.graph for v in n.outputs}
        found: dict[str, float] = {}
        for step in told.operators:
            for name in step.nodes:
                if (node := origin(name, step.kind, makers)) is not None:
                    us = (step.us or 0.0) + between
                    found[node.name or ""] = found.get(node.name or "", 0.0) + us
        return found

    def _tried(self, candidate: Candidate, name: str) -> Trial:
        from edgeinfer.convert.lower.regions.library import NotARegionError, compile_region

        nodes = tuple(n.name or "" for n in candidate.nodes)
        before = self._best()
        kept = self._model
        model = kept.clone()
        by_name = {n.name: n for n in model.graph}
        part = [by_name[n] for n in nodes]
        try:
            made = compile_region(cut.taken_out(model, part), name, self._machine, self._tuning)
        except NotARegionError as error:
            return Trial(name, nodes, reason=f"it cannot be written: {error}")
        except Exception as error:  # the compiler raises types of its own
            return Trial(name, nodes, reason=f"the compiler fails: {one_line(error)}")
        cut.put_in(model, part, name, made.weights)
        self._compiled.append(made)
        self._model = model
        try:
            trial = self._compare(*before, self._graph(), name, nodes)
        except BackendError as error:
            trial = Trial(name, nodes, reason=str(error))
        trial = replace(trial, engine_us=candidate.engine_us)
        if trial.kept:
            self._removed |= set(nodes)
            return trial
        self._compiled.pop()
        self._model = kept
        return trial

    def _best(self) -> tuple[Path, str]:
        """The fastest graph so far, kept apart from what is written next."""
        if not self._compiled:
            return self._order.plain, "onnx"
        best = self._order.folder / "best"
        shutil.rmtree(best, ignore_errors=True)
        path = self._graph()
        best.mkdir()
        for file in (path, path.with_name(LIBRARY)):
            shutil.move(file, best / file.name)
        return best / path.name, FORMAT

    def _graph(self) -> Path:
        """Write the graph with the regions that stand in it."""
        from edgeinfer.convert.lower.regions.library import link

        path = self._order.folder / "model.onnx"
        onnx_file.save(self._model, path)
        library = path.with_name(LIBRARY)
        # A new file: the old one may be mapped.
        library.unlink(missing_ok=True)
        link(self._compiled, self._machine, library)
        return path

    def _compare(
        self, before: Path, form: str, after: Path, name: str, nodes: tuple[str, ...]
    ) -> Trial:
        backend = registry.get("onnxruntime")
        loaded = [
            backend.load(Artifact(f, p, (), ()), self._loaded)
            for f, p in ((form, before), (FORMAT, after))
        ]
        try:
            results = [e.run(self._order.feeds) for e in loaded]
            if (fault := difference(*results)) is not None:
                return Trial(name, nodes, reason=fault)
            calls = [
                e.bind(self._order.feeds, {k: np.empty_like(v) for k, v in r.items()})
                for e, r in zip(loaded, results, strict=True)
            ]
            times = in_turns(calls)
        finally:
            for executable in loaded:
                executable.close()
        return judged(name, nodes, *times)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call in each round, by the clock and of the processor."""

    wall: list[float]
    cpu: list[float]


def judged(name: str, nodes: tuple[str, ...], before: Times, after: Times) -> Trial:
    """Decide by what was measured, round by round.

    By the clock it has to be faster. That this is no noise has to show in three rounds of four, by
    the clock or, where other work disturbs that, by the time of the processor.
    """
    ratios = _ratios(before.wall, after.wall)
    sure = float(np.quantile(ratios, 0.25))
    sure_cpu = float(np.quantile(_ratios(before.cpu, after.cpu), 0.25))
    low, middle, high = np.quantile(after.wall, (0.25, 0.5, 0.75))
    kept = median(ratios) > WORTH and max(sure, sure_cpu) > WORTH
    return Trial(
        name,
        nodes,
        kept,
        "" if kept else f"the whole model is not {WORTH:g} times as fast",
        before_us=median(before.wall) * 1e6,
        after_us=float(middle) * 1e6,
        before_cpu_us=median(before.cpu) * 1e6,
        after_cpu_us=median(after.cpu) * 1e6,
        gain=float(median(ratios)),
        sure=sure,
        sure_cpu=sure_cpu,
        spread=float((high - low) / 2 / middle),
        rounds=len(before.wall),
    )


def _ratios(before: list[float], after: list[float]) -> list[float]:
    return [b / max(a, 1e-9) for b, a in zip(before, after, strict=True)]


def in_turns(calls: Sequence[Callable[[], object]]) -> list[Times]:
    """Time calls in turns, for a bounded time.

    A round has several turns, of which the least counts: other work on the machine only adds.
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
        turns = [[_timed(c, n) for c, n in zip(calls, counts, strict=True)] for _ in range(_TURNS)]
        for times, mine in zip(found, zip(*turns, strict=True), strict=True):
            times.wall.append(min(wall for wall, _ in mine))
            times.cpu.append(min(cpu for _, cpu in mine))
    return found


def _timed(call: Callable[[], object], count: int) -> tuple[float, float]:
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count, (time.process_time() - cpu) / count


def difference(before: dict[str, Array], after: dict[str, Array]) -> str | None:
    """Say how far results are apart where that is too far; the gate judges them later."""
    for name, wanted in before.items():
        found = after[name]
        if wanted.shape != found.shape:
            return f"output {name!r} has another shape"
        if wanted.dtype.kind != "f":
            continue
        scale = float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))) or 1.0
        if not np.allclose(wanted, found, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True):
            return f"output {name!r} is another one than the engine's"
    return None


def _named(path: Path) -> ir.Model:
    """Read a graph and give each node a name of its own."""
    model = ir.load(path)
    taken: set[str] = set()
    for index, node in enumerate(model.graph):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}__{index}"
        taken.add(node.name)
    return model


def origin(name: str, kind: str, makers: Mapping[str, ir.Node]) -> ir.Node | None:
    """Find the node that costs what a step of the engine costs.

    A step has the name of a node, or of the last value that it makes where several are one; the
    time is that of the node of its own kind among them.

    Args:
        name: of the step.
        kind: its operator.
        makers: nodes by their own name and by those of their results.
    """
    found = makers.get(name)
    if found is None:
        near = [n for n in makers if n and name.startswith((f"{n}_", f"{n}/"))]
        if not near:
            return None
        found = makers[max(near, key=len)]
    node, kind = found, kind.removeprefix("Fused")
    for _ in range(_MOST_FUSED):
        if node.op_type == kind:
            return node
        before = node.predecessors()
        if len(before) != 1:
            break
        (node,) = before
    return found


def main() -> None:
    """Be the process: race, tell how it went."""
    connection, _ = child.connect()
    order: Order = child.read(connection)
    child.make_expendable()
    try:
        outcome = Racer(order, lambda line: child.write(connection, ("stage", line))).run()
    except EdgeInferError as error:
        child.write(connection, ("failed", *child.portable(error)))
    else:
        child.write(connection, ("done", outcome))


if __name__ == "__main__":
    main()
