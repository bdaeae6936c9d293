import contextlib
import itertools
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgeinfer import accuracy
from edgeinfer.accuracy import NAMES, Outputs, TaskMeasure
from edgeinfer.convert.quantize.search.quality import Judgement
from edgeinfer.errors import UsageError


def measure(
    name: str, outputs: list[Any], labels: list[Any], classes: tuple[str, ...] = ()
) -> float:
    runs = [{"y": np.asarray(o, np.float32)} for o in outputs]
    return TaskMeasure(name, classes)(runs, labels)


def test_the_best_class_and_the_best_five() -> None:
    rows = np.eye(8) * 2 + np.linspace(0, 1, 8)
    assert measure("top1", [rows], list(range(8))) == 1.0
    assert measure("top1", list(rows[:, None]), [0, 1, 2, 3, 0, 0, 0, 0]) == 0.5
    # Of row 0 the best five are 0, 7, 6, 5 and 4.
    assert measure("top5", [rows[:1], rows[:1]], [4, 3]) == 0.5


def test_classes_may_go_by_their_names() -> None:
    """Folders of images are named so; numbers among the names still count."""
    rows = [np.eye(3)[[0, 1, 2, 2]]]
    assert measure("top1", rows, ["red", "green", "blue", 0], ("red", "green", "blue")) == 0.75
    with pytest.raises(UsageError, match="model's 2 labels, received labels such as 'blue'"):
        measure("f1", rows, ["red", "green", "blue", 0], ("red", "green"))


def test_f1_of_two_classes_is_of_the_second() -> None:
    # Found 1, 1, 0, 0 of 1, 0, 1, 0: one hit, one false alarm, one miss.
    rows = np.eye(2)[[1, 1, 0, 0]]
    assert measure("f1", [rows], [1, 0, 1, 0]) == 0.5
    assert measure("f1", [[[0.9]], [[0.8]], [[0.2]], [[0.1]]], [1, 0, 1, 0]) == 0.5
    assert measure("f1", [np.eye(2)[[0, 0]]], [0, 0]) == 1.0


def test_f1_of_more_classes_is_their_mean() -> None:
    rows = np.eye(3)[[0, 1, 2, 2]]
    # Class 0: 1; class 1: 2/3; class 2: 2/3.
    assert measure("f1", [rows], [0, 1, 1, 2]) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def reading(*ids: int) -> Any:
    return np.eye(4)[list(ids)][None]


def test_characters_are_read_once_and_blanks_not_at_all() -> None:
    classes = ("", "a", "b", " ")
    outputs = [reading(0, 1, 1, 0, 1, 2), reading(2, 0, 0, 0, 0, 0)]
    assert measure("cer", outputs, ["aab", "b"], classes) == 1.0
    # One replacement, one insertion in six characters.
    assert measure("cer", outputs, ["aaa", "bab"], classes) == pytest.approx(1 - 3 / 6)
    assert measure("cer", outputs, [[1, 1, 2, -1], [2, -1, -1, -1]]) == 1.0


def test_words_are_what_spaces_part() -> None:
    classes = ("", "a", "b", " ")
    outputs = [reading(1, 3, 2, 0, 0, 0)]
    assert measure("wer", outputs, ["a b"], classes) == 1.0
    assert measure("wer", outputs, ["a a"], classes) == 0.5
    assert measure("cer", outputs, ["a a"], classes) == pytest.approx(2 / 3)


def test_the_nearest_other_sample_has_the_same_label() -> None:
    rows = [[[1.0, 0.0]], [[2.0, 0.1]], [[0.0, 1.0]], [[0.1, 3.0]]]
    assert measure("cosine", rows, [7, 7, 8, 8]) == 1.0
    assert measure("cosine", rows, [7, 8, 8, 7]) == 0.0
    assert measure("cosine", [*rows[:3], [[np.nan, np.nan]]], [7, 7, 8, 8]) == 0.5


def test_the_root_of_the_mean_square_is_taken_off() -> None:
    assert measure("rmse", [[3.0], [4.0]], [0.0, 0.0]) == pytest.approx(-np.sqrt(12.5))
    assert measure("rmse", [[[1.0, 2.0]]], [np.array([1.0, 2.0])]) == 0.0
    assert measure("rmse", [[np.nan]], [0.0]) == -np.inf


BOXES = np.array([[0, 10, 10, 30, 30], [1, 50, 50, 90, 90], [-1, 0, 0, 0, 0]], np.float32)


def test_boxes_are_found_from_half_an_overlap_on() -> None:
    right = [[10, 10, 30, 30, 0.9, 0], [50, 50, 90, 90, 0.8, 1]]
    assert measure("map", [right], [BOXES]) == 1.0
    near = [[12, 10, 32, 30, 0.9, 0], [75, 50, 115, 90, 0.8, 1]]
    assert measure("map", [near], [BOXES]) == 0.5
    # A false alarm with a higher score halves the precision at full recall.
    alarm = [*right, [0, 0, 5, 5, 0.95, 0]]
    assert measure("map", [alarm], [BOXES]) == pytest.approx(0.75)
    # The same box twice is one hit and one false alarm behind it.
    assert measure("map", [[*right, right[0]]], [BOXES]) == 1.0
    assert measure("map", [np.zeros((0, 6))], [BOXES]) == 0.0


