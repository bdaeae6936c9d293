"""Candidates of the search, written, run and measured on the engine of the target."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.accuracy import Metric, Outputs, TaskMeasure
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, Backend, Executable, LoadOptions
from edgeinfer.bundle.values import fits
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize.calibrate.observe import open_session
from edgeinfer.convert.quantize.calibration import Quantizer, limits_of
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.rewrite import fallback
from edgeinfer.convert.quantize.search.layers import Point
from edgeinfer.convert.quantize.search.margin import Margins
from edgeinfer.convert.quantize.search.quality import Judgement
from edgeinfer.convert.quantize.search.timing_source import TimingSource, clock_for
from edgeinfer.errors import NotAvailableError
from edgeinfer.media.samples import SampleSet
from edgeinfer.metrics import budget_for
from edgeinfer.records import dataclass
from edgeinfer.types import Feeds, TensorSpec, nbytes

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgeinfer.convert.lower.target import Lowered
    from edgeinfer.convert.pipeline.plan import Job
    from edgeinfer.convert.verify.answers import Expected, Vector

USUAL = 128
"""Runs that a candidate is measured on, where that takes no longer than ``_EACH``."""

MOST = 512
"""Runs where they take no longer than ``_QUICK``: one answer of a hundred that differs by chance is
a whole percent."""

FEW = 8
"""Runs by which layers are compared."""

LEAST = 32
"""Runs that a candidate is measured on, however long one takes."""

SOME, _SOME_SECONDS = 64, 2.0
"""Runs by whose noise ranges are compared, and the seconds that these may take."""

_EACH, _QUICK = 32.0, 8.0
"""Seconds that all runs of one candidate may take, where that leaves enough of them."""

_BYTES = 96 << 20
_TRIED = 3
_TIMED = 7
_TURNS, _MOST_TURNS = 15, 300
_RACE = 1.0
"""Seconds after which a race of small nets is over; large ones have their turns all the same."""

# Windows counts a process's time in steps of 16 ms.
_clock = time.perf_counter if os.name == "nt" else time.process_time


@dataclass(slots=True)
class Samples:
    """What candidates are run on, and what the float model answers.

    Attributes:
        feeds: Feeds of each run; bounded in number and bytes, spread over the data set.
        labels: Labels of each sample, where known for all.
        expected: outputs of the float model.
    """

    feeds: list[Feeds] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    expected: list[Outputs] = field(default_factory=list)

    def fewer(self, most: int) -> Samples:
        """Return so many at most, spread over all; all if labels are not one for each run."""
        count = len(self.feeds)
        if count <= most or len(self.labels) not in (0, count):
            return self
        positions = [i * count // most for i in range(most)]
        labels = [self.labels[p] for p in positions] if self.labels else []
        return Samples(
            [self.feeds[p] for p in positions], labels, [self.expected[p] for p in positions]
        )

    def few(self) -> Samples:
        """Return a handful, spread over all, without labels."""
        positions = sorted({i * len(self.feeds) // FEW for i in range(FEW)})
        positions = [p for p in positions if p < len(self.feeds)]
        return Samples(
            [self.feeds[p] for p in positions], [], [self.expected[p] for p in positions]
        )

    @property
    def digest(self) -> str:
        """Fingerprint of the inputs and answers."""
        found = hashlib.blake2b(digest_size=16)
        for arrays in (*self.feeds, *self.expected):
            for name in sorted(arrays):
                found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
        for label in self.labels:
            found.update(repr(np.asarray(label).tolist()).encode())
        return found.hexdigest()


def gather(data: SampleSet, model: ir.Model) -> Samples:
    """Take samples that are spread over a data set, and ask the float model about them."""
    total, size = 0, 0
    for arrays in data.feeds():
        total += 1
        size = max(size, nbytes(arrays))
    names = [v.name or "" for v in model.graph.outputs]
    found = Samples()
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        session = open_session(model, Path(folder), optimise=True)
        first = dict(next(iter(data.feeds())))
        once = min(_took(partial(session.run, names, first)) for _ in range(_TRIED))
        count = max(1, min(affordable(once), total, _BYTES // max(1, size)))
        _take(found, data, {i * total // count for i in range(count)})
        for feeds in found.feeds:
            found.expected.append(dict(zip(names, session.run(names, dict(feeds)), strict=True)))
        del session
    return found


def _take(found: Samples, data: SampleSet, wanted: set[int]) -> None:
    labelled = True
    for index, sample in enumerate(data.samples()):
        if index in wanted:
            found.feeds.append(sample.feeds)
            labelled = labelled and bool(sample.labels)
            found.labels.extend(sample.labels)
    if not labelled:
        found.labels.clear()


@dataclass(frozen=True, slots=True)
class GateDemands:
    """What the gate will ask of what is chosen.

    Attributes:
        vectors: inputs.
        expected: outputs of the float model.
    """

    vectors: list[Vector]
    expected: Expected

    def fitting(self, constraints: Mapping[str, str]) -> GateDemands:
        """Return those whose values an artifact takes."""
        positions = [i for i, v in enumerate(self.vectors) if fits(constraints, v.feeds)]
        answers = tuple(self.expected.answers[i] for i in positions)
        return GateDemands(
            [self.vectors[i] for i in positions], replace(self.expected, answers=answers)
        )


def foresee(model: ir.Model, vectors: Sequence[Vector]) -> GateDemands:
    """Ask the float model about the vectors that the gate will judge integers on."""
    from edgeinfer.convert.verify.answers import Answer, Expected

    judged = [v for v in vectors if not v.edge]
    names = [v.name or "" for v in model.graph.outputs]
    with tempfile.TemporaryDirectory(prefix="edgeinfer-") as folder:
        session = open_session(model, Path(folder), optimise=True)
        outputs = [dict(zip(names, session.run(names, dict(v.feeds)), strict=True)) for v in judged]
        del session
    answers = tuple(Answer(o, "onnxruntime", ("onnxruntime",), {}) for o in outputs)
    return GateDemands(judged, Expected(answers, ()))


def affordable(once_ms: float) -> int:
    """Return how many runs a candidate may be measured on, by the time that one takes.

    A power of two: a search that goes on where another stopped has the same samples, though the
    machine is a little slower than before.
    """
    some, many = (int(1000.0 * s / max(once_ms, 1e-3)) for s in (_EACH, _QUICK))
    count = max(LEAST, min(some, USUAL), min(many, MOST))
    return 1 << (count.bit_length() - 1)


@dataclass(slots=True)
class CandidateTrials:
    """Writes and measures candidates for one job.

    Attributes:
        quantizer: has the float graph and its ranges.
        job: what is written.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        metric: the user's own measure.
        once_ms: Milliseconds of one run of the float model, where it was measured.
    """

    quantizer: Quantizer
    job: Job
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metric: Metric | None = None
    once_ms: float = 0.0
    _judged: dict[int, Margins] = field(default_factory=dict)
    _quantizers: dict[str, Quantizer] = field(default_factory=dict)
    _clock: TimingSource | None = None

    def in_time(self, samples: Samples) -> Samples:
        """Return as many samples as there is time to run each candidate on."""
        if len(samples.feeds) <= LEAST:
            return samples
        with ExitStack() as stack:
            executable, _ = self._load(self.quantizer.model, stack)
            self.once_ms = min(_once(executable, samples) for _ in range(_TRIED))
        return samples.fewer(affordable(self.once_ms))

    def some(self, samples: Samples) -> Samples:
        """Return as many as tell calibrators' noise apart, fewer where runs are slow."""
        quick = int(1000.0 * _SOME_SECONDS / max(self.once_ms, 1e-3))
        return samples.fewer(max(FEW, min(SOME, quick)))

    def measure(
        self,
        kept: frozenset[str],
        samples: Samples,
        *,
        timed: bool,
        form: str = "fp32",
        calibrator: str = "",
    ) -> Point:
        """Measure the graph with some layers in float, or in another form."""
        limits = limits_of(self.job.profile, self.job.format)
        written = self.by(calibrator).write(limits, kept=kept, form=form)
        point = self._run(written.model, kept, samples, timed)
        return replace(point, form=form, calibrator=calibrator)

    def by(self, calibrator: str) -> Quantizer:
        """Return the quantizer with the ranges of a calibrator."""
        if calibrator not in self._quantizers:
            self._quantizers[calibrator] = self.quantizer.by(calibrator)
        return self._quantizers[calibrator]

    def measure_recipe(self, name: str, samples: Samples) -> Point:
        """Measure the graph as another recipe writes all of it."""
        return replace(self._run(self.by_recipe(name), frozenset(), samples, True), recipe=name)

    def by_recipe(self, name: str) -> ir.Model:
        """Write the float graph by another recipe."""
        limits = limits_of(self.job.profile, self.job.format)
        other = Quantizer(self.quantizer.model, recipe(name), self.quantizer.settings)
        return other.write(limits).model

    def changes(self, kept: frozenset[str]) -> bool:
        """Whether any of the layers has weights that a form can be given to."""
        return bool(fallback.candidates(self.quantizer.model, kept))

    def race(self, samples: Samples, points: Sequence[Point]) -> tuple[Point, list[Point]]:
        """Measure times of the float graph and of candidates, where times say something.

        They take turns, so that a busy machine slows all alike.
        """
        with ExitStack() as stack:
            before, lowered = self._load(self.quantizer.model, stack)
            size = _size(lowered)
            if not self.clock.counts:
                return Point((), 0.0, 0.0, 1.0, 0.0, size), [*points]
            loaded = [before, *(self._load(self._graph(p), stack)[0] for p in points)]
            times: list[list[float]] = []
            end = time.perf_counter() + _RACE
            while len(times) < _TURNS or (len(times) < _MOST_TURNS and time.perf_counter() < end):
                times.append([_once(x, samples) for x in loaded])
        best = [min(column) for column in zip(*times, strict=True)]
        raced = [replace(p, latency_ms=t) for p, t in zip(points, best[1:], strict=True)]
        return Point((), 0.0, 0.0, 1.0, best[0], size), raced

    @property
    def clock(self) -> TimingSource:
        """What candidates are run on, and whether its times say something of the target's."""
        if self._clock is None:
            with ExitStack() as stack:
                self._load(self.quantizer.model, stack)
        if self._clock is None:
            raise NotAvailableError(f"no engine to measure candidates of {self.job.title} on")
        return self._clock

    def _graph(self, point: Point) -> ir.Model:
        if point.recipe:
            return self.by_recipe(point.recipe)
        limits = limits_of(self.job.profile, self.job.format)
        quantizer = self.by(point.calibrator)
        return quantizer.write(limits, kept=frozenset(point.kept), form=point.form).model

    def _run(self, model: ir.Model, kept: frozenset[str], samples: Samples, timed: bool) -> Point:
        with ExitStack() as stack:
            executable, lowered = self._load(model, stack)
            size = _size(lowered)
            actual = [executable.run(f) for f in samples.feeds]
            timing = timed and self.clock.counts
            latency = min(_once(executable, samples) for _ in range(_TIMED)) if timing else 0.0
        # A handful of samples compares layers by their errors; it has no labels.
        metric = self.metric if samples.labels or not isinstance(self.metric, TaskMeasure) else None
        judge = self._judged.setdefault(
            id(samples), Margins(Judgement(samples.expected, samples.labels, metric))
        )
        loss = judge.loss(actual) if timed else judge.whole.loss(actual)
        return Point.of(kept, loss, latency, size)

    def refusal(self, point: Point, asked: GateDemands) -> str:
        """Return what the gate will say against a candidate; empty if it will take it."""
        from edgeinfer.convert.quantize import readback
        from edgeinfer.convert.verify.gate import judge_answers

        with ExitStack() as stack:
            executable, lowered = self._load(self._graph(point), stack)
            asked = asked.fitting(lowered.constraints)
            answers = [
                {n: np.array(a) for n, a in executable.run(v.feeds).items()} for v in asked.vectors
            ]
            found = readback.layers(lowered.files[0], self.job.format)
        precision = readback.precision_name(found, lowered.precision)
        if self.metric is not None:
            precision += "+by_task"
        if not answers:
            return ""
        results = judge_answers(answers, asked.vectors, asked.expected, budget_for(precision))
        return next((b for r in results for b in r.breaches), "")

    def _load(self, model: ir.Model, stack: ExitStack) -> tuple[Executable, Lowered]:
        """Write a graph and open it; both go with the stack."""
        job = self.job
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgeinfer-")))
        lowered = target_for(job.format).lower(model, job.profile, LowerOptions("fp32"), folder)
        artifact = Artifact(job.format, lowered.files[0], self.inputs, self.outputs)
        engines = [e.backend for e in lowered.engines]
        backend = present(engines)
        if self._clock is None:
            self._clock = clock_for(job.profile, engines, backend)
        executable = backend.load(artifact, LoadOptions(threads=1))
        stack.callback(executable.close)
        return executable, lowered


