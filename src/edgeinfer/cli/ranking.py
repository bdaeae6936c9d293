"""Why an engine was chosen: for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.runtime.report import SessionReport

Reasons = list[dict[str, str]]


def ranking(report: SessionReport) -> dict[str, Reasons]:
    """What could run, best first, and what could not, each with its reason."""
    candidates = [
        {
            "variant": c.pair.variant,
            "backend": c.pair.backend,
            "device": c.pair.device,
            "reason": c.reason,
        }
        for c in report.candidates
    ]
    rejected = [
        {"variant": r.variant, "backend": r.backend, "device": r.device, "reason": r.reason}
        for r in report.rejected
    ]
    return {"candidates": candidates, "rejected": rejected}


def why(reports: Sequence[SessionReport]) -> Iterator[str]:
    """The same in lines; notes are printed anyway."""
    for report in reports:
        yield ""
        yield from replace(report, notes=()).lines()
