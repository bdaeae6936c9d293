"""Objects keep their numbers: as ByteTrack gives them on a video, and by definition."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import tracking
from edgeinfer.errors import UsageError
from edgeinfer.results import Detection
from edgeinfer.tracking import Tracker, assign

GOLDEN = Path(__file__).parent / "decode" / "golden" / "bytetrack.npz"


def box(left: float, top: float, score: float = 0.9, size: float = 20.0) -> Detection:
    return Detection((left, top, left + size, top + 2 * size), score, 0, "person")


def test_numbers_are_those_of_ultralytics_on_a_video_of_people() -> None:
    with np.load(GOLDEN) as golden:
        found, expected = golden["found"], golden["tracks"]
    tracker = Tracker()
    numbers: dict[int, int] = {}
    shown = 0
    for frame in range(int(found[-1, 0]) + 1):
        rows = found[found[:, 0] == frame]
        detections = [Detection(tuple(map(float, r[1:5])), float(r[5]), 0, "") for r in rows]  # type: ignore[arg-type]
        ours = {(t.box, t.score): t.track for t in tracker.update(detections)}
        theirs = expected[expected[:, 0] == frame]
        assert len(ours) == len(theirs)
        for _, number, index in theirs:
            told = ours[detections[index].box, detections[index].score]
            assert told is not None
            # The same objects by other numbers.
            assert numbers.setdefault(int(number), told) == told
        shown += len(theirs)
    assert len(set(numbers.values())) == len(numbers) > 15
    assert shown > 1000


def test_a_matching_costs_least_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, columns = rng.integers(1, 5, 2)
        costs = rng.uniform(0, 1, (rows, columns))
        most = float(rng.uniform(0.2, 1.2))
        pairs = assign(costs, most)
        assert len({r for r, _ in pairs}) == len({c for _, c in pairs}) == len(pairs)
        found = sum(costs[p] - most for p in pairs)
        # A column more for each row, which stands for no partner.
        full = np.concatenate([costs - most, np.zeros((rows, rows))], axis=1)
        least = min(
            sum(full[r, c] for r, c in enumerate(chosen))
            for chosen in permutations(range(columns + rows), int(rows))
        )
        assert found == pytest.approx(least, abs=1e-12)


def test_an_object_out_of_sight_keeps_its_number_for_so_long() -> None:
    tracker = Tracker(patience=3)
    assert [t.track for t in tracker.update([box(0, 0), box(100, 0)])] == [1, 2]
    for _ in range(3):
        assert [t.track for t in tracker.update([box(0, 0)])] == [1]
    assert [t.track for t in tracker.update([box(0, 0), box(100, 0)])] == [1, 2]
    for _ in range(4):
        tracker.update([box(0, 0)])
    # Forgotten: it is another one, told when it was seen twice.
    assert [t.track for t in tracker.update([box(0, 0), box(100, 0)])] == [1]
    assert [t.track for t in tracker.update([box(0, 0), box(100, 0)])] == [1, 3]


def test_faint_boxes_go_on_with_an_object_and_begin_none() -> None:
    tracker = Tracker(sure=0.5, faint=0.1)
    tracker.update([box(0, 0, 0.9)])
    assert [t.track for t in tracker.update([box(1, 0, 0.2), box(200, 0, 0.2)])] == [1]
    assert [t.score for t in tracker.update([box(2, 0, 0.2), box(200, 0, 0.2)])] == [0.2]
    assert tracker.update([box(2, 0, 0.05)]) == []


def test_a_moving_object_is_expected_where_it_goes() -> None:
    tracker = Tracker()
    for step in range(12):
        tracker.update([box(8.0 * step, 0)])
    # Three images later the box no longer touches the last one.
    tracker.update([])
    tracker.update([])
    assert [t.track for t in tracker.update([box(8.0 * 14, 0)])] == [1]
    still = Tracker()
    still.update([box(8.0 * 11, 0)])
    still.update([])
    still.update([])
    assert still.update([box(8.0 * 14, 0)]) == []


def test_nothing_seen_and_boxes_without_an_area_are_nothing() -> None:
    tracker = Tracker()
    assert tracker.update([]) == []
    assert tracker.update([Detection((5.0, 5.0, 5.0, 9.0), 0.9, 0, "")]) == []


def test_what_else_is_known_of_an_object_stays() -> None:
    found = Detection((0.0, 0.0, 9.0, 9.0), 0.8, 3, "cat", keypoints=((1.0, 2.0),))
    (told,) = Tracker().update([found])
    assert (told.label, told.keypoints, told.track) == ("cat", ((1.0, 2.0),), 1)


@pytest.mark.parametrize("wrong", [{"faint": 0.9}, {"patience": -1}, {"match": 0.0}, {"sure": 2.0}])
def test_arguments_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="expected 0 <= faint"):
        Tracker(**wrong)  # type: ignore[arg-type]


def test_boxes_of_a_picture_and_objects_out_of_sight_have_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5,000 boxes had no end in a minute."""
    monkeypatch.setattr(tracking, "_MOST", 5)
    tracker = Tracker()
    boxes = [box(40.0 * i, 0.0, 0.5 + i / 100) for i in range(20)]
    found = tracker.update(boxes)
    assert sorted(d.score for d in found) == [0.5 + i / 100 for i in range(15, 20)]
    for shift in range(1, 9):
        down = 99.0 * shift
        moved = [replace(b, box=(b.box[0], down, b.box[2], down + 40.0)) for b in boxes]
        tracker.update(moved)
        tracker.update(moved)
    assert len(tracker._tracks) <= 15
