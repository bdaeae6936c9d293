"""Parts of arrays: what is left says the same of an error, and what is no part is no part."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer import parts
from edgeinfer.metrics import Budget, compare

RNG = np.random.default_rng(0)


def test_small_arrays_stay_whole() -> None:
    array = RNG.standard_normal((3, 4))
    assert parts.part(array, 12) is array
    assert parts.whole_shape(array) == (3, 4)


@pytest.mark.parametrize("shape", [(1, 21, 300, 200), (1, 84, 8400), (100_003,), (5, 1000, 7)])
def test_a_part_keeps_channels_the_largest_element_and_the_power_of_an_error(
    shape: tuple[int, ...],
) -> None:
    array = RNG.standard_normal(shape).astype(np.float32)
    array[(..., -1)] *= 3
    made = parts.part(array, 4096)
    assert made.size <= 4096 * 1.3
    assert parts.whole_shape(made) == shape
    assert np.abs(made).max() == np.abs(array).max()
    assert all(made.shape[a] == n for a, n in enumerate(shape) if n <= 100)
    wrong = array + 1e-3 * RNG.standard_normal(shape).astype(np.float32)
    whole, found = compare(array, wrong), compare(made, wrong)
    assert found.count == made.size
    assert abs(whole.sqnr_db - found.sqnr_db) < 1
    assert found.max_rel <= whole.max_rel
    assert compare(made, array).max_abs == 0
    plain = Budget(1e-3, 1, 1, 1, 0)
    assert plain.among([made]) == plain.among([array])


def test_a_result_of_other_sizes_is_a_problem_not_an_answer() -> None:
    made = parts.part(RNG.standard_normal((4, 900)), 1000)
    assert compare(made, np.zeros((4, 901))).problem == "shape [4, 901] instead of [4, 900]"
    assert compare(made, np.asarray(made)).problem.startswith("shape")


def test_what_is_computed_from_a_part_is_whole() -> None:
    made = parts.part(RNG.standard_normal((4, 900)), 1000)
    assert parts.grid_of(made) is not None
    assert parts.grid_of(made * 2) is None
    assert parts.grid_of(made[:2]) is None


def test_nan_is_not_the_largest() -> None:
    array = np.full(50_000, np.nan, np.float32)
    array[40_001] = 7
    assert 7 in np.asarray(parts.part(array, 5000))


@pytest.mark.parametrize(
    "grid",
    [
        [[4, 900], [0, 0], [1, 2]],
        [[4, 900], [0, 0], [0, 4]],
        [[4, 900], [0, 9], [1, 4]],
        [[4, 900], [0, -1], [1, 4]],
        [[4, 1 << 60], [0, 0], [1, 1 << 61]],
        [[4], [0], [1]],
    ],
)
def test_elements_that_are_not_on_their_grid_are_refused(grid: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="part"):
        parts.restored(np.zeros((4, 225)), np.array(grid, np.int64))
