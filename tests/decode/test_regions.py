"""Regions of a map and their boxes, against plain searches."""

import numpy as np
import pytest

from edgeinfer.decode.regions import (
    find_text,
    hull,
    in_reading_order,
    mean_inside,
    regions,
    smallest_box,
)
from edgeinfer.errors import RunError
from edgeinfer.heads import FindText
from edgeinfer.media.geometry import ImagePlacement
from edgeinfer.results import Text
from edgeinfer.types import Array


def plain(array: Array) -> ImagePlacement:
    size = (array.shape[1], array.shape[0])
    return ImagePlacement((1.0, 1.0), (0.0, 0.0), size, size)


def flooded(bitmap: Array) -> list[set[tuple[int, int]]]:
    """Return the pixels of each region by walking from pixel to pixel."""
    left = {(int(x), int(y)) for y, x in np.argwhere(bitmap)}
    found = []
    while left:
        region, front = set(), [min(left, key=lambda p: (p[1], p[0]))]
        while front:
            x, y = front.pop()
            if (x, y) not in left:
                continue
            left.remove((x, y))
            region.add((x, y))
            front += [(x + i, y + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        found.append(region)
    return found


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.45, 0.6, 0.95, 1.0])
def test_regions_are_those_of_a_walk(share: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(12):
        bitmap = rng.random((17, 23)) < share
        found, expected = regions(bitmap), flooded(bitmap)
        assert len(found) == len(expected)
        by_first = {min(region, key=lambda p: (p[1], p[0])): region for region in expected}
        for points in found:
            first = (int(points[0, 0]), int(points[0, 1]))
            region = by_first[first]
            ends = {(int(x), int(y)) for x, y in points}
            assert ends <= region
            np.testing.assert_array_equal(hull(points), hull(np.array(sorted(region))))


def test_a_hull_holds_all_points_and_only_turns_left() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 8, 60):
        points = rng.integers(0, 12, (count, 2))
        outline = hull(points)
        assert {tuple(p) for p in outline} <= {tuple(p) for p in points.astype(float)}
        edges = np.roll(outline, -1, axis=0) - outline
        for corner, edge in zip(outline, edges, strict=True):
            away = points - corner
            assert (edge[0] * away[:, 1] - edge[1] * away[:, 0] >= -1e-9).all()


def test_the_smallest_box_is_no_larger_than_at_any_angle() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        points = rng.normal(0, (9, 2), (30, 2)) @ turned(rng.uniform(0, np.pi))
        box = smallest_box(points)
        area = box.sides[0] * box.sides[1]
        for angle in np.linspace(0, np.pi / 2, 91):
            spread = np.ptp(points @ turned(angle), axis=0)
            assert area <= spread.prod() + 1e-9
        local = (points - box.middle) @ np.stack([box.axis, (-box.axis[1], box.axis[0])], axis=1)
        assert (np.abs(local) <= np.array(box.sides) / 2 + 1e-9).all()


def turned(angle: float) -> Array:
    return np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])


@pytest.mark.parametrize("points", [[(3, 4)], [(3, 4), (3, 4)], [(0, 0), (3, 4)]])
def test_points_without_area_have_a_flat_box(points: list[tuple[int, int]]) -> None:
    box = smallest_box(np.array(points))
    assert min(box.sides) < 1e-9
    assert np.isfinite(box.corners).all()


def test_mean_inside_counts_the_outline() -> None:
    values = np.arange(64.0).reshape(8, 8)
    square = np.array([(2, 1), (4, 1), (4, 3), (2, 3)])
    assert mean_inside(values, square) == values[1:4, 2:5].mean()
    diamond = np.array([(3, 1), (5, 3), (3, 5), (1, 3)])
    x, y = np.meshgrid(np.arange(8), np.arange(8))
    assert mean_inside(values, diamond) == values[abs(x - 3) + abs(y - 3) <= 2].mean()
    assert mean_inside(values, square + 100) == 0.0


