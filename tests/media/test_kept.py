"""What is kept for each size of image has a bound of bytes, whoever chooses the sizes."""

from types import SimpleNamespace

import pytest

from edgeinfer.media.kept import MOST, by_bytes
from edgeinfer.media.windows import neighbours, windows


def test_those_asked_for_last_are_kept() -> None:
    made: list[object] = []

    @by_bytes
    def of(size: int, *, name: str = "") -> SimpleNamespace:
        made.append((size, name))
        return SimpleNamespace(nbytes=size)

    half, third = MOST // 2, MOST // 3
    for size in (half, third, half, third):
        assert of(size, name="a").nbytes == size
    assert made == [(half, "a"), (third, "a")]
    assert of(half) is of(half)
    # The oldest of them made room.
    assert of(third, name="a") is of(third, name="a")
    assert made == [(half, "a"), (third, "a"), (half, "")]
    of(half, name="a")
    assert len(made) == 4


def test_what_is_larger_than_all_is_not_kept() -> None:
    @by_bytes
    def of(size: int) -> SimpleNamespace:
        return SimpleNamespace(nbytes=size)

    small = of(1)
    assert of(MOST + 1) is not of(MOST + 1)
    assert of(1) is small


def test_long_rows_are_not_kept_for_good() -> None:
    """Some 4 MB for a row of 24,000 pixels, of which a client may send any number of lengths."""
    pytest.importorskip("PIL.Image")
    assert windows(300, 200, "bilinear") is windows(300, 200, "bilinear")
    first = windows(24_000, 192_000, "bicubic"), neighbours(24_000, 192_000)
    for each in range(1, 5):
        windows(24_000 - each, 192_000, "bicubic")
        neighbours(24_000 - each, 192_000)
    again = windows(24_000, 192_000, "bicubic"), neighbours(24_000, 192_000)
    assert all(new is not old for new, old in zip(again, first, strict=True))
