"""Bytes of images where they lie."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest

from edgeinfer.media.pixels import pixels_of

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(1, 1), (33, 7), (640, 480)])
def test_pillows_memory_is_read(mode: str, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise).convert(mode)
    found = pixels_of(image)
    expected = np.asarray(image).reshape(size[1], size[0], -1)
    np.testing.assert_array_equal(found[..., : expected.shape[2]], expected)


def test_it_lives_as_long_as_the_array() -> None:
    image = Image.new("RGB", (500, 400), (1, 2, 3))
    found = pixels_of(image)
    del image
    gc.collect()
    others = [Image.new("RGB", (500, 400), (9, 9, 9)) for _ in range(4)]
    assert (found[..., :3] == (1, 2, 3)).all()
    assert len(others) == 4
    assert not found.flags.writeable


def test_a_picture_in_several_blocks_is_copied() -> None:
    # Over 16 MB Pillow's rows do not lie one behind the other.
    image = Image.new("RGB", (3000, 1500), (1, 2, 3))
    assert pixels_of(image).shape == (1500, 3000, 3)


def test_an_older_pillow_is_asked_for_a_copy() -> None:
    image = Image.new("L", (4, 3), 7)
    old = SimpleNamespace(
        mode="L", width=4, height=3, __array_interface__=image.__array_interface__
    )
    assert pixels_of(old).tolist() == np.full((3, 4, 1), 7).tolist()


def test_an_array_is_used_as_it_is() -> None:
    noise = np.zeros((4, 5, 3), np.uint8)
    assert pixels_of(noise) is noise
    assert pixels_of(noise[:, ::-1]).flags.c_contiguous