def test_a_box_is_widened_by_area_over_outline() -> None:
    chances = np.zeros((60, 200), np.float32)
    chances[20:30, 40:100] = 0.9  # pixel centres are 59 and 9 apart
    head = FindText(unclip=1.5, box_threshold=0.6)
    (found,) = find_text(chances[None, None], head, plain(chances))
    grown = 59 * 9 * 1.5 / (2 * (59 + 9))
    left, top, right, bottom = 40 - grown, 20 - grown, 99 + grown, 29 + grown
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    np.testing.assert_allclose(found.corners, corners, rtol=1e-6)
    assert found.text == ""
    assert found.score == pytest.approx(0.9)


def test_a_tilted_line_has_a_tilted_box_from_its_top_left() -> None:
    y, x = np.mgrid[0:120, 0:200]
    along = (x - 100) * np.cos(0.3) + (y - 60) * np.sin(0.3)
    across = (y - 60) * np.cos(0.3) - (x - 100) * np.sin(0.3)
    chances = ((abs(along) < 60) & (abs(across) < 7)).astype(np.float32)
    (found,) = find_text(chances[None, None], FindText(), plain(chances))
    first, second, third, _ = np.array(found.corners)
    angle = np.arctan2(*(second - first)[::-1])
    assert angle == pytest.approx(0.3, abs=0.02)
    assert np.hypot(*(second - first)) > 3 * np.hypot(*(third - second))


def test_what_is_too_small_or_too_faint_is_left_out() -> None:
    chances = np.zeros((60, 100), np.float32)
    chances[5:7, 5:60] = 0.9  # one pixel from centre to centre
    chances[20:30, 10:60] = 0.4  # fainter than a box may be
    assert find_text(chances[None, None], FindText(box_threshold=0.6), plain(chances)) == []
    assert find_text(np.zeros((1, 1, 32, 32)), FindText(), plain(chances)) == []


def test_dilation_joins_what_is_one_pixel_apart() -> None:
    chances = np.zeros((40, 80), np.float32)
    chances[10:20, 10:30] = chances[10:20, 32:60] = 0.9
    apart = find_text(chances[None, None], FindText(), plain(chances))
    # Two pixels lie between them; each grows by one to the right.
    assert len(apart) == 2
    chances[10:20, 30] = 0.9
    joined = FindText(dilate=True, box_threshold=0.5)
    assert len(find_text(chances[None, None], joined, plain(chances))) == 1


def test_boxes_are_in_pixels_of_the_source_and_inside_it() -> None:
    chances = np.zeros((32, 64), np.float32)
    chances[0:8, 0:40] = 1.0
    placement = ImagePlacement((0.5, 0.5), (0.0, 0.0), (128, 64), (64, 32))
    (found,) = find_text(chances[None, None], FindText(), placement)
    corners = np.array(found.corners)
    np.testing.assert_array_equal(corners[0], (0, 0))
    assert corners.max() < 128
    assert corners[2, 1] > 14


def test_reading_order() -> None:
    def at(x: float, y: float) -> Text:
        return Text(f"{x},{y}", 1.0, ((x, y), (x + 5, y), (x + 5, y + 5), (x, y + 5)))

    texts = [at(0, 50), at(60, 4), at(0, 9), at(30, 0), at(0, 30)]
    ordered = [t.text for t in in_reading_order(texts)]
    assert ordered == ["0,9", "30,0", "60,4", "0,30", "0,50"]


def test_lines_that_lie_in_each_other_are_refused() -> None:
    # Each is widened to the whole picture, of which all would be cut out again and again.
    chances = np.zeros((200, 200), np.float32)
    for row in range(4, 196, 12):
        for column in range(4, 180, 24):
            chances[row : row + 8, column : column + 18] = 0.9
    with pytest.raises(RunError, match="lines of text lie in each other"):
        find_text(chances[None, None], FindText(unclip=1e4), plain(chances))
