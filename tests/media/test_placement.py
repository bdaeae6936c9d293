"""Images from files, arrays and Pillow, and where they lie in the model's input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import InputError
from edgeinfer.media.image import open_image, prepare, sampled
from edgeinfer.types import Array, ImageInput

Image = pytest.importorskip("PIL.Image")


def spot(width: int, height: int, x: int, y: int, side: int = 8) -> Array:
    """Black with a white square."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[y : y + side, x : x + side] = 255
    return pixels


RECORDS = {
    "stretch": ImageInput(64, 48, scale=1.0),
    "crop": ImageInput(48, 48, resize="crop", scale=1.0),
    "crop ratio": ImageInput(48, 48, resize="crop", crop_ratio=0.75, scale=1.0),
    "letterbox": ImageInput(64, 64, resize="letterbox", scale=1.0, pad=0),
    "letterbox start": ImageInput(64, 64, resize="letterbox", scale=1.0, pad=0, align="start"),
    "pad": ImageInput(64, 64, resize="pad", scale=1.0, pad=0),
    "pad wide": ImageInput(96, 48, resize="pad", scale=1.0, pad=0, align="start"),
    "limit": ImageInput(None, None, resize="limit", side=96, multiple=32, scale=1.0),
    "limit max": ImageInput(
        None, None, resize="limit", side=64, side_rule="max", multiple=16, scale=1.0
    ),
    "line": ImageInput(100, 40, resize="line", scale=1.0, pad=0),
    "line grows": ImageInput(20, 40, resize="line", scale=1.0, pad=0, grow=True),
    "sampled": ImageInput(64, 48, scale=1.0, antialias=False),
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("size", [(120, 90), (90, 120), (80, 80)])
def test_a_point_of_the_input_is_found_in_the_source(name: str, size: tuple[int, int]) -> None:
    x, y = size[0] // 2 - 5, size[1] // 2 + 3
    tensor, placement = prepare(open_image(spot(*size, x, y)), RECORDS[name])
    assert placement.source == size
    assert placement.size == tensor.shape[:1:-1]
    weights = tensor[0, 0]
    rows, columns = np.indices(weights.shape) + 0.5
    middle = [(columns * weights).sum() / weights.sum(), (rows * weights).sum() / weights.sum()]
    # Less than one pixel of the input off, in pixels of the source.
    step = 1 / min(placement.scale)
    np.testing.assert_allclose(placement.to_source(np.array(middle)), [x + 4, y + 4], atol=step)


def test_a_line_is_filled_up_on_the_right() -> None:
    record = ImageInput(100, 10, resize="line", mean=(0.5,), std=(0.5,), pad=127.5)
    tensor, placement = prepare(open_image(np.full((20, 40, 3), 255, np.uint8)), record)
    assert tensor.shape == (1, 3, 10, 100)
    np.testing.assert_allclose(tensor[..., :20], 1.0, atol=1e-6)
    assert np.abs(tensor[..., 20:]).max() == 0.0
    np.testing.assert_allclose(placement.to_source(np.array([20.0, 10.0])), [40, 20])


def test_a_long_line_is_squeezed_unless_it_may_grow() -> None:
    picture = open_image(np.zeros((20, 300, 3), np.uint8))
    fixed = ImageInput(100, 10, resize="line")
    assert prepare(picture, fixed)[0].shape == (1, 3, 10, 100)
    grows = ImageInput(100, 10, resize="line", grow=True)
    assert prepare(picture, grows)[0].shape == (1, 3, 10, 150)


@pytest.mark.parametrize(
    ("size", "rule", "expected"),
    [
        ((384, 191), "min", (1472, 736)),
        ((1000, 800), "min", (992, 800)),
        ((1000, 500), "max", (736, 384)),
        ((300, 200), "max", (288, 192)),
        ((5, 400), "max", (32, 384)),
    ],
)
def test_limits_of_sides(size: tuple[int, int], rule: Any, expected: tuple[int, int]) -> None:
    record = ImageInput(None, None, resize="limit", side=736, side_rule=rule, multiple=32)
    _, placement = prepare(open_image(np.zeros((*size[::-1], 3), np.uint8)), record)
    assert placement.size == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [((700, 10), (1984, 32)), ((4000, 3000), (1984, 1504)), ((384, 191), (1472, 736))],
)
def test_a_thin_or_large_picture_does_not_grow_without_end(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    record = ImageInput(None, None, resize="limit", side=736, longest=2000, multiple=32)
    _, placement = prepare(open_image(np.zeros((*size[::-1], 3), np.uint8)), record)
    assert placement.size == expected


def test_sampling_takes_four_pixels() -> None:
    row = np.array([[0, 100, 200, 40]], np.uint8)
    # Half the size: each new pixel lies between two old ones, whatever lies further away.
    np.testing.assert_array_equal(sampled(row, (2, 1)), [[50, 120]])
    # A third: the middle pixel of each three, nothing of its neighbours.
    np.testing.assert_array_equal(
        sampled(np.array([[9, 1, 9, 9, 2, 9]], np.uint8), (2, 1)), [[1, 2]]
    )
    # Twice the size: quarters, and the outermost pixels beyond the first and last centre.
    np.testing.assert_array_equal(sampled(row[:, :2], (4, 1)), [[0, 25, 75, 100]])


def test_the_same_picture_in_every_form(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)
    path = tmp_path / "x.png"
    Image.fromarray(pixels).save(path)
    record = ImageInput(None, None)
    forms = (path, str(path), pixels, Image.fromarray(pixels), pixels[:, ::-1][:, ::-1])
    first, *others = (prepare(open_image(form), record)[0] for form in forms)
    for other in others:
        np.testing.assert_array_equal(other, first)
    alpha = np.dstack([pixels, np.full((9, 7), 255, np.uint8)])
    np.testing.assert_array_equal(prepare(open_image(alpha), record)[0], first)
    grey = prepare(open_image(pixels[:, :, 0]), record)[0]
    np.testing.assert_allclose(grey[0, 2], pixels[:, :, 0] / np.float32(255), atol=1e-7)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.int64),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        None,
        [1.5, 2.5],
    ],
)
def test_what_is_no_picture_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="expected a path, a Pillow image or uint8"):
        open_image(wrong)
