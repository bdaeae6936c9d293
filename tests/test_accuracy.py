from typing import Any

import numpy as np
import pytest

from edgeinfer.accuracy import NAMES, Named, Outputs
from edgeinfer.convert.quantize.search.quality import Judgement
from edgeinfer.errors import UsageError


def measure(
    name: str, outputs: list[Any], labels: list[Any], classes: tuple[str, ...] = ()
) -> float:
    runs = [{"y": np.asarray(o, np.float32)} for o in outputs]
    return Named(name, classes)(runs, labels)


def test_the_best_class_and_the_best_five() -> None:
    rows = np.eye(8) * 2 + np.linspace(0, 1, 8)
    assert measure("top1", [rows], list(range(8))) == 1.0
    assert measure("top1", list(rows[:, None]), [0, 1, 2, 3, 0, 0, 0, 0]) == 0.5
    # Of row 0 the best five are 0, 7, 6, 5 and 4.
    assert measure("top5", [rows[:1], rows[:1]], [4, 3]) == 0.5


def test_classes_may_go_by_their_names() -> None:
    """Folders of pictures are named so; numbers among the names still count."""
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
        Named("best")
    with pytest.raises(UsageError, match="metric 'cer' needs labels: an array 'labels'"):
        measure("cer", [reading(1)], [])
    with pytest.raises(UsageError, match="2 labels, 1 rows"):
        measure("top1", [[[1.0, 2.0]]], [0, 1])
    with pytest.raises(UsageError, match="model's 0 labels, received labels such as 'cat'"):
        measure("top1", [[[1.0, 2.0]]], ["cat"])
    with pytest.raises(UsageError, match="names of classes"):
        measure("cer", [reading(1)], ["a"])
    with pytest.raises(UsageError, match=r"expected \[boxes, 6\] or \[1, 4 \+ classes, places\]"):
        measure("map", [np.zeros((3, 4))], [BOXES])
    with pytest.raises(UsageError, match="expected a box in the labels, received none"):
        measure("map", [np.zeros((0, 6))], [BOXES[2:]])
    with pytest.raises(UsageError, match="expected 2 numbers in the labels, received 1"):
        measure("rmse", [[1.0, 2.0]], [0.0])


def test_a_drop_is_a_share_of_the_float_models_quality() -> None:
    expected: list[Outputs] = [{"y": np.eye(4, dtype=np.float32)[[0, 1, 2, 2]]}]
    actual = [{"y": np.eye(4, dtype=np.float32)[[0, 1, 1, 2]]}]
    loss = Judgement(expected, [0, 1, 2, 3], Named("top1")).loss(actual)
    # Three of four before, two after.
    assert loss.quality == 0.5
    assert loss.drop == pytest.approx(1 / 3)


def test_a_measure_that_is_no_number_is_told() -> None:
    good: list[Outputs] = [{"y": np.ones((1, 2), np.float32)}]
    lost: list[Outputs] = [{"y": np.full((1, 2), np.nan, np.float32)}]
    labels = [np.array([1.0, 2.0])]
    with pytest.raises(UsageError, match="the metric gives -inf for the float model's own outputs"):
        Judgement(lost, labels, Named("rmse")).loss(good)
    assert Judgement(good, labels, Named("rmse")).loss(lost).drop == 1.0
