"""The drawing of a search shows every candidate where its numbers are."""

from typing import Any

import pytest

from edgeinfer.convert.verify.plots import HEIGHT, WIDTH, pareto, ticks


def point(drop: float, ms: float, size: int, *kept: str) -> dict[str, Any]:
    return {"drop": drop, "latency_ms": ms, "size_bytes": size, "kept": list(kept), "form": "fp32"}


def search(**more: Any) -> dict[str, Any]:
    small, middle, slow = (
        point(0.2, 1.0, 1_000_000),
        point(0.005, 1.5, 2_000_000, "a"),
        point(0.01, 3.0, 3_000_000, "a", "b"),
    )
    return {
        "max_drop": 0.01,
        "points": [small, middle, slow],
        "pareto": [small, middle],
        "chosen": middle,
        "float": {"latency_ms": 4.0, "size_bytes": 4_000_000},
        **more,
    }


def test_marks_lie_where_their_numbers_are() -> None:
    plot = pareto(search())
    assert plot is not None
    kinds = {m.kind: m for m in plot.marks}
    assert [m.kind for m in plot.marks] == ["other", "front", "float", "chosen"]
    assert kinds["chosen"].text == "chosen, 1 layer out of 8 bits: 0.50% lost, 1.5 ms, 2.00 MB"
    assert kinds["front"].x < kinds["chosen"].x < kinds["other"].x < kinds["float"].x
    # Down is less lost; the float model lies on the lower edge.
    assert kinds["front"].y < plot.budget < kinds["chosen"].y < kinds["float"].y
    assert kinds["other"].y == plot.budget
    assert kinds["front"].radius < kinds["chosen"].radius < kinds["float"].radius
    assert plot.front.split() == [
        f"{kinds['front'].x},{kinds['front'].y}",
        f"{kinds['chosen'].x},{kinds['chosen'].y}",
    ]
    assert all(0 <= m.x <= WIDTH and 0 <= m.y <= HEIGHT for m in plot.marks)
    assert plot.across == "ms a run"


def test_far_more_than_the_budget_stands_on_the_upper_edge() -> None:
    lost = point(0.95, 2.0, 1_000_000, "x")
    middle = search()["chosen"]
    plot = pareto(search(points=[lost, middle], pareto=[middle]))
    assert plot is not None
    assert plot.marks[0].text.startswith("1 layer out of 8 bits: 95.00% lost")
    assert plot.marks[0].y == pytest.approx(14)
    # The others keep their distance from the budget.
    assert plot.marks[-1].y - plot.budget > 10


def test_without_times_the_size_counts() -> None:
    points = [point(0.0, 0.0, 10), point(0.1, 0.0, 5, "a")]
    plot = pareto(search(points=points, pareto=[], chosen=points[0]))
    assert plot is not None
    assert plot.across == "MB"
    assert "ms" not in plot.marks[0].text


@pytest.mark.parametrize("empty", [{}, {"points": []}, {"points": [point(0, 1, 1)]}])
def test_nothing_is_drawn_of_nothing(empty: dict[str, Any]) -> None:
    assert pareto(empty) is None


def test_all_the_same_is_still_a_drawing() -> None:
    same = point(0.0, 1.0, 1)
    before = {"latency_ms": 1.0, "size_bytes": 1}
    plot = pareto(search(points=[same], pareto=[same], chosen=same, max_drop=0.0, float=before))
    assert plot is not None
    assert plot.marks[-1].y == plot.budget


def test_ticks_are_round() -> None:
    assert ticks(4.3) == [0, 1, 2, 3, 4]
    assert ticks(0.0112) == [0, 0.005, 0.01]
    assert ticks(0.0) == ticks(float("inf")) == [0.0]


def test_candidates_with_other_ranges_are_candidates_of_their_own() -> None:
    plain = {**point(0.02, 1.0, 1_000_000), "calibrator": ""}
    other = {**point(0.005, 1.0, 1_000_000), "calibrator": "mse*0.6"}
    plot = pareto(search(points=[plain, other], pareto=[other], chosen=other))
    assert plot is not None
    assert [m.kind for m in plot.marks] == ["other", "float", "chosen"]
    assert plot.marks[-1].text.startswith("chosen, 0 layers out of 8 bits, ranges by mse*0.6: ")
