"""Made-up vectors do not outweigh the model; what the user gave always travels."""

import numpy as np

from edgeinfer.convert.verify.answers import Answer, Vector
from edgeinfer.convert.verify.carried import LEAST_BYTES, carried


def vectors(*given: tuple[str, int]) -> tuple[list[Vector], list[Answer]]:
    made = [Vector({"x": np.zeros(size, np.uint8)}, origin) for origin, size in given]
    return made, [Answer({"y": np.zeros(1, np.uint8)}, "a", (), {}) for _ in made]


MADE = "synthetic:natural"


def test_small_ones_all_travel() -> None:
    assert carried(*vectors(*[(MADE, 1000)] * 7), 10) == list(range(7))


def test_the_first_stays_and_others_as_long_as_there_is_room() -> None:
    given = [(MADE, LEAST_BYTES - 300), (MADE, LEAST_BYTES), (MADE, 100), (MADE, 1000), (MADE, 90)]
    assert carried(*vectors(*given), 0) == [0, 2, 4]
    assert carried(*vectors((MADE, 9 * LEAST_BYTES), (MADE, 1)), 0) == [0]


def test_a_large_model_may_have_large_ones() -> None:
    given = [(MADE, LEAST_BYTES)] * 4
    assert carried(*vectors(*given), 8 * LEAST_BYTES + 16) == [0, 1]
    assert carried(*vectors(*given), 100 * LEAST_BYTES) == [0, 1, 2, 3]


def test_what_was_given_is_never_left_out() -> None:
    given = [("user:a.npz", 9 * LEAST_BYTES), ("user:b.npz", 9 * LEAST_BYTES), (MADE, 10)]
    assert carried(*vectors(*given), 0) == [0, 1, 2]
    assert carried([], [], 0) == []


def test_the_hardest_always_travels() -> None:
    given = [(MADE, LEAST_BYTES), (MADE, 10), (MADE, 5 * LEAST_BYTES)]
    assert carried(*vectors(*given), 0, {2}) == [0, 2]
    assert carried(*vectors(("user:a.npz", 10), *given), 0, {3}) == [0, 3]


def test_of_a_calibration_set_a_share_travels_before_what_was_made_up() -> None:
    sample = ("calibration:b.npz", LEAST_BYTES // 2 - 10)
    given = [(MADE, LEAST_BYTES // 4), *[sample] * 16]
    assert carried(*vectors(*given), 0) == [1, 2]
    assert carried(*vectors(*[("calibration:b.npz", 9 * LEAST_BYTES)] * 3), 0) == [0]
    assert carried(*vectors(("user:a.npz", 10), *given), 0) == [0, 2, 3]
