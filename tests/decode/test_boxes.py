"""Boxes against plain loops over the definitions."""

import math
from typing import Any

import numpy as np
import pytest

from edgeinfer.decode.boxes import Candidates, anchors, detect, thinned
from edgeinfer.decode.grouping import overlaps
from edgeinfer.errors import RunError
from edgeinfer.heads import AnchorLayer, DetectAnchors, DetectBoxes, DetectGrid
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.types import Array

SAME = ImagePlacement((1.0, 1.0), (0.0, 0.0), (32, 32), (32, 32))
LAYERS = (AnchorLayer(8, (1.0, 1.0)), AnchorLayer(16, (1.0,) * 6))


def blazeface(**changed: Any) -> DetectAnchors:
    fields: dict[str, Any] = {"keypoints": 2, "merge": "weighted", **changed}
    return DetectAnchors(("b0", "b1"), ("s0", "s1"), LAYERS, **fields)


def outputs(count: tuple[int, int] = (32, 24), keypoints: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for i, n in enumerate(count):
        boxes = rng.normal(0, 3, (1, n, 4 + 2 * keypoints)).astype(np.float32)
        boxes[..., 2:4] = rng.uniform(4, 14, (1, n, 2))
        found[f"b{i}"] = boxes
        found[f"s{i}"] = rng.normal(1, 2, (1, n, 1)).astype(np.float32)
    return found


def by_loops(given: dict[str, Array], threshold: float, share: float) -> list[Any]:
    """Decode and merge as MediaPipe's calculators are described, one number at a time."""
    boxes = []
    for layer, (stride, each) in enumerate(((8, 2), (16, 6))):
        cells = 32 // stride
        number = 0
        for row in range(cells):
            for column in range(cells):
                for _ in range(each):
                    raw = given[f"b{layer}"][0, number]
                    score = 1 / (1 + math.exp(-given[f"s{layer}"][0, number, 0]))
                    x, y = (column + 0.5) * stride, (row + 0.5) * stride
                    cx, cy, w, h = raw[0] + x, raw[1] + y, raw[2], raw[3]
                    box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                    box += [raw[4] + x, raw[5] + y, raw[6] + x, raw[7] + y]
                    number += 1
                    if score >= threshold:
                        boxes.append((score, np.array(box, np.float64)))
    boxes.sort(key=lambda pair: -pair[0])
    found = []
    while boxes:
        first = boxes[0]
        group = [b for b in boxes if iou(first[1], b[1]) > share]
        boxes = [b for b in boxes if iou(first[1], b[1]) <= share]
        total = sum(s for s, _ in group)
        found.append((first[0], sum(s * b for s, b in group) / total))
    return found


def iou(a: Array, b: Array) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    both = max(width, 0) * max(height, 0)
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(both / (areas - both))


def test_blazeface_is_decoded_as_by_loops() -> None:
    given = outputs()
    expected = by_loops(given, 0.5, 0.3)
    found = detect(given, blazeface(), SAME, ("face",))
    assert len(found) == len(expected) > 4
    for detection, (score, numbers) in zip(found, expected, strict=True):
        assert detection.score == pytest.approx(score, rel=1e-5)
        np.testing.assert_allclose(detection.box, numbers[:4], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.ravel(detection.keypoints), numbers[4:], rtol=1e-4, atol=1e-4)
        assert (detection.index, detection.label) == (0, "face")


def test_suppression_keeps_the_best_box_as_it_is() -> None:
    given = outputs()
    head = blazeface(merge="suppress")
    kept = detect(given, head, SAME, ())
    merged = detect(given, blazeface(), SAME, ())
    assert [d.score for d in kept] == [d.score for d in merged]
    assert [d.box for d in kept] != [d.box for d in merged]


def test_ssd_boxes_have_sizes_by_exponents_and_a_background() -> None:
    head = DetectAnchors(
        ("b",),
        ("s",),
        (AnchorLayer(16, (10.0,), (20.0,)),),
        order="yxhw",
        scales=(10.0, 10.0, 5.0, 5.0),
        exponential=True,
        activation="softmax",
        background=True,
        threshold=0.3,
    )
    boxes = np.zeros((1, 4, 4), np.float32)
    boxes[0, 2] = (5.0, -2.0, 5 * math.log(0.5), 5 * math.log(2))  # y, x, h, w
    scores = np.zeros((1, 4, 3), np.float32)
    scores[0, :, 0] = 10.0
    scores[0, 2] = (0.0, 0.0, 5.0)
    (found,) = detect({"b": boxes, "s": scores}, head, SAME, ("cat", "dog"))
    # The third anchor is at (8, 24), 10 wide and 20 high.
    cx, cy, w, h = 8 - 0.2 * 10, 24 + 0.5 * 20, 20, 10
    np.testing.assert_allclose(found.box, (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2))
    assert (found.label, found.index) == ("dog", 1)
    assert found.score == pytest.approx(math.exp(5) / (math.exp(5) + 2), rel=1e-5)


def test_anchors_lie_in_the_middle_of_cells_that_need_not_divide_the_input() -> None:
    head = DetectAnchors(("b",), ("s",), (AnchorLayer(100, (30.0, 60.0), (30.0, 30.0)),))
    np.testing.assert_allclose(
        anchors(head, (300, 150))[[0, 1, 10]],
        [(50, 37.5, 30, 30), (50, 37.5, 60, 30), (250, 112.5, 30, 30)],
    )


@pytest.mark.parametrize("channels_first", [False, True])
def test_yolo_boxes_in_pixels(channels_first: bool) -> None:
    rows = np.zeros((6, 6), np.float32)
    rows[0] = (10, 10, 8, 8, 0.9, 0.1)
    rows[1] = (11, 10, 8, 8, 0.8, 0.1)  # the same object
    rows[2] = (10, 10, 8, 8, 0.1, 0.7)  # another class at the same place
    rows[3] = (25, 20, 4, 6, 0.26, 0.0)
    rows[4] = (5, 25, 4, 6, 0.24, 0.0)  # below the threshold
    raw = rows.T[None] if channels_first else rows[None]
    found = detect({"y": raw}, DetectGrid(channels_first=channels_first), SAME, ("a", "b"))
    assert [(d.label, round(d.score, 4)) for d in found] == [("a", 0.9), ("b", 0.7), ("a", 0.26)]
    np.testing.assert_allclose(found[2].box, (23, 17, 27, 23))
    agnostic = DetectGrid(channels_first=channels_first, per_class=False)
    assert [d.label for d in detect({"y": raw}, agnostic, SAME, ("a", "b"))] == ["a", "a"]


def test_yolo_objectness_and_shares() -> None:
    rows = np.array([[[0.5, 0.5, 0.25, 0.5, 0.8, 0.1, 0.5]]], np.float32)
    (found,) = detect({"y": rows}, DetectGrid(objectness=True, unit="share"), SAME, ())
    assert found.score == pytest.approx(0.4)
    assert (found.label, found.box) == ("#1", (12.0, 8.0, 20.0, 24.0))


def test_yolox_cells() -> None:
    count = 16 + 4
    rows = np.full((1, count, 6), -9.0, np.float32)
    rows[0, 6] = (0.5, 0.25, math.log(2), math.log(1), 9, 9)  # grid of 8: column 2, row 1
    rows[0, 16 + 3] = (0.0, 0.0, 0.0, 0.0, 9, 9)  # grid of 16: column 1, row 1
    head = DetectGrid(objectness=True, unit="cells", strides=(8, 16), activation="sigmoid")
    found = detect({"y": rows}, head, SAME, ())
    boxes = sorted(d.box for d in found)
    np.testing.assert_allclose(boxes, [(8, 8, 24, 24), (12, 6, 28, 14)], rtol=1e-6)


def test_decoded_boxes_of_a_model() -> None:
    given = {
        "boxes": np.array([[[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]]], np.float32),
        "scores": np.array([[0.6, 0.9]], np.float32),
        "classes": np.array([[1.0, 2.0]], np.float32),
    }
    head = DetectBoxes("boxes", "scores", "classes", order="yxyx", unit="share", first=1)
    found = detect(given, head, SAME, ("a", "b"))
    assert [(d.label, d.index) for d in found] == [("b", 1), ("a", 0)]
    np.testing.assert_allclose(found[1].box, (6.4, 3.2, 19.2, 16.0), rtol=1e-6)


def test_boxes_are_told_in_pixels_of_the_source() -> None:
    placement = ImagePlacement((0.5, 0.5), (0.0, 4.0), (64, 48), (32, 32))
    rows = np.array([[[16, 16, 8, 8, 0.9]]], np.float32)
    (found,) = detect({"y": rows}, DetectGrid(), placement, ())
    assert found.box == (24.0, 16.0, 40.0, 32.0)


@pytest.mark.parametrize("score", [-9.0, np.nan])
def test_nothing_found(score: float) -> None:
    given = outputs()
    for name in ("s0", "s1"):
        given[name][:] = score
    assert detect(given, blazeface(), SAME, ()) == []
    assert detect({"y": np.zeros((1, 0, 9), np.float32)}, DetectGrid(), SAME, ()) == []


def test_boxes_without_area_or_that_are_no_numbers_are_left_out() -> None:
    rows = np.array(
        [[(9, 9, 0, 4, 0.9), (9, 9, 4, -1, 0.9), (9, 9, np.nan, 4, 0.9), (9, 9, np.inf, 4, 0.9)]],
        np.float32,
    )
    assert detect({"y": rows}, DetectGrid(), SAME, ()) == []


def test_no_more_than_the_most() -> None:
    rows = np.zeros((1, 50, 5), np.float32)
    rows[0, :, 0] = np.arange(50) * 10
    rows[0, :, 2:] = (4, 4, 0.9)
    assert len(detect({"y": rows}, DetectGrid(most=7), SAME, ())) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b1": np.zeros((1, 23, 8))}, "56 anchors, but the model gives 55 boxes"),
        ({"b1": np.zeros((2, 24, 8))}, r"output 'b1' is \[2, 24, 8\], expected \(1, n, 8\)"),
        ({"b1": np.zeros((1, 24, 7))}, r"output 'b1' is \[1, 24, 7\]"),
        ({"s1": np.zeros((1, 20, 1))}, "56 boxes, but 52 scores"),
    ],
)
def test_wrong_shapes_are_named(change: dict[str, Array], message: str) -> None:
    with pytest.raises(RunError, match=message):
        detect({**outputs(), **change}, blazeface(), SAME, ())


