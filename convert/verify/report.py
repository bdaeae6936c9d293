"""The report of a conversion: JSON for programs, one self-contained HTML page for people."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.convert.verify.answers import Answer, Expected, Vector
from edgeinfer.convert.verify.finding import Finding
from edgeinfer.convert.verify.gate import FAIL, NOT_RUN, PASS, VariantResult
from edgeinfer.machine.host import MachineHost, host
from edgeinfer.metrics import WIDENED
from edgeinfer.records import dataclass
from edgeinfer.types import InputRange, TensorSpec

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Change:
    """What one stage did.

    Attributes:
        stage: ``source``, the name of a pass, or a target.
        lines: one plain sentence each.
    """

    stage: str
    lines: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """Everything a reader wants to know about one conversion.

    Attributes:
        name: the model's.
        source: where it came from.
        inputs: Inputs of the source model.
        outputs: Outputs of the source model.
        source_bytes: its size.
        changes: what was changed, by stage, in order.
        ops_before: operator counts as read.
        ops_after: operator counts after normalisation.
        vectors: what was run.
        expected: the oracles' answers; None before they were asked.
        variants: results of the gate.
        findings: by variant id, why it failed.
        tools: package versions.
        seconds: by stage, how long it took.
        ranges: what float inputs lie between, and who says so.
        quantization: how integers came about, JSON-ready; None where none were requested.
        machine: that made it, and whose times those in it are.
        command: line that asks for the same conversion; empty where none is known.
        targets: ids of the variants that each target has; targets that share one name the same.
        layers: errors and times of layers, by variant; JSON-ready; empty where nobody asked.
        language: Language of a language model, by variant, how near it is on text; JSON-ready.
    """

    name: str
    source: SourceRecord
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source_bytes: int = 0
    changes: list[Change] = field(default_factory=list)
    ops_before: dict[str, int] = field(default_factory=dict)
    ops_after: dict[str, int] = field(default_factory=dict)
    vectors: Sequence[Vector] = ()
    expected: Expected | None = None
    variants: list[VariantResult] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    quantization: dict[str, Any] | None = None
    ranges: dict[str, InputRange] = field(default_factory=dict)
    machine: MachineHost = field(default_factory=host)
    layers: dict[str, Any] = field(default_factory=dict)
    language: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    targets: dict[str, list[str]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The least that a variant's verdict says."""
        verdicts = {v.verdict for v in self.variants}
        return next((v for v in (FAIL, NOT_RUN, WIDENED, PASS) if v in verdicts), FAIL)

    @property
    def passed(self) -> bool:
        """Whether no variant failed and the numbers of one at least are right."""
        return self.verdict != FAIL and any(v.passed for v in self.variants)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data; ``schema`` grows by one with every change that breaks readers."""
        answers = self.expected.answers if self.expected else ()
        return {
            "schema": SCHEMA,
            "name": self.name,
            "passed": self.passed,
            "verdict": self.verdict,
            "machine": {**asdict(self.machine), "text": str(self.machine)},
            "command": self.command,
            "targets": {target: list(ids) for target, ids in self.targets.items()},
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": {
                "format": self.source.format,
                "name": self.source.name,
                "sha256": self.source.sha256,
                "size_bytes": self.source_bytes,
            },
            "inputs": [_spec_json(s) for s in self.inputs],
            "outputs": [_spec_json(s) for s in self.outputs],
            "ranges": {
                name: {"low": r.low, "high": r.high, "source": r.source}
                for name, r in self.ranges.items()
            },
            "changes": [{"stage": c.stage, "lines": list(c.lines)} for c in self.changes],
            "ops": {"before": dict(self.ops_before), "after": dict(self.ops_after)},
            "oracles": {
                "confirmed": self.expected.confirmed if self.expected else 0,
                "asked": len(answers),
                "notes": list(self.expected.notes) if self.expected else [],
            },
            "vectors": [
                _vector_json(v, answers[i] if i < len(answers) else None)
                for i, v in enumerate(self.vectors)
            ],
            "variants": [v.to_json() for v in self.variants],
            "findings": {k: f.to_json() for k, f in self.findings.items()},
            "quantization": self.quantization,
            **({"layers": self.layers} if self.layers else {}),
            **({"language": self.language} if self.language else {}),
            "tools": dict(self.tools),
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
        }

    def to_html(self) -> str:
        """Return one self-contained page: no script, font or image from elsewhere."""
        from edgeinfer.convert.verify.page import render

        return render(self.to_json())

    def __repr__(self) -> str:
        return f"<Report {self.name}: {self.verdict}, {len(self.variants)} variants>"

    def _repr_html_(self) -> str:
        """Show the page in a notebook."""
        return _framed(self.to_html())


def _framed(page: str) -> str:
    """Put a page into a frame of its own, so that a notebook's styles and its own stay apart."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox title="conversion report" '
        'style="width: 100%; height: 720px; border: 0"></iframe>'
    )


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "dtype": spec.dtype, "shape": shape}


def _vector_json(vector: Vector, answer: Answer | None) -> dict[str, Any]:
    shapes = {name: list(np.asarray(a).shape) for name, a in vector.feeds.items()}
    found: dict[str, Any] = {
        "origin": vector.origin,
        "edge": vector.edge,
        "shapes": shapes,
        "note": vector.note,
    }
    if answer is not None:
        found["oracle"] = answer.oracle
        found["agreed"] = list(answer.agreed)
        found["oracle_note"] = answer.note
        found["spread"] = {name: m.to_json() for name, m in answer.spread.items()}
    return found
