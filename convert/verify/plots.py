"""Where things stand in a drawing: the template puts them there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.records import dataclass

WIDTH, HEIGHT = 660, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 14, 44
_SMALL, _LARGE = 4.0, 13.0
"""Radii of the smallest and of the largest artifact."""

_BUDGETS = 6.0
"""Losses of so many budgets are drawn to scale."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One artifact in the drawing.

    Attributes:
        x: in pixels from the left.
        y: in pixels from the top.
        radius: its area goes with the size of the artifact.
        kind: ``chosen``, ``float``, ``front`` (no other one beats it) or ``other``.
        text: what it is, with its numbers.
    """

    x: float
    y: float
    radius: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Candidates by what they cost and what they lose.

    Attributes:
        marks: the ones that matter last, so that they lie on top.
        front: points of the line through those that no other one beats.
        budget: height of the line that the budget is.
        columns: place and text along the lower edge.
        rows: place and text along the left edge.
        across: what the lower edge measures.
    """

    marks: tuple[Mark, ...]
    front: str
    budget: float
    columns: tuple[tuple[float, str], ...]
    rows: tuple[tuple[float, str], ...]
    across: str


@dataclass(frozen=True, slots=True)
class _Scales:
    largest_x: float
    largest_y: float
    bytes: float

    def x(self, value: float) -> float:
        return round(_LEFT + value / self.largest_x * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - _BOTTOM - value / self.largest_y * (HEIGHT - _TOP - _BOTTOM), 1)

    def radius(self, size: float) -> float:
        return round(_SMALL + (_LARGE - _SMALL) * math.sqrt(size / self.bytes), 1)


def pareto(search: Mapping[str, Any]) -> Plot | None:
    """Draw a search for a budget, as the report has it; None when it has no candidate."""
    points: list[Mapping[str, Any]] = list(search.get("points") or ())
    chosen, before = search.get("chosen"), search.get("float")
    if not points or not chosen or not before:
        return None
    # Where times say nothing of the device there are none.
    timed = all((p["latency_ms"] or 0.0) > 0 for p in (*points, before))
    key, unit, across = ("latency_ms", 1.0, "ms a run") if timed else ("size_bytes", 1e6, "MB")
    named = [*points, chosen, before]
    scales = _Scales(
        max(p[key] / unit for p in named) * 1.08 or 1.0,
        _tallest(points, chosen, search["max_drop"]) * 1.12,
        max(p["size_bytes"] for p in named) or 1.0,
    )
    front = [_same(p) for p in search.get("pareto") or ()]

    def mark(point: Mapping[str, Any], kind: str, drop: float, what: str) -> Mark:
        size, ms = point["size_bytes"] / 1e6, point["latency_ms"] or 0.0
        time = f"{ms:.3g} ms, " if ms > 0 else ""
        text = f"{what}: {drop:.2%} lost, {time}{size:.2f} MB"
        # What lost far more than is allowed stands on the upper edge.
        x, y = scales.x(point[key] / unit), scales.y(min(drop, scales.largest_y))
        return Mark(x, y, scales.radius(point["size_bytes"]), kind, text)

    marks = []
    for point in points:
        if _same(point) == _same(chosen):
            continue
        kind = "front" if _same(point) in front else "other"
        marks.append(mark(point, kind, point["drop"], _kept(point)))
    marks.sort(key=lambda m: m.kind == "front")
    marks.append(mark(before, "float", 0.0, "float"))
    marks.append(mark(chosen, "chosen", chosen["drop"], f"chosen, {_kept(chosen)}"))
    line = [m for m in marks if m.kind == "front"]
    if _same(chosen) in front:
        line.append(marks[-1])
    line.sort(key=lambda m: (m.x, -m.y))
    return Plot(
        tuple(marks),
        " ".join(f"{m.x},{m.y}" for m in line),
        scales.y(search["max_drop"]),
        tuple((scales.x(v), f"{v:g}") for v in ticks(scales.largest_x)),
        tuple((scales.y(v), f"{100 * v:g}%") for v in ticks(scales.largest_y)),
        across,
    )


def _tallest(
    points: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any], budget: float
) -> float:
    """Return the loss up to which there is a scale: near the budget is where it matters."""
    worst = max([*(p["drop"] for p in points), budget, 1e-4])
    return float(max(min(worst, _BUDGETS * budget) if budget > 0 else worst, chosen["drop"], 1e-4))


def _same(point: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells candidates apart; times of one candidate may be taken twice."""
    kinds = (point.get(key, "") for key in ("form", "recipe", "calibrator"))
    return tuple(point.get("kept", ())), *kinds


def _kept(point: Mapping[str, Any]) -> str:
    count = len(point.get("kept", ()))
    layers = "layer" if count == 1 else "layers"
    ranges = f", ranges by {by}" if (by := point.get("calibrator")) else ""
    return point.get("recipe") or f"{count} {layers} out of 8 bits{ranges}"


def ticks(largest: float, count: int = 5) -> Sequence[float]:
    """Return round numbers from zero up, about so many."""
    if not largest > 0 or not math.isfinite(largest):
        return [0.0]
    rough = largest / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    return [round(i * step, 12) for i in range(int(largest / step) + 1)]