def test_wrong_shapes_of_grids() -> None:
    for shape, head in (
        ((2, 5, 6), DetectGrid()),
        ((1, 5, 4), DetectGrid()),
        ((1, 5, 5), DetectGrid(objectness=True)),
        ((1, 21, 6), DetectGrid(unit="cells", strides=(8, 16))),
    ):
        with pytest.raises(RunError, match="head: "):
            detect({"y": np.ones(shape, np.float32)}, head, SAME, ())


def test_overlap_of_boxes() -> None:
    others = np.array([(0, 0, 2, 2), (1, 1, 3, 3), (2, 2, 4, 4), (5, 5, 5, 5)], np.float32)
    np.testing.assert_allclose(overlaps(others[0], others), [1, 1 / 7, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(overlaps(others[3], others), [0, 0, 0, 0])


def test_thinning_agrees_with_every_pair() -> None:
    rng = np.random.default_rng(1)
    low = rng.uniform(0, 60, (200, 2))
    corners = np.concatenate([low, low + rng.uniform(5, 30, (200, 2))], axis=1)
    classes, scores = rng.integers(0, 3, 200), rng.random(200)
    head = DetectGrid(overlap=0.4, most=1000)
    found = thinned(Candidates(corners, scores, classes, np.zeros((200, 0, 2))), 0.4, head)
    kept: list[int] = []
    for i in np.argsort(-scores):
        same = (j for j in kept if classes[j] == classes[i])
        if all(iou(corners[j], corners[i]) <= 0.4 for j in same):
            kept.append(int(i))
    np.testing.assert_array_equal(found.scores, scores[kept])
