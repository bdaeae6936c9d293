"""Pillow's weights, asked of Pillow."""

from typing import Any

import numpy as np
import pytest

from edgeinfer.media.image import open_image, prepare
from edgeinfer.media.windows import ONE, ResizeWindows, TooManyError, windows
from edgeinfer.types import Array, ImageInput

pytest.importorskip("PIL")


def _resized(pixels: Array, across: ResizeWindows, down: ResizeWindows) -> Array:
    def one(rows: Array, by: ResizeWindows) -> Array:
        wide: Any = rows.astype(np.int64)
        sums = sum(
            wide[by.first + tap] * by.weights[:, tap, np.newaxis, np.newaxis].astype(np.int64)
            for tap in range(by.weights.shape[1])
        )
        return np.asarray(((sums + (ONE >> 1)) >> 22).clip(0, 255).astype(np.uint8))

    return one(one(pixels.transpose(1, 0, 2), across).transpose(1, 0, 2), down)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_what_they_give_is_what_pillow_gives(interpolation: Any) -> None:
    rng = np.random.default_rng(0)
    for case in range(40):
        old, new = rng.integers(1, 120, 2), rng.integers(1, 120, 2)
        if case % 5 == 0:
            new[0] = old[0]
        noise = rng.integers(0, 256, (old[1], old[0], 3), dtype=np.uint8)
        if case % 2:
            noise = (noise > 127) * np.uint8(255)
        wide, tall = map(int, new)
        record = ImageInput(wide, tall, interpolation=interpolation, scale=1.0, layout="NHWC")
        expected = prepare(open_image(noise), record, "uint8")[0][0]
        pairs = zip(old, new, strict=True)
        sides = [windows(int(a), int(b), interpolation) for a, b in pairs]
        np.testing.assert_array_equal(_resized(noise, *sides), expected, err_msg=f"{old} to {new}")


def test_windows_lie_inside_and_sum_up_to_one() -> None:
    for old, new in ((1920, 224), (224, 1920), (7, 300), (300, 7), (2, 3)):
        found = windows(old, new, "bicubic")
        assert found.first.min() >= 0
        assert int((found.first + found.weights.shape[1]).max()) <= old
        np.testing.assert_allclose(found.weights.sum(axis=1), ONE, atol=found.weights.shape[1])


def test_one_that_covers_thousands_of_pixels_is_left_to_pillow() -> None:
    with pytest.raises(TooManyError):
        windows(20000, 2, "bilinear")


def test_a_side_that_stays_is_left_alone() -> None:
    found = windows(5, 5, "bilinear")
    assert found.first.tolist() == [0, 1, 2, 3, 4]
    assert found.weights.tolist() == [[ONE]] * 5