def test_boxes_of_a_yolo_head() -> None:
    head = np.zeros((1, 6, 3), np.float32)
    head[0, :4, 0], head[0, 4, 0] = [20, 20, 20, 20], 0.9
    head[0, :4, 1], head[0, 5, 1] = [70, 70, 40, 40], 0.8
    head[0, :4, 2], head[0, 4, 2] = [21, 20, 20, 20], 0.7
    assert measure("map", [head], [BOXES]) == 1.0


def test_what_cannot_be_judged_is_told() -> None:
    with pytest.raises(UsageError, match=f"metric 'best' is unknown; known: {', '.join(NAMES)}"):
        TaskMeasure("best")
    with pytest.raises(UsageError, match="metric 'cer' needs labels: an array 'labels'"):
        measure("cer", [reading(1)], [])
    with pytest.raises(UsageError, match="2 labels, 1 rows"):
        measure("top1", [[[1.0, 2.0]]], [0, 1])
    with pytest.raises(UsageError, match="model's 0 labels, received labels such as 'cat'"):
        measure("top1", [[[1.0, 2.0]]], ["cat"])
    with pytest.raises(UsageError, match="names of classes"):
        measure("cer", [reading(1)], ["a"])
    with pytest.raises(UsageError, match=r"expected \[boxes, 6\] or \[1, 4 \+ classes, boxes\]"):
        measure("map", [np.zeros((3, 4))], [BOXES])
    with pytest.raises(UsageError, match="expected a box in the labels, received none"):
        measure("map", [np.zeros((0, 6))], [BOXES[2:]])
    with pytest.raises(UsageError, match="expected 2 numbers in the labels, received 1"):
        measure("rmse", [[1.0, 2.0]], [0.0])


def test_a_drop_is_a_share_of_the_float_models_quality() -> None:
    expected: list[Outputs] = [{"y": np.eye(4, dtype=np.float32)[[0, 1, 2, 2]]}]
    actual = [{"y": np.eye(4, dtype=np.float32)[[0, 1, 1, 2]]}]
    loss = Judgement(expected, [0, 1, 2, 3], TaskMeasure("top1")).loss(actual)
    # Three of four before, two after.
    assert loss.quality == 0.5
    assert loss.drop == pytest.approx(1 / 3)


def test_a_measure_that_is_no_number_is_told() -> None:
    good: list[Outputs] = [{"y": np.ones((1, 2), np.float32)}]
    lost: list[Outputs] = [{"y": np.full((1, 2), np.nan, np.float32)}]
    labels = [np.array([1.0, 2.0])]
    with pytest.raises(UsageError, match="the metric gives -inf for the float model's own outputs"):
        Judgement(lost, labels, TaskMeasure("rmse")).loss(good)
    assert Judgement(good, labels, TaskMeasure("rmse")).loss(lost).drop == 1.0


