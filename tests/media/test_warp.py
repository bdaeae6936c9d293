"""Turned rectangles are cut out upright."""

import numpy as np
import pytest

from edgeinfer.media.image import open_image
from edgeinfer.media.warp import cut_out
from edgeinfer.types import Array

pytest.importorskip("PIL")


def assert_same(found: Array, expected: Array) -> None:
    # Pillow cuts off what is behind the point, which the solved projection may bring one down.
    difference = found.astype(int) - expected
    assert found.shape == expected.shape
    assert np.abs(difference).max() <= 1


def test_an_upright_rectangle_is_a_plain_cut() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    cut = cut_out(open_image(pixels), [(10, 5), (30, 5), (30, 17), (10, 17)])
    assert_same(np.asarray(cut), pixels[5:17, 10:30])


def test_corners_decide_which_way_is_up() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    # From the lower left corner upwards: what was left is up.
    cut = np.asarray(cut_out(open_image(pixels), [(10, 17), (10, 5), (30, 5), (30, 17)]))
    assert cut.shape == (20, 12, 3)
    assert_same(cut[:, 1:], np.rot90(pixels[6:17, 10:30], -1))


def test_a_tilted_square() -> None:
    y, x = np.mgrid[0:100, 0:100]
    inside = (abs(x - 50) + abs(y - 50) <= 30).astype(np.uint8) * 255
    cut = cut_out(open_image(inside), [(50, 20), (80, 50), (50, 80), (20, 50)])
    assert cut.size == (42, 42)
    assert (np.asarray(cut)[1:-1, 1:-1] > 200).all()


def test_a_line_without_height_has_one_pixel() -> None:
    cut = cut_out(open_image(np.zeros((9, 9, 3), np.uint8)), [(1, 1), (6, 1), (6, 1.4), (1, 1.4)])
    assert cut.size == (5, 1)
