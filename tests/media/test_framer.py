"""Windows of a recording: the same however it was cut, and nothing that was recorded is lost."""

import numpy as np
import pytest

from edgeinfer.media.audio import Framer, cut
from edgeinfer.types import Array, AudioInput


def signal(length: int) -> Array:
    return np.arange(1, length + 1, dtype=np.float32)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 8, 9, 30])
@pytest.mark.parametrize(
    ("samples", "hop", "lead"), [(4, None, 0), (6, 4, 2), (9, 5, 2), (4, 2, 9)]
)
def test_pieces_do_not_matter(length: int, samples: int, hop: int | None, lead: int) -> None:
    whole = [*cut([signal(length)], AudioInput(8000, samples, hop, lead))]
    rng = np.random.default_rng(length)
    for _ in range(5):
        framer = Framer(samples, hop, lead)
        cuts = np.sort(rng.integers(0, length + 1, 4))
        windows = [w for p in np.split(signal(length), cuts) for w in framer.feed(p)]
        windows += framer.finish()
        np.testing.assert_array_equal(np.stack(windows), whole)


@pytest.mark.parametrize(
    ("samples", "hop", "lead"), [(4, None, 0), (6, 4, 2), (9, 5, 2), (4, 2, 9)]
)
def test_every_sample_is_in_a_window(samples: int, hop: int | None, lead: int) -> None:
    for length in range(1, 40):
        found = [*cut([signal(length)], AudioInput(8000, samples, hop, lead))]
        assert set(np.stack(found)[np.stack(found) > 0]) == set(signal(length))


def test_a_window_has_its_past() -> None:
    found = [*cut([signal(8)], AudioInput(8000, 6, 4, 2))]
    np.testing.assert_array_equal(found, [[0, 0, 1, 2, 3, 4], [3, 4, 5, 6, 7, 8]])


def test_gain() -> None:
    np.testing.assert_array_equal([*cut([signal(2)], AudioInput(8000, gain=10.0))], [[10, 20]])


def test_end_of_a_window() -> None:
    framer = Framer(6, 4, 2)
    assert [framer.end_of(n) for n in range(3)] == [4, 8, 12]
