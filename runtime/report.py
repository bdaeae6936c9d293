"""What ran where and why, and whether the numbers are right here."""

from __future__ import annotations

import math
from typing import Any

from edgeinfer.backends.operators import OperatorProfile, Placement
from edgeinfer.bundle.codec import encode
from edgeinfer.machine.fingerprint import Fingerprint
from edgeinfer.metrics import OutputMetrics
from edgeinfer.records import dataclass
from edgeinfer.runtime.select import Candidate, Rejected

_OVERLAP = 1.05
"""Share of a run above which operators cannot have run one after another."""


@dataclass(frozen=True, slots=True)
class SessionReport:
    """Why a session runs what it runs.

    Attributes:
        bundle: where it was loaded from.
        model: the model's name.
        variant: id of the variant that runs.
        precision: Precision of the variant.
        backend: that runs it.
        version: Version of the engine.
        device: kind of unit.
        threads: it was loaded with.
        policy: that ranked the candidates.
        machine: this machine.
        candidates: everything that could run here, best first, with reasons.
        rejected: everything that could not, with reasons.
        notes: what the user should know.
        edgeinfer: version of this package.
        isolated: whether the engine runs in a process of its own.
        placement: where the operators run; None on the CPU and where the engine does not tell.
        operators: what each costs, where that was requested.
    """

    bundle: str
    model: str
    variant: str
    precision: str
    backend: str
    version: str
    device: str
    threads: int
    policy: str
    machine: Fingerprint
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...]
    edgeinfer: str
    isolated: bool = False
    placement: Placement | None = None
    operators: OperatorProfile | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; JSON has no infinity, so an unmeasured figure is None."""
        data: dict[str, Any] = _finite(encode(self))
        return data

    def __repr__(self) -> str:
        engine = f"{self.backend} {self.version} ({self.device})"
        return f"<SessionReport {self.model}: {self.variant} on {engine}, {self.threads} threads>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return what is said of it."""
        lines = [
            f"{self.model}: {self.variant} on {self.backend} {self.version} ({self.device}), "
            f"{self.threads} threads, policy {self.policy}"
            + (", in a process of its own" if self.isolated else "")
        ]
        lines += [f"  {i + 1}. {c.pair}: {c.reason}" for i, c in enumerate(self.candidates)]
        lines += [f"  -  {r}" for r in self.rejected]
        lines += [f"  note: {note}" for note in self.notes]
        if self.placement is not None:
            lines.append(f"  {self.placement}")
        if self.operators is not None:
            lines += [f"  {line}" for line in operator_lines(self.operators)]
        return lines


def operator_lines(profile: OperatorProfile) -> list[str]:
    """Say what operators cost, dearest first, and how they add up to a run."""
    lines = [sum_line(profile)]
    for op in sorted(profile.operators, key=lambda o: -(o.us or 0.0)):
        share = op.us / profile.timed_us if op.us is not None and profile.timed_us else None
        part = "" if share is None else f"{op.us:10.1f} us {share:6.1%}  "
        made_of = [n for n in op.nodes if n != op.name]
        more = f" = {' + '.join(made_of)}" if made_of else ""
        facts = " ".join(filter(None, [op.precision, "" if op.role == "compute" else op.role]))
        lines.append(f"{part}{op.kind} on {op.unit}{' ' if facts else ''}{facts}: {op.name}{more}")
    return lines


def sum_line(profile: OperatorProfile) -> str:
    """How the operators add up to a run."""
    if not profile.tool:
        text = f"{len(profile.operators)} operators, without times: {profile.note}"
        return f"{text}; a run takes {profile.plain_us:.1f} us"
    roles = [
        f"{role} {count} ({us:.1f} us)"
        for role, (count, us) in profile.by_role().items()
        if role != "compute"
    ]
    text = (
        f"{len(profile.operators)} operators take {profile.timed_us:.1f} us of the "
        f"{profile.whole_us:.1f} us ({profile.covered:.0%}) of a run with {profile.tool}; "
        f"{profile.plain_us:.1f} us without it"
    )
    more = "some ran side by side, or the clocks differ" if profile.covered > _OVERLAP else ""
    return "; ".join(filter(None, [text, ", ".join(roles), more, profile.note]))


@dataclass(frozen=True, slots=True)
class VectorResult:
    """One bundled vector, run here.

    Attributes:
        path: Path of the vector in the bundle.
        origin: where its inputs come from.
        metrics: distance to the expected output, by output name.
        breaches: what left the budget; empty when nothing did.
    """

    path: str
    origin: str
    metrics: dict[str, OutputMetrics]
    breaches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """The re-check of a session with the bundle's vectors.

    Attributes:
        variant: id of the variant.
        backend: that ran it.
        precision: whose budget counts.
        vectors: one result each.
        notes: which vectors were left out and why.
    """

    variant: str
    backend: str
    precision: str
    vectors: tuple[VectorResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether there were vectors and all stayed within budget."""
        return bool(self.vectors) and not any(v.breaches for v in self.vectors)

    def __repr__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        count = f"{len(self.vectors)} vectors"
        return f"<Verification {self.variant} on {self.backend}: {verdict}, {count}>"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; an infinite signal to error ratio becomes None."""
        data: dict[str, Any] = _finite({"passed": self.passed, **encode(self)})
        return data


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
