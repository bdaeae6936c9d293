"""Results are drawn where they are, onto a copy."""

import numpy as np
import pytest

from edgeinfer.media.overlay import COLOURS, overlay
from edgeinfer.results import Classification, DepthMap, Detection, Mask, Segmentation, Text
from edgeinfer.types import Array

pytest.importorskip("PIL")

PAGE = np.full((200, 300, 3), 128, np.uint8)


def changed(drawn: object) -> Array:
    """Where a drawing differs from the page."""
    return np.asarray(np.abs(np.asarray(drawn, np.int64) - PAGE).max(axis=2) > 0)


def test_nothing_found_is_the_picture() -> None:
    assert not changed(overlay(PAGE, [])).any()


def test_a_box_is_drawn_on_its_sides() -> None:
    found = Detection((100.0, 80.0, 180.0, 150.0), 0.9, 0, "cat", ((140.0, 120.0),))
    drawn = overlay(PAGE, [found])
    marks = changed(drawn)
    assert marks[80, 100:180].all()
    assert marks[80:150, 100].all()
    assert marks[120, 140]
    assert not marks[100, 110:130].any()
    assert not marks[160:, :].any()
    assert marks[60:79, 100:120].any()  # its name stands above
    assert tuple(np.asarray(drawn)[150, 140]) == COLOURS[0]


def test_a_box_partly_outside_keeps_its_name_inside() -> None:
    drawn = overlay(PAGE, [Detection((-20.0, -30.0, 60.0, 50.0), 0.9, 7, "dog")])
    assert changed(drawn)[:12, 1:30].any()


def test_turned_lines_of_text() -> None:
    corners = ((50.0, 60.0), (150.0, 90.0), (145.0, 110.0), (45.0, 80.0))
    marks = changed(overlay(PAGE, [Text("x", 0.9, corners), Text("whole", 0.9)]))
    for x, y in corners:
        assert marks[int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2].any()
    assert not marks[85, 95:100].any()


def test_masks_leave_the_background() -> None:
    mask = np.zeros((200, 300), np.uint8)
    mask[50:100, 50:100] = 1
    mask[120:150, 200:250] = 3
    drawn = overlay(PAGE, [Segmentation(mask, (), {0: 1.0})])
    np.testing.assert_array_equal(changed(drawn), mask > 0)
    pixels = np.asarray(drawn)
    assert tuple(pixels[60, 60]) != tuple(pixels[130, 220])


def test_masks_corners_and_numbers_of_objects() -> None:
    mask = Mask(40, 60, np.ones((20, 30), bool))
    found = Detection((40.0, 60.0, 70.0, 80.0), 0.9, 1, "cat", mask=mask, track=12)
    marks = changed(overlay(PAGE, [found]))
    assert marks[62:78, 42:68].all()
    assert not marks[82:, :].any()
    corners = ((100.0, 100.0), (130.0, 120.0), (120.0, 140.0), (90.0, 120.0))
    turned = changed(
        overlay(PAGE, [Detection((90.0, 100.0, 130.0, 140.0), 0.9, 1, "", (), (), corners)])
    )
    assert turned[110, 114:117].any()
    assert not turned[138:142, 92:110].any()


def test_depth_is_drawn_near_is_bright() -> None:
    values = np.tile(np.linspace(1, 5, 300, dtype=np.float32), (200, 1))
    far = np.asarray(overlay(PAGE, [DepthMap(values, nearer_is_larger=False)]))
    assert far[0, 0].tolist() == [255] * 3
    assert far[0, -1].tolist() == [0] * 3


def test_classes_and_a_note_do_not_cover_each_other() -> None:
    classes = [Classification(i, f"class {i}", 0.5) for i in range(3)]
    rows = np.flatnonzero(changed(overlay(PAGE, classes, "12.3 frames/s")).any(axis=1))
    gaps = np.diff(rows).max()
    assert gaps > 40
    assert rows[-1] == 199
