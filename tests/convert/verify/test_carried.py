"""Made-up vectors do not outweigh the model; what the user gave always travels."""

import numpy as np

from edgeinfer import parts
from edgeinfer.convert.verify.answers import Answer, Vector
from edgeinfer.convert.verify.carried import (
    LEAST_BYTES,
    ROOM_BYTES,
    carried,
    fitting,
    room_for,
)


def vectors(*given: tuple[str, int]) -> tuple[list[Vector], list[Answer]]:
    made = [Vector({"x": np.zeros(size, np.uint8)}, origin) for origin, size in given]
    return made, [Answer({"y": np.zeros(1, np.uint8)}, "a", (), {}) for _ in made]


MADE = "synthetic:natural"


def test_small_ones_all_travel() -> None:
    assert carried(*vectors(*[(MADE, 1000)] * 7), LEAST_BYTES) == list(range(7))


def test_the_first_stays_and_others_as_long_as_there_is_room() -> None:
    given = [(MADE, LEAST_BYTES - 300), (MADE, LEAST_BYTES), (MADE, 100), (MADE, 1000), (MADE, 90)]
    assert carried(*vectors(*given), LEAST_BYTES) == [0, 2, 4]
    assert carried(*vectors((MADE, 9 * LEAST_BYTES), (MADE, 1)), LEAST_BYTES) == [0]


def test_a_large_model_may_have_large_ones() -> None:
    given = [(MADE, LEAST_BYTES)] * 4
    assert carried(*vectors(*given), 2 * LEAST_BYTES + 4) == [0, 1]
    assert carried(*vectors(*given), 100 * LEAST_BYTES) == [0, 1, 2, 3]


def test_what_was_given_is_never_left_out() -> None:
    given = [("user:a.npz", 9 * LEAST_BYTES), ("user:b.npz", 9 * LEAST_BYTES), (MADE, 10)]
    assert carried(*vectors(*given), LEAST_BYTES) == [0, 1, 2]
    assert carried([], [], LEAST_BYTES) == []


def test_the_hardest_always_travels() -> None:
    given = [(MADE, LEAST_BYTES), (MADE, 10), (MADE, 5 * LEAST_BYTES)]
    assert carried(*vectors(*given), LEAST_BYTES, {2}) == [0, 2]
    assert carried(*vectors(("user:a.npz", 10), *given), LEAST_BYTES, {3}) == [0, 3]


def test_of_a_calibration_set_a_share_travels_before_what_was_made_up() -> None:
    sample = ("calibration:b.npz", LEAST_BYTES // 2 - 10)
    given = [(MADE, LEAST_BYTES // 4), *[sample] * 16]
    assert carried(*vectors(*given), LEAST_BYTES) == [1, 2]
    assert carried(*vectors(*[("calibration:b.npz", 9 * LEAST_BYTES)] * 3), LEAST_BYTES) == [0]
    assert carried(*vectors(("user:a.npz", 10), *given), LEAST_BYTES) == [0, 2, 3]


def test_room_goes_by_the_largest_artifact_and_by_all_of_them() -> None:
    assert room_for([1000, 2000]) == LEAST_BYTES
    assert room_for([3 * LEAST_BYTES, LEAST_BYTES]) == 3 * LEAST_BYTES
    assert room_for([3 * ROOM_BYTES, ROOM_BYTES]) == ROOM_BYTES
    assert room_for([6 * ROOM_BYTES, 6 * ROOM_BYTES]) == 3 * ROOM_BYTES


def test_the_hardest_serves_as_the_first_of_its_sizes_where_both_have_no_room() -> None:
    size = LEAST_BYTES - 200
    given = [(MADE, size), (MADE, size), (MADE, size + 1)]
    assert carried(*vectors(*given), LEAST_BYTES, {1}) == [1]
    assert carried(*vectors(*given), LEAST_BYTES, {2}) == [0, 2]
    assert carried(*vectors(*given), 2 * LEAST_BYTES, {1}) == [0, 1]


def test_large_outputs_are_told_by_a_part() -> None:
    large = np.random.default_rng(0).standard_normal((1, 21, 512, 512)).astype(np.float32)
    answer = Answer({"map": large, "few": large[0, :, 0, 0]}, "a", (), {})
    fits = fitting(answer, LEAST_BYTES)
    assert fits.outputs["map"].nbytes < LEAST_BYTES / 2
    assert parts.whole_shape(fits.outputs["map"]) == large.shape
    assert fits.outputs["few"] is answer.outputs["few"]
    assert fitting(answer, 8 * large.nbytes).outputs["map"] is large
