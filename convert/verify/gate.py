"""The gate: an artifact is run by the real engine on every vector and measured against a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgeinfer.backends.base import Artifact, Backend
from edgeinfer.convert.verify.oracles import Expected
from edgeinfer.convert.verify.vectors import Vector
from edgeinfer.metrics import Budget, OutputMetrics


@dataclass(frozen=True, slots=True)
class OutputResult:
    """One output over all vectors.

    Attributes:
        name: as in the source model.
        metrics: the worst over all judged vectors.
        breaches: what left the budget; empty when it passed.
        vector: index of the vector with the first breach; None when it passed.
    """

    name: str
    metrics: OutputMetrics
    breaches: tuple[str, ...] = ()
    vector: int | None = None


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
        latency_ms: median of one run on the first vector, by number of threads (0: default).
    """

    backend: str
    version: str | None
    outputs: tuple[OutputResult, ...] = ()
    skipped: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    latency_ms: dict[int, float] | None = None

    @property
    def passed(self) -> bool:
        """Whether it ran and stayed within the budget."""
        return not (self.skipped or self.problems or any(o.breaches for o in self.outputs))


@dataclass(frozen=True, slots=True)
class VariantResult:
    """One artifact on all its backends."""

    id: str
    precision: str
    budget: Budget
    engines: tuple[EngineResult, ...]
    size_bytes: int
    ops: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether one engine at least ran it and none that ran failed."""
        ran = [e for e in self.engines if not e.skipped]
        return bool(ran) and all(e.passed for e in ran)

    @property
    def verdict(self) -> str:
        """``pass``, ``fail`` or ``not run``."""
        if all(e.skipped for e in self.engines):
            return "not run"
        return "pass" if self.passed else "fail"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        raise NotImplementedError

    def accuracy(self) -> dict[str, dict[str, float]]:
        """Return the first engine's metrics in the manifest's form, by output name."""
        raise NotImplementedError

    def failure(self) -> str:
        """Return one line for the error message: which output, which number, which budget."""
        raise NotImplementedError


def verify_variant(
    id: str,
    artifact: Artifact,
    backends: Sequence[Backend],
    vectors: Sequence[Vector],
    expected: Expected,
    *,
    precision: str,
    budget: Budget | None = None,
    ops: dict[str, int] | None = None,
    notes: Sequence[str] = (),
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
        ops: operator counts, for the report.
        notes: of the lowering, for the report.
    """
    raise NotImplementedError