def _table_distance(a: list[int], b: list[int]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


@pytest.mark.parametrize("bits", [1, 8, 1 << 13])
def test_edits_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(accuracy, "_BITS", bits)
    random = np.random.default_rng(0)
    for _ in range(200):
        a, b = (random.integers(0, 4, random.integers(0, 30)).tolist() for _ in range(2))
        assert accuracy._distance(a, b) == _table_distance(a, b)


def test_boxes_of_many_classes_are_as_of_each_alone() -> None:
    # Class 0: both found, one false alarm after them; class 2: the worse of two guesses is right.
    box, other = [0, 0, 2, 2], [5, 5, 7, 7]
    labels = [np.array([[2, *other], [0, *box]]), np.array([[0, *other], [-1, 0, 0, 0, 0]])]
    outputs = [
        [[*box, 0.9, 0], [*box, 0.4, 0], [*box, 0.8, 2], [*other, 0.7, 2]],
        [[*other, 0.5, 0], [*other, 0.5, 1]],
    ]
    assert measure("map", outputs, labels) == pytest.approx((1.0 + 0.5) / 2)
    for wrong in (1.5, np.inf):
        with pytest.raises(UsageError, match="class numbers in the labels' first column"):
            measure("map", outputs, [np.array([[wrong, *box]]), labels[1]])


def test_an_integer_that_is_no_class_spells_nothing() -> None:
    """Readings of fixed length are filled up with -1, which once read the last class's name."""
    run = {"y": np.array([[1, 2, -1, -9]])}
    assert TaskMeasure("cer", ("", "a", "b"))([run], ["abzz"]) == 0.5


def _processor_s(act: Callable[[], object]) -> float:
    """Return the least of three: another program takes caches, but no processor time."""
    found = []
    for _ in range(3):
        start = time.process_time()
        act()
        found.append(time.process_time() - start)
    return min(found)


@pytest.mark.parametrize("name", ["f1", "map"])
def test_as_many_classes_as_labels_take_linear_time(name: str) -> None:
    def make(count: int) -> Callable[[], object]:
        numbers = np.arange(count)
        labels: list[Any] = [np.c_[numbers, np.zeros((count, 4))]]
        labels = numbers.tolist() if name == "f1" else labels
        return lambda: measure(name, [np.ones((count, 6))], labels)

    size = 1 << 16 if name == "f1" else 1 << 10
    once, twice = _processor_s(make(size)), _processor_s(make(2 * size))
    assert twice <= 2.5 * once


def test_what_is_compared_with_each_other_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data of a few bytes hold many samples alike; once these were gigabytes, or hours."""
    count = 6_000
    tracemalloc.start()
    try:
        measure("cosine", [np.ones((count, 2))], [0] * count)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    classes = ("", "a")
    text = np.ones((1, 20_000), np.int64)
    assert TaskMeasure("cer", classes)([{"y": text}], ["a" * 20_000]) == 1.0
    refused = "compared with each other in seconds, received too many or too large"
    with pytest.raises(UsageError, match=refused):
        measure("cosine", [np.ones((70_000, 2))], [0] * 70_000)
    long = np.ones((1, 200_000), np.int64)
    with pytest.raises(UsageError, match=refused):
        TaskMeasure("cer", classes)([{"y": long}], ["a" * 200_000])
    with pytest.raises(UsageError, match="readings of at most 67108864 characters"):
        TaskMeasure("cer", ("", "a" * 10_000))([{"y": text}], ["a"])
    monkeypatch.setattr(accuracy, "_MOST_STEPS", 1 << 30)
    alike = np.tile([0.0, 0.0, 1.0, 1.0], (2_000, 1))
    boxes = np.c_[alike + 9, np.ones(len(alike)), np.zeros(len(alike))]
    with pytest.raises(UsageError, match=refused):
        measure("map", [boxes], [np.c_[np.zeros(len(alike)), alike]])


@pytest.mark.parametrize("name", ["top1", "f1", "cosine"])
def test_scores_are_judged_where_the_predicted_class_comes_first(name: str) -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((20, 3)).astype(np.float32)
    labels = rng.integers(0, 3, 20).tolist()
    # The last run holds fewer samples, as of an open batch.
    runs = [
        {"label": s.argmax(axis=1), "probabilities": s}
        for s in (scores[:8], scores[8:16], scores[16:])
    ]
    plain = TaskMeasure(name)([{"y": scores}], labels)
    assert 0 < plain < 1
    assert TaskMeasure(name)(runs, labels) == plain


@pytest.mark.parametrize("name", ["top1", "f1"])
def test_classes_alone_are_judged_as_what_they_are(name: str) -> None:
    scores = np.random.default_rng(1).random((20, 3)).astype(np.float32)
    labels = np.random.default_rng(2).integers(0, 3, 20).tolist()
    classes = scores.argmax(axis=1)
    runs = [{"label": classes[:13]}, {"label": classes[13:]}]
    assert TaskMeasure(name)(runs, labels) == TaskMeasure(name)([{"y": scores}], labels)
    with pytest.raises(UsageError, match="as many labels as classes"):
        TaskMeasure(name)(runs, labels[:-1])


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_that_is_no_number_is_wrong(name: str) -> None:
    """In an order of scores NaN has a place, and label 0 was always found there."""
    shape = (1, 4, 3) if name in ("cer", "wer") else (2, 6) if name == "map" else (1, 4)
    labels: list[Any] = [0]
    if name in ("cer", "wer"):
        labels = ["a"]
    elif name == "map":
        labels = [np.ones((1, 5))]
    elif name == "rmse":
        labels = [np.zeros(shape)]
    found = measure(name, [np.full(shape, np.nan)] * 2, labels * 2, ("", "a", "b"))
    assert found == (-np.inf if name in ("cer", "wer", "rmse") else 0.0)


LABELS = (
    *(0, -1, 1 << 63, 1.5, None, True, "x", "", b"x", [0, 1], {"a": 1}, (), object()),
    *(np.zeros((2, 4)), np.zeros(3), np.array("x"), np.array([None]), np.uint64(1 << 63)),
)
OUTPUTS = (
    *(np.zeros((1, 3)), np.zeros((0, 3)), np.zeros((1, 0)), np.zeros(()), np.array([["a"]])),
    *(np.array([[1 << 63]], np.uint64), np.zeros((1, 2, 3, 4)), np.ones((1, 3), bool)),
    np.array([[None]]),
)


@pytest.mark.parametrize("name", NAMES)
def test_odd_outputs_and_labels_are_refused_in_one_sentence(name: str) -> None:
    for output, label in itertools.product(OUTPUTS, LABELS):
        with contextlib.suppress(UsageError):
            assert isinstance(TaskMeasure(name)([{"y": output}], [label]), float)
