"""The report of a conversion: JSON for programs, one self-contained HTML page for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.convert.verify.bisect import Finding
from edgeinfer.convert.verify.gate import VariantResult
from edgeinfer.convert.verify.oracles import Expected
from edgeinfer.convert.verify.vectors import Vector
from edgeinfer.types import TensorSpec


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
        inputs: of the source model.
        outputs: of the source model.
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

    @property
    def passed(self) -> bool:
        """Whether no variant failed and one at least passed."""
        verdicts = {v.verdict for v in self.variants}
        return "fail" not in verdicts and "pass" in verdicts

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        raise NotImplementedError

    def to_html(self) -> str:
        """Return one self-contained page: no script, font or picture from elsewhere."""
        raise NotImplementedError
