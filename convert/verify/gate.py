"""The gate: an artifact is run by the real engine on every vector and measured against a budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer import channels
from edgeinfer.backends.base import (
    Artifact,
    Backend,
    Coverage,
    Covering,
    DeviceKind,
    Executable,
    LoadOptions,
    Timed,
    able,
)
from edgeinfer.backends.process import guard
from edgeinfer.bundle.manifest import JUDGED_ON_EXTREMES
from edgeinfer.bundle.trust import NATIVE_FORMATS, Level
from edgeinfer.bundle.values import fits, in_half
from edgeinfer.convert.verify.answers import Answer, Expected, Vector
from edgeinfer.convert.verify.behaviour import repeat_problems, signature_problems
from edgeinfer.convert.verify.decided import compared
from edgeinfer.errors import BackendError, InputError, NotAvailableError
from edgeinfer.machine.cuda import absence
from edgeinfer.metrics import (
    SLACK,
    WIDENED,
    Budget,
    OutputMetrics,
    budget_for,
    check,
    counted,
    winners_lost,
    worst,
)
from edgeinfer.records import dataclass
from edgeinfer.types import Array

HALF = "half-arithmetic"
"""Name of a result that no engine gave: the artifact in arithmetic that rounds every result."""

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"
"""The verdicts, with ``metrics.WIDENED``. What ran only on a unit not meant for it did not run."""

_UNDECIDED = (
    "rounding alone decides it on every input that was tried, so nothing of it can be judged: give "
    "--data on which scores differ by more than their rounding"
)

_TIMED_S = 0.5
_TIMED_RUNS = 20


@dataclass(frozen=True, slots=True)
class OutputResult:
    """One output over all vectors.

    Attributes:
        name: as in the source model.
        metrics: the worst over all judged vectors.
        breaches: what left the budget; empty when it passed.
        vector: index of the vector with the first breach; None when it passed.
        note: whether the budget was widened and why; empty when it was not.
        widened: the widest budget by which a vector passed; None where the plain one was enough.
        floor: error up to which ratios were not requested; None where nothing was judged.
        hardest: index of the vector that came closest to the budget, or needed the wider one; None
            where no error was large enough to be judged.
    """

    name: str
    metrics: OutputMetrics
    breaches: tuple[str, ...] = ()
    vector: int | None = None
    note: str = ""
    widened: Budget | None = None
    floor: float | None = None
    hardest: int | None = None


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One artifact on one backend.

    Attributes:
        backend: its name.
        version: the engine's version; None when it is not installed.
        outputs: in the model's order; empty when it could not run.
        skipped: why the engine could not be asked (not installed); never a pass by itself.
        problems: what is wrong beyond numbers: refused to load, run failed, another answer on the
            second run, other inputs or outputs than the source has.
        notes: what was noticed and is no fault.
        latency_ms: median of one run on the first vector, by number of threads (0: default); none
            of an evaluator, whose times say nothing.
        coverage: how much of it the engine's fast part takes; None where the engine has none.
        device: kind of unit that ran it, or was to.
        stands_in: whether that is not the unit that the artifact is meant for: its numbers say that
            the artifact is right, not that the device computes it so.
    """

    backend: str
    version: str | None
    outputs: tuple[OutputResult, ...] = ()
    skipped: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    latency_ms: dict[int, float] = field(default_factory=dict)
    coverage: Coverage | None = None
    device: DeviceKind = "cpu"
    stands_in: bool = False

    @property
    def passed(self) -> bool:
        """Whether it ran and stayed within the budget."""
        return not (self.skipped or self.problems or any(o.breaches for o in self.outputs))

    @property
    def verdict(self) -> str:
        """One of ``PASS``, ``WIDENED``, ``FAIL`` and ``NOT_RUN``."""
        if self.skipped:
            return NOT_RUN
        if not self.passed:
            return FAIL
        return WIDENED if any(o.widened for o in self.outputs) else PASS


