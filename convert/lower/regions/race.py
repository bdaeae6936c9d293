"""Try parts of a graph as code, and keep those that make the whole model faster.

Each part is compiled and raced alone first, in the engine against itself as code in the engine.
Those that win are put into the graph together; where that does not pay, one after the other.

A process of its own: what is tried is machine code that nobody ran before, and a compiler that may
take long over it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.checks import one_line
from edgeinfer.backends.engines import import_tvm
from edgeinfer.backends.onnxruntime.regions import FORMAT, LIBRARY
from edgeinfer.backends.process import child, isolation
from edgeinfer.convert import onnx_file
from edgeinfer.convert.lower.regions import candidates, cut, measure
from edgeinfer.convert.lower.regions.candidates import RegionCandidate
from edgeinfer.convert.lower.regions.outcome import WORTH, RegionOutcome, RegionRequest, Trial
from edgeinfer.errors import BackendError, EdgeInferError
from edgeinfer.types import Array

if TYPE_CHECKING:
    from edgeinfer.convert.lower.regions.library import Compiled

_PROFILED = 24
_MOST_FUSED = 4
_MOST_ALONE = 40
_MOST_IN_TURN = 6
_RESERVED = 0.35
"""Share of the time that is kept for races of the whole model."""


class Racer:
    """Records what was tried, and reports what is being tried."""

    def __init__(self, order: RegionRequest, tell: Callable[[str], None]) -> None:
        self._order, self._tell = order, tell
        self._start = time.monotonic()
        self._plain = _named(order.plain)
        self._outcome = RegionOutcome()
        self._won: list[tuple[Trial, Compiled]] = []
        self._machine: Any = None
        self._tuning: Any = None

    def run(self) -> RegionOutcome:
        """Race."""
        order = self._order
        engine_us = self._profile()
        least = (WORTH - 1) * sum(engine_us.values())

        def promising(nodes: Iterable[ir.Node]) -> list[RegionCandidate]:
            found = candidates.find(self._plain, engine_us, nodes)
            return found if sum(c.gain_us for c in found) > least else []

        if not promising(self._plain.graph):
            return self._outcome
        # The compiler is loaded here and not before.
        import_tvm()
        from edgeinfer.convert.lower.regions.library import supported
        from edgeinfer.convert.lower.tvm import tuned
        from edgeinfer.convert.lower.tvm.machines import machine

        self._machine = machine(order.machine)
        self._tuning = tuned.for_machine(self._machine, order.records)
        # From here on time counts: loading may take long on a busy machine.
        self._start = time.monotonic()
        known = supported(self._plain)
        self._race_alone(promising(known), engine_us)
        if self._won:
            self._race_whole()
        everything = candidates.whole(self._plain, engine_us, known)
        if everything is not None:
            self._race_as_one(everything)
        self._outcome.notes = tuple(self._tuning.lines())
        return self._outcome

    def _is_over(self, share: float) -> bool:
        return time.monotonic() - self._start > self._order.seconds * share

    def _profile(self) -> dict[str, float]:
        """Microseconds of each operator in the engine, by name."""
        path = self._order.folder / "named.onnx"
        onnx_file.save(self._plain, path)
        backend = registry.get("onnxruntime")
        measured = backend.profile(  # type: ignore[attr-defined]
            Artifact("onnx", path, (), ()), LoadOptions(), self._order.feeds, runs=_PROFILED
        )
        path.unlink()
        # The clock is coarse, and going from one operator to the next is in none of the figures.
        between = max(0.0, measured.plain_us - measured.timed_us) / max(1, len(measured.operators))
        makers = {n.name or "": n for n in self._plain.graph}
        makers |= {v.name or "": n for n in self._plain.graph for v in n.outputs}
        found: dict[str, float] = {}
        for step in measured.operators:
            for name in step.nodes:
                if (node := origin(name, step.kind, makers)) is not None:
                    us = (step.us or 0.0) + between
                    found[node.name or ""] = found.get(node.name or "", 0.0) + us
        return found

    # ---- alone

    def _race_alone(self, tried: list[RegionCandidate], engine_us: Mapping[str, float]) -> None:
        """Try parts until the time is over; one that loses is tried without its products."""
        taken: set[ir.Node] = set()
        seen: set[frozenset[ir.Node]] = set()
        for index in range(_MOST_ALONE):
            if not tried or (index and self._is_over(1 - _RESERVED)):
                break
            candidate = tried.pop(0)
            nodes = frozenset(candidate.nodes)
            if taken & nodes or nodes in seen:
                continue
            seen.add(nodes)
            self._tell(f"region {index + 1}, {len(tried)} to come: {candidate.title}")
            trial, made = self._alone(candidate, f"Region{index}")
            self._outcome.trials.append(trial)
            if made is not None and trial.alone is not None and trial.alone.pays:
                self._won.append((trial, made))
                if self._fits_together(trial):
                    taken |= nodes
                else:
                    self._won.pop()
                continue
            rest = [n for n in candidate.nodes if not candidates.is_product(n)]
            if len(rest) < len(nodes):
                tried[:0] = candidates.find(self._plain, engine_us, rest)
        self._outcome.left = len([c for c in tried if not taken & set(c.nodes)])

    def _fits_together(self, trial: Trial) -> bool:
        """Whether a part and the others do not wait for each other."""
        try:
            self._with([t for t, _ in self._won])
        except ValueError:
            trial.reason = "it and another region would each need a result of the other"
            return False
        return True

    def _alone(self, candidate: RegionCandidate, name: str) -> tuple[Trial, Compiled | None]:
        trial = Trial(name, tuple(n.name or "" for n in candidate.nodes))
        part = cut.taken_out(self._plain, candidate.nodes)
        made = self._compiled(trial, part)
        if made is None:
            return trial, None
        try:
            feeds = self._inside(candidate)
            folder = self._fresh("alone")
            path = folder / "part.onnx"
            onnx_file.save(part, path)
            cut.put_in(part, list(part.graph), name, made.weights)
            after = self._written(part, [made], folder)
            artifacts = (Artifact("onnx", path, (), ()), Artifact(FORMAT, after, (), ()))
            trial.alone = measure.compare(artifacts, feeds)
        except BackendError as error:
            trial.reason = str(error)
        return trial, made

    def _compiled(self, trial: Trial, part: ir.Model) -> Compiled | None:
        """Write the code of a part; the trial says why there is none."""
        from edgeinfer.convert.lower.regions.library import NotARegionError, compile_region

        try:
            return compile_region(part, trial.name, self._machine, self._tuning)
        except NotARegionError as error:
            trial.reason = f"it cannot be written: {error}"
        except Exception as error:  # the compiler raises types of its own
            trial.reason = f"the compiler fails: {one_line(error)}"
        return None

    def _inside(self, candidate: RegionCandidate) -> dict[str, Array]:
        """The values that a part is given in a run of the model."""
        names = [v.name or "" for v in cut.border(self._plain.graph, candidate.nodes).inputs]
        wanted = [n for n in names if n not in self._order.feeds]
        found = {n: self._order.feeds[n] for n in names if n in self._order.feeds}
        if wanted:
            path = self._fresh("inside") / "model.onnx"
            onnx_file.save(cut.up_to(self._plain, wanted), path)
            executable = registry.get("onnxruntime").load(
                Artifact("onnx", path, (), ()), LoadOptions(optimize=False)
            )
            feeds = {s.name: self._order.feeds[s.name] for s in executable.inputs}
            found |= executable.run(feeds)
            executable.close()
        return found

    # ---- in the whole model

    def _race_whole(self) -> None:
        """Put in all that won alone; where that does not pay, one after the other."""
        self._tell(f"the whole model with {len(self._won)} regions")
        plain = Artifact("onnx", self._order.plain, (), ())
        everything = [trial for trial, _ in self._won]
        if self._race(plain, everything):
            return
        if len(everything) == 1:
            everything[0].whole = self._outcome.final
            return
        kept: list[Trial] = []
        before = plain
        order = sorted(everything, key=lambda t: -t.saved_us)[:_MOST_IN_TURN]
        for trial in order:
            if self._is_over(1.0):
                break
            self._tell(f"the whole model with {trial.name}")
            path = self._graph([*kept, trial], "tried")
            try:
                trial.whole = measure.compare(
                    (before, Artifact(FORMAT, path, (), ())), self._order.feeds
                )
            except BackendError as error:
                trial.reason = str(error)
                continue
            if trial.whole.pays:
                kept.append(trial)
                before = Artifact(FORMAT, self._graph(kept, "best"), (), ())
        if kept:
            self._race(plain, kept)

    def _race(self, plain: Artifact, trials: Sequence[Trial]) -> bool:
        """Race a graph with some regions against the plain one; write it where that pays."""
        path = self._graph(trials, "all")
        try:
            self._outcome.final = measure.compare(
                (plain, Artifact(FORMAT, path, (), ())), self._order.feeds
            )
        except BackendError as error:
            for trial in trials:
                trial.reason = str(error)
            return False
        if not self._outcome.final.pays:
            return False
        for trial in trials:
            trial.kept = True
        self._take(path.parent)
        return True

    def _race_as_one(self, candidate: RegionCandidate) -> None:
        """Race all of the graph as one region against the best so far, where there is time."""
        names = {n.name or "" for n in candidate.nodes}
        if self._is_over(1.0) or any(names == set(t.nodes) for t in self._outcome.trials):
            return
        self._tell("the whole model as one region")
        trial = Trial("RegionWhole", tuple(n.name or "" for n in candidate.nodes))
        self._outcome.trials.append(trial)
        model = self._plain.clone()
        made = self._compiled(trial, cut.taken_out(model, list(model.graph)))
        if made is None:
            return
        cut.put_in(model, list(model.graph), trial.name, made.weights)
        after = Artifact(FORMAT, self._written(model, [made], self._fresh("one")), (), ())
        plain = Artifact("onnx", self._order.plain, (), ())
        kept = self._outcome.kept
        best = Artifact(FORMAT, self._order.folder / "model.onnx", (), ()) if kept else plain
        try:
            trial.whole = measure.compare((best, after), self._order.feeds)
            if not trial.whole.pays:
                return
            final = measure.compare((plain, after), self._order.feeds)
        except BackendError as error:
            trial.reason = str(error)
            return
        if not final.pays:
            return
        for other in kept:
            other.kept, other.reason = False, "the whole model as one region is faster"
        trial.kept, self._outcome.final = True, final
        self._take(after.path.parent)

    def _take(self, folder: Path) -> None:
        """Let a graph and its library be the result."""
        for file in folder.iterdir():
            # A new file: the old one may be mapped.
            (self._order.folder / file.name).unlink(missing_ok=True)
            shutil.copy(file, self._order.folder / file.name)

    def _graph(self, trials: Sequence[Trial], folder: str) -> Path:
        """Write the graph with some regions."""
        model, made = self._with(trials)
        return self._written(model, made, self._fresh(folder))

    def _with(self, trials: Sequence[Trial]) -> tuple[ir.Model, list[Compiled]]:
        """Put some regions into the graph.

        Raises:
            ValueError: the graph is no longer one without circles.
        """
        model = self._plain.clone()
        used = []
        for trial, made in self._won:
            if trial in trials:
                part = [n for n in model.graph if n.name in set(trial.nodes)]
                cut.put_in(model, part, made.name, made.weights)
                used.append(made)
        return model, used

    def _written(self, model: ir.Model, made: Sequence[Compiled], folder: Path) -> Path:
        from edgeinfer.convert.lower.regions.library import link

        path = folder / "model.onnx"
        onnx_file.save(model, path)
        link(made, self._machine, folder / LIBRARY)
        return path

    def _fresh(self, name: str) -> Path:
        """An empty folder: files of the last one of that name may be mapped still."""
        folder = self._order.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


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
        name: Name of the step.
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
    order: RegionRequest = child.read(connection)
    isolation.make_expendable()
    try:
        outcome = Racer(order, lambda line: child.answer(connection, ("stage", line))).run()
    except EdgeInferError as error:
        child.answer(connection, ("failed", *child.portable(error)))
    else:
        child.answer(connection, ("done", outcome))


if __name__ == "__main__":
    main()
