"""Scores of pixels to a mask of the source image."""

import numpy as np
import pytest

from edgeinfer.decode.masks import segment
from edgeinfer.errors import RunError
from edgeinfer.heads import Segment
from edgeinfer.media.geometry import ImagePlacement


def plain(width: int, height: int) -> ImagePlacement:
    return ImagePlacement((1.0, 1.0), (0.0, 0.0), (width, height), (width, height))


def test_best_class_of_every_pixel() -> None:
    scores = np.random.default_rng(0).normal(size=(1, 4, 70, 9)).astype(np.float32)
    found = segment(scores, Segment(), plain(9, 70), ("a", "b", "c", "d"))
    np.testing.assert_array_equal(found.mask, scores[0].argmax(axis=0))
    assert found.mask.dtype == np.uint8
    assert sum(found.shares.values()) == pytest.approx(1)
    last = segment(scores.transpose(0, 2, 3, 1), Segment(channels_last=True), plain(9, 70), ())
    np.testing.assert_array_equal(last.mask, found.mask)
    assert (found.name(1), last.name(1), found.name(9)) == ("b", "#1", "#9")


@pytest.mark.parametrize(("activation", "threshold"), [("none", 0.0), ("sigmoid", 0.5)])
def test_one_channel_is_class_1(activation: str, threshold: float) -> None:
    scores = np.array([[[[-1.0, 0.0, 2.0]]]], np.float32)
    head = Segment(activation=activation, threshold=threshold)  # type: ignore[arg-type]
    np.testing.assert_array_equal(segment(scores, head, plain(3, 1), ()).mask, [[0, 1, 1]])


def test_the_mask_has_the_size_of_the_source_without_the_letterbox() -> None:
    scores = np.zeros((1, 2, 16, 16), np.float32)
    scores[0, 1, :, 8:] = 1  # the right half of the input
    scores[0, 1, :4] = 9  # what lies in the bar above the image
    placement = ImagePlacement((0.25, 0.25), (0.0, 4.0), (64, 32), (16, 16))
    mask = segment(scores, Segment(), placement, ()).mask
    assert mask.shape == (32, 64)
    assert (mask[3:, :30] == 0).all()
    assert (mask[:, 34:] == 1).all()


def test_a_coarse_output_is_interpolated() -> None:
    scores = np.zeros((1, 2, 1, 2), np.float32)
    scores[0, 0], scores[0, 1] = (1, 0), (0, 1)
    placement = ImagePlacement((1.0, 1.0), (0.0, 0.0), (8, 4), (8, 4))
    np.testing.assert_array_equal(
        segment(scores, Segment(), placement, ()).mask[0], [0, 0, 0, 0, 1, 1, 1, 1]
    )


def test_many_classes_need_two_bytes() -> None:
    scores = np.zeros((1, 300, 2, 2), np.float32)
    scores[0, 299] = 1
    found = segment(scores, Segment(), plain(2, 2), ())
    assert found.mask.dtype == np.uint16
    assert found.shares == {299: 1.0}


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (3, 4, 4), (1, 4)])
def test_wrong_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(RunError, match="expected one image of scores"):
        segment(np.zeros(shape, np.float32), Segment(), plain(4, 4), ())