@dataclass(frozen=True, slots=True)
class VariantResult:
    """One artifact on all its backends.

    Attributes:
        id: the variant's.
        precision: as read back.
        budget: the plain one.
        engines: each of them on each unit that was requested.
        size_bytes: Size in bytes of all its files.
        ops: operator counts.
        notes: Notes of lowering and gate.
        is_of_target: whether this machine is one of the target's kind, so that times taken here say
            something of it.
        level: Level of trust that it needs where it was not made: ``data`` or ``native``.
    """

    id: str
    precision: str
    budget: Budget
    engines: tuple[EngineResult, ...]
    size_bytes: int
    ops: dict[str, int]
    notes: tuple[str, ...] = ()
    is_of_target: bool = True
    level: Level = "data"

    @property
    def passed(self) -> bool:
        """Whether one engine at least ran it and none that ran failed."""
        ran = [e for e in self.engines if not e.skipped]
        return bool(ran) and all(e.passed for e in ran)

    @property
    def verdict(self) -> str:
        """One of ``PASS``, ``WIDENED``, ``FAIL`` and ``NOT_RUN``.

        A failure anywhere counts; a pass only on the unit that the artifact is meant for.
        """
        verdicts = [e.verdict for e in self.engines]
        if FAIL in verdicts:
            return FAIL
        own = [e.verdict for e in self.engines if not e.stands_in]
        if all(verdict == NOT_RUN for verdict in own):
            return NOT_RUN
        return WIDENED if WIDENED in verdicts else PASS

    @property
    def unverified(self) -> str:
        """Why nobody ran it where it is meant to run; empty where somebody did."""
        if self.verdict != NOT_RUN:
            return ""
        why = "; ".join(f"{e.backend} ({e.device}): {e.skipped}" for e in self.engines if e.skipped)
        others = [f"{e.backend} ({e.device})" for e in self.engines if e.stands_in and e.passed]
        elsewhere = f"; its numbers are right on {', '.join(others)}" if others else ""
        return f"not run: {why}{elsewhere}"

    @property
    def hardest(self) -> set[int]:
        """Indices of the vectors that came closest to the budget."""
        found = (o.hardest for e in self.engines for o in e.outputs)
        return {index for index in found if index is not None}

    def accuracy(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the first engine that ran, by output name; infinities left out."""
        ran = next((e for e in self.engines if e.outputs), None)
        return {
            o.name: {
                key: float(value)
                for key, value in o.metrics.to_json().items()
                if isinstance(value, int | float)
            }
            for o in (ran.outputs if ran else ())
        }

    def failure(self) -> str:
        """Return one line for the error message: which output, which number, which budget."""
        for engine in self.engines:
            if engine.problems:
                return f"{engine.backend}: {engine.problems[0]}"
            for output in engine.outputs:
                if output.breaches:
                    return f"{engine.backend}: output {output.name!r}: {output.breaches[0]}"
        skipped = "; ".join(f"{e.backend}: {e.skipped}" for e in self.engines)
        return f"no engine here could run it ({skipped})" if not self.passed else ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "id": self.id,
            "precision": self.precision,
            "verdict": self.verdict,
            "passed": self.passed,
            "is_of_target": self.is_of_target,
            "budget": _finite(self.budget.to_json()),
            "size_bytes": self.size_bytes,
            "ops": self.ops,
            "notes": list(self.notes),
            "level": self.level,
            "engines": [_engine_json(e) for e in self.engines],
        }


def verify_variant(
    id: str,
    artifact: Artifact,
    backends: Sequence[Backend],
    vectors: Sequence[Vector],
    expected: Expected,
    *,
    precision: str,
    budget: Budget | None = None,
    size_bytes: int | None = None,
    ops: dict[str, int] | None = None,
    notes: Sequence[str] = (),
    constraints: Mapping[str, str] | None = None,
    device: DeviceKind = "cpu",
    timed: bool = True,
) -> VariantResult:
    """Run an artifact on each backend and measure it.

    Args:
        id: the variant's.
        artifact: its files; ``inputs`` and ``outputs`` are the source model's.
        backends: engines that claim to run it, best first.
        vectors: inputs.
        expected: the oracles' answers to them.
        precision: as read back; picks the default budget.
        budget: instead of the default one.
        size_bytes: Size in bytes of all its files; the sum over the artifact's folder when not
            given.
        ops: operator counts, for the report.
        notes: Notes of the lowering, for the report.
        constraints: Constraints of the variant; vectors with values that it refuses are not judged.
        device: kind of unit that runs it.
        timed: False where times say nothing and runs take long: every vector is run once, one of
            them twice and on one thread, and nothing is timed.
    """
    if budget is None:
        budget = budget_for(precision)
    half = in_half(precision)
    judged = [
        i
        for i, v in enumerate(vectors)
        if precision in JUDGED_ON_EXTREMES or not v.edge or (half and v.reach)
    ]
    taken = [i for i in judged if fits(constraints or {}, vectors[i].feeds)]
    if judged and not taken:
        why = "every vector holds values for which this artifact is not right"
        refusing = tuple(EngineResult(b.name, b.probe().version, problems=(why,)) for b in backends)
        return VariantResult(id, precision, budget, refusing, 0, ops or {}, tuple(notes))
    if left_out := len(judged) - len(taken):
        notes = (*notes, f"{left_out} of the vectors hold values that it refuses")
        # The engine may refuse them as well, so another one is run in their place.
        taking = vectors[taken[0]]
        vectors = [v if fits(constraints or {}, v.feeds) else taking for v in vectors]
    judged = taken
    gate = _Gate(artifact, vectors, expected, budget, judged, device, timed, half=half)
    if size_bytes is None:
        size_bytes = sum(f.stat().st_size for f in artifact.path.parent.rglob("*") if f.is_file())
    engines = tuple(result for b in backends for result in gate.ask(b))
    level: Level = "native" if artifact.format in NATIVE_FORMATS else "data"
    return VariantResult(
        id, precision, budget, engines, size_bytes, ops or {}, tuple(notes), level=level
    )


def judge_answers(
    answers: Sequence[Mapping[str, Array]],
    vectors: Sequence[Vector],
    expected: Expected,
    budget: Budget,
    *,
    usual: Sequence[Answer] = (),
    half: bool = False,
    judged: Sequence[int] | None = None,
) -> list[OutputResult]:
    """Hold given answers to the budget.

    Args:
        answers: to the vectors.
        vectors: inputs.
        expected: the oracles' answers to them.
        budget: what may be lost.
        usual: answers to more vectors, where these are some of them: what an output is in all.
        half: they were computed in half precision.
        judged: Indices of the vectors that are judged; None for all. Answers to others are not
            looked at.
    """
    nothing = Artifact("", Path(), (), ())
    taken = list(range(len(vectors))) if judged is None else list(judged)
    gate = _Gate(nothing, vectors, expected, budget, taken, usual=usual, half=half)
    return gate.judge(answers)


@dataclass(slots=True)
class _Gate:
    """What is asked of each engine."""

    artifact: Artifact
    vectors: Sequence[Vector]
    expected: Expected
    budget: Budget
    judged: list[int]
    device: DeviceKind = "cpu"
    timed: bool = True
    usual: Sequence[Answer] = ()
    half: bool = False

    def ask(self, backend: Backend) -> list[EngineResult]:
        """Run it on the unit that it is meant for; where that is not here, on the CPU instead."""
        probe = backend.probe()
        result = EngineResult(backend.name, probe.version, device=self.device)
        if not probe.available:
            return [replace(result, skipped=probe.reason)]
        kinds = {unit.kind for unit in probe.devices}
        if self.device in kinds:
            return [self._asked(backend, result)]
        absent = replace(result, skipped=absence(backend.name, self.device))
        if "cpu" not in kinds:
            return [absent]
        instead = replace(self, device="cpu", timed=False)
        return [absent, instead._asked(backend, replace(result, device="cpu", stands_in=True))]

    def _asked(self, backend: Backend, result: EngineResult) -> EngineResult:
        try:
            return self._measure(backend, result)
        except NotAvailableError as e:
            return replace(result, skipped=str(e))
        except (BackendError, InputError) as e:
            return replace(result, problems=(*result.problems, str(e)))

    def _measure(self, backend: Backend, result: EngineResult) -> EngineResult:
        executable = self._load(backend, LoadOptions(self.device))
        try:
            problems = signature_problems(self.artifact, executable)
            answers = [_run(executable, v) for v in self.vectors]
            # In another order than the first time, so that state left behind shows.
            again = self.vectors if self.timed else self.vectors[:1]
            repeats = [_run(executable, v) for v in reversed(again)]
            first = answers[: len(again)]
            problems += repeat_problems(first, repeats[::-1], again)
            outputs = self.judge(answers)
            timed = self.timed and backend.capabilities().keeps_time
            latency = {0: _median_ms(executable, self.vectors[0])} if timed else {}
            coverage = executable.coverage() if isinstance(executable, Covering) else None
        finally:
            executable.close()
        alone, single_ms = self._single_thread(backend)
        outputs = [self._worse(a, b) for a, b in zip(outputs, alone, strict=True)]
        return replace(
            result,
            outputs=tuple(outputs),
            problems=tuple(problems),
            latency_ms={**latency, **single_ms},
            coverage=coverage,
        )

    def _load(self, backend: Backend, options: LoadOptions) -> Executable:
        # The answers are judged here, and a finding says more than a refusal.
        return guard.load(backend, self.artifact, options, check_answers=False)

    def _single_thread(self, backend: Backend) -> tuple[list[OutputResult], dict[int, float]]:
        """Measure again with one thread: engines split and sum differently then."""
        executable = self._load(backend, LoadOptions(self.device, threads=1))
        try:
            if self.timed:
                outputs = self.judge([_run(executable, v) for v in self.vectors])
                timed = backend.capabilities().keeps_time
                return outputs, {1: _median_ms(executable, self.vectors[0])} if timed else {}
            one = self.judged[0] if self.judged else 0
            usual = [self.expected.answers[i] for i in self.judged]
            fewer = replace(self, judged=self.judged[:1], usual=usual)
            answers = [*[{}] * one, _run(executable, self.vectors[one])]
            return fewer.judge(answers), {}
        finally:
            executable.close()

    def judge(self, answers: Sequence[Mapping[str, Array]]) -> list[OutputResult]:
        """Compare the answers to all vectors with the expected ones."""
        names = list(self.expected.answers[0].outputs)
        return [self._judge_output(name, answers) for name in names]

    def _judge_output(self, name: str, answers: Sequence[Mapping[str, Array]]) -> OutputResult:
        measured, breaches, first, wide, beyond = [], [], None, [], ""
        hanging: list[int] = []
        closely = [i for i in self.judged if not self._for_range_only(i)]
        usual = self.usual or [self.expected.answers[i] for i in closely or self.judged]
        allowed = self.budget.among(a.outputs[name] for a in usual)
        for index in self.judged:
            right = self.expected.answers[index]
            own = self.budget.among([right.outputs[name]]) if self.vectors[index].tiny else allowed
            metrics = compared(name, right, answers[index], own)
            if metrics is None:
                hanging.append(index)
                continue
            if index not in closely:
                # Its place is beyond what the precision promises; only that it is a number counts.
                metrics = metrics.without_distance()
            measured.append(metrics)
            found = plain = check(metrics, own)
            spread = right.spread.get(name)
            if plain and spread and own.refuses_nothing(spread):
                # Nothing says what is right here, so neither a pass nor a refusal would be true.
                measured.pop()
                hanging.append(index)
                continue
            if plain and spread:
                found = check(metrics, budget := own.widened(spread))
                wide += [] if found else [budget]
                beyond = beyond or ("" if found else plain[0])
            if found and first is None:
                first = index
                where = f" (vector {index}, {self.vectors[index].origin})"
                breaches = [f"{breach}{where}" for breach in found]
        if not breaches and not wide and not hanging:
            breaches = [
                *self._lost_channels(name, answers, allowed),
                *winners_lost(measured, allowed),
            ]
            first = self.judged[0] if breaches else None
        if hanging and not measured:
            first, breaches = hanging[0], [_UNDECIDED]
        note = _rounding(len(wide), len(hanging), len(measured), beyond)
        note = note or self._unjudged(name, measured, allowed)
        widest = max(wide, key=lambda b: b.max_rel, default=None)
        overall = self._worst(measured, allowed)
        floor = allowed.max_abs
        decided = [i for i in self.judged if i not in hanging]
        near = [(i, m) for i, m in zip(decided, measured, strict=True) if m.max_abs > floor]
        hardest = max(near, key=lambda n: (bool(check(n[1], allowed)), -n[1].sqnr_db), default=None)
        return OutputResult(
            name,
            overall,
            tuple(breaches),
            first,
            note,
            widest,
            floor,
            hardest[0] if hardest else None,
        )

    def _for_range_only(self, index: int) -> bool:
        return self.half and self.vectors[index].reach

    def _lost_channels(
        self, name: str, answers: Sequence[Mapping[str, Array]], allowed: Budget
    ) -> list[str]:
        """Hold each channel against what it varies by over all vectors."""
        near = [i for i in self.judged if not self._for_range_only(i)]
        right = [self.expected.answers[i].outputs[name] for i in near]
        found = channels.breaches(right, [answers[i][name] for i in near], allowed)
        return [f"{breach} (over {len(right)} vectors)" for breach in found]

    def _unjudged(self, name: str, measured: Sequence[OutputMetrics], allowed: Budget) -> str:
        """Say that an output is so small that no error of it was held against anything."""
        floor, lost = allowed.max_abs, allowed.sqnr_db
        arrays = [np.asarray(self.expected.answers[i].outputs[name]) for i in self.judged]
        if any(a.dtype.kind != "f" for a in arrays):
            return ""
        size = max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in arrays), default=0)
        worst_of = min((m.sqnr_db for m in measured), default=np.inf)
        if any(m.problem or m.max_abs > floor for m in measured) or size > floor:
            return ""
        return (
            f"is {size:.2g} at most on all vectors, and errors up to {floor:.2g} are not judged: "
            f"signal to error is {worst_of:.1f} dB"
            if worst_of < lost
            else ""
        )

    def _worst(self, measured: Sequence[OutputMetrics], allowed: Budget) -> OutputMetrics:
        found = worst(counted(measured, allowed.max_abs))
        return replace(found, count=sum(m.count for m in measured))

    @staticmethod
    def _worse(a: OutputResult, b: OutputResult) -> OutputResult:
        if b.breaches and not a.breaches:
            return replace(b, breaches=tuple(f"{x}, with one thread" for x in b.breaches))
        merged = worst([a.metrics, b.metrics])
        metrics = replace(merged, count=a.metrics.count, top1_rows=a.metrics.top1_rows)
        wide = [r.widened for r in (a, b) if r.widened is not None]
        widest = max(wide, key=lambda budget: budget.max_rel, default=None)
        return replace(a, metrics=metrics, note=a.note or b.note, widened=widest)


def _rounding(wide: int, hanging: int, measured: int, beyond: str) -> str:
    """Say on how many vectors rounding widened the budget, or left nothing to judge."""
    notes = []
    if wide:
        notes.append(
            f"on {wide} of {measured} vectors only within {SLACK:g} times what float32 rounds off: "
            f"this model is sensitive to rounding; by the plain budget: {beyond}"
        )
    if hanging and measured:
        notes.append(f"rounding alone decides it on {hanging} vectors")
    return "; ".join(notes)


def _run(executable: Executable, vector: Vector) -> dict[str, Array]:
    # Copied: an engine that hands out its own buffer would change the first answer in the second.
    return {k: np.array(v) for k, v in executable.run(vector.feeds).items()}


def _median_ms(executable: Executable, vector: Vector) -> float:
    times: list[float] = []
    until = time.perf_counter() + _TIMED_S
    while len(times) < _TIMED_RUNS and (not times or time.perf_counter() < until):
        start = time.perf_counter()
        executable.run(vector.feeds)
        wall = time.perf_counter() - start
        # In a process of its own the engine's time is the artifact's; the way there is not.
        times.append((executable.last_run_s if able(executable, Timed) else wall) * 1e3)
    return float(np.median(times))


def _coverage_json(coverage: Coverage | None) -> dict[str, Any] | None:
    if coverage is None:
        return None
    return {
        "unit": coverage.unit,
        "operators": coverage.ops,
        "partitions": coverage.partitions,
        "left": dict(sorted(Counter(coverage.left).items())),
        "text": str(coverage),
    }


def _engine_json(engine: EngineResult) -> dict[str, Any]:
    return {
        "backend": engine.backend,
        "version": engine.version,
        "device": engine.device,
        "stands_in": engine.stands_in,
        "verdict": engine.verdict,
        "skipped": engine.skipped,
        "passed": engine.passed,
        "problems": list(engine.problems),
        "notes": list(engine.notes),
        "latency_ms": {str(k): round(v, 4) for k, v in engine.latency_ms.items()},
        "coverage": _coverage_json(engine.coverage),
        "outputs": [
            {
                "name": o.name,
                "metrics": o.metrics.to_json(),
                "breaches": list(o.breaches),
                "vector": o.vector,
                "note": o.note,
                "widened": None if o.widened is None else _finite(o.widened.to_json()),
            }
            for o in engine.outputs
        ],
    }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity; a bound that is none becomes None."""
    return {
        k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()
    }
