"""A search is not over until the gate would take what it chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgeinfer.convert.quantize.search import budget
from edgeinfer.convert.quantize.search.layers import Layer, Point, Search, SearchOutcome
from edgeinfer.convert.quantize.search.quality import Loss
from edgeinfer.convert.quantize.search.trial import CandidateTrials, Samples

LAYERS = [Layer(n, "Conv", 0.25) for n in "abcd"]
LOST = {"a": 0.004, "b": 0.003, "c": 0.002, "d": 0.001}
FLOAT = Point((), 0.0, 0.0, 1.0, 9.0, 4000)


@dataclass
class Candidates:
    """Stands in for trials: the drop is the sum of the layers' own, the gate has a limit."""

    limit: float
    margin: float = 0.0
    job: Any = field(
        default_factory=lambda: SimpleNamespace(format="", profile=SimpleNamespace(precisions=()))
    )
    quantizer: Any = field(default_factory=lambda: SimpleNamespace(model=None))

    def measure(self, kept: frozenset[str]) -> Point:
        drop = sum(LOST[n] for n in LOST if n not in kept)
        margin = self.margin if drop else 0.0
        loss = Loss(drop, drop, 1 - drop, "made up", margin)
        return Point.of(kept, loss, 1.0 + len(kept), 1000 + 100 * len(kept))

    def changes(self, kept: frozenset[str]) -> bool:
        del kept
        return False

    def race(self, samples: Samples, points: Sequence[Point]) -> tuple[Point, list[Point]]:
        del samples
        return FLOAT, [*points]

    def refusal(self, point: Point, asked: object) -> str:
        del asked
        return f"{point.drop:.3f} lost" if point.drop > self.limit + 1e-9 else ""


def settled(monkeypatch: pytest.MonkeyPatch, candidates: Candidates) -> SearchOutcome:
    monkeypatch.setattr(budget, "foresee", lambda model, vectors: None)
    monkeypatch.setattr(budget, "limits_of", lambda *_: SimpleNamespace(fallbacks=()))
    search = Search(LAYERS, candidates.measure, candidates.measure, 0.0101)
    outcome, before = budget._settled(cast(CandidateTrials, candidates), search, Samples(), [])
    assert before is FLOAT
    return outcome


def test_all_integers_are_taken_where_the_gate_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = settled(monkeypatch, Candidates(limit=0.01))
    assert (outcome.chosen.kept, outcome.refused, outcome.holds) == ((), (), True)


def test_what_the_gate_refuses_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = settled(monkeypatch, Candidates(limit=0.005))
    assert outcome.refused == ("0.010 lost",)
    assert 0 < outcome.chosen.drop <= 0.005
    assert outcome.holds


def test_in_the_end_every_layer_stays_float(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = settled(monkeypatch, Candidates(limit=0.0))
    assert outcome.chosen.kept == ("a", "b", "c", "d")
    assert outcome.holds
    assert len(outcome.refused) == 4
    assert outcome.to_json()["refused"] == [*outcome.refused]


def test_what_few_samples_leave_open_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = settled(monkeypatch, Candidates(limit=0.01, margin=0.006))
    assert outcome.chosen.drop <= 0.004
    assert outcome.chosen.kept
    assert outcome.holds


class Tied(Candidates):
    """A weight that two layers read: with one of them in float it is stored in both forms."""

    def measure(self, kept: frozenset[str]) -> Point:
        point = Candidates.measure(self, kept)
        both = len(kept & {"a", "b"}) == 1
        return replace(point, latency_ms=0.0, size_bytes=1000 + 500 * both + 100 * len(kept))


def test_where_nothing_is_timed_the_smallest_of_all_that_were_measured_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidates = Tied(limit=0.007)
    monkeypatch.setattr(budget, "foresee", lambda model, vectors: None)
    monkeypatch.setattr(budget, "limits_of", lambda *_: SimpleNamespace(fallbacks=()))
    search = Search(LAYERS, candidates.measure, candidates.measure, 0.0065, timed=False)
    outcome, _ = budget._settled(cast(CandidateTrials, candidates), search, Samples(), [])
    assert outcome.holds
    # Keeping "a" alone is enough, and larger than keeping all: 1600 bytes against 1400.
    assert outcome.chosen.size_bytes <= 1400
    assert any(p.kept == ("a",) and p.size_bytes == 1600 for p in outcome.points)