def _size(lowered: Lowered) -> int:
    return sum(f.stat().st_size for f in lowered.files)


def present(names: Iterable[str]) -> Backend:
    """Return the first engine that this machine has.

    Raises:
        NotAvailableError: it has none of them.
    """
    lacking = []
    for name in names:
        backend: Backend = registry.get(name)
        probe = backend.probe()
        # TensorRT may be installed where there is no GPU for it.
        if probe.available:
            return backend
        lacking.append(f"{name}: {probe.reason or 'no device for it is here'}")
    raise NotAvailableError(f"no engine to measure candidates on: {'; '.join(lacking)}")


def _once(executable: Executable, samples: Samples) -> float:
    """Return the time of one run in ms: of the processor, which others on it do not lengthen."""
    return _took(lambda: executable.run(samples.feeds[0]))


def _took(call: Callable[[], object]) -> float:
    start = _clock()
    call()
    return 1000.0 * (_clock() - start)


def key_of(
    quantizer: Quantizer,
    job: Job,
    samples: Samples,
    metric: Metric | None = None,
    *,
    timed: bool = True,
) -> str:
    """Return the name under which a search is remembered."""
    limits = limits_of(job.profile, job.format)
    versions = [registry.get(n).probe() for n in job.profile.backends]
    parts = [samples.digest, repr(limits), repr(sorted(quantizer.ranges.items()))]
    parts += [
        job.format,
        repr([v.version for v in versions]),
        repr(quantizer.settings),
        quantizer.recipe.name,
    ]
    # Measurements of older versions have no margins.
    parts += [repr(metric), "with margins and noise"] + ["untimed"] * (not timed)
    found = hashlib.blake2b("\n".join(parts).encode(), digest_size=16)
    # How weights are rounded and biases corrected is no setting; it is in what is written.
    for node in (graph := quantizer.write(limits).model.graph):
        found.update(f"{node.op_type} {node.name}".encode())
    for value in graph.initializers.values():
        if value.const_value is not None:
            found.update(value.const_value.tobytes())
    return found.hexdigest()
