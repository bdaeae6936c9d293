"""Channels are held against what they themselves vary by, over all vectors together."""

import numpy as np
import pytest

from edgeinfer import channels
from edgeinfer.metrics import budget_for
from edgeinfer.types import Array

INT8 = budget_for("static_wi8_ai8")
RNG = np.random.default_rng(0)


def heads(rows: int, count: int = 8, axis: int = 1) -> list[Array]:
    """Four coordinates in pixels and one score, ``[rows, 5]`` or ``[5, rows]`` in each run."""
    found = []
    for _ in range(count):
        boxes = RNG.uniform(0, 640, (rows, 4))
        both = np.concatenate([boxes, RNG.uniform(0, 0.9, (rows, 1))], axis=1)
        found.append((both if axis == 1 else both.T).astype(np.float32))
    return found


def breaches(right: list[Array], here: list[Array], precision: str = "static_wi8_ai8") -> list[str]:
    return channels.breaches(right, here, budget_for(precision).among(right))


def without_scores(array: Array, axis: int) -> Array:
    lost = array.copy()
    np.moveaxis(lost, axis, -1)[..., 4] = 0.4
    return lost


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("precision", ["static_wi8_ai8", "static_wi8_ai16", "fp16", "fp32"])
def test_a_score_that_takes_one_value_is_lost(axis: int, rows: int, precision: str) -> None:
    right = heads(rows, axis=axis)
    (line,) = breaches(right, [without_scores(a, axis) for a in right], precision)
    assert line.startswith(f"channel 4 of axis {axis} keeps ")
    assert "of what it varies by" in line
    assert not breaches(right, [a.copy() for a in right], precision)


@pytest.mark.parametrize("rows", [1, 40])
def test_a_score_rounded_to_its_own_steps_is_none(rows: int) -> None:
    right = heads(rows)
    here = [a.copy() for a in right]
    for array in here:
        array[:, :4] = np.rint(array[:, :4] / 2.5) * 2.5
        array[:, 4] = np.rint(array[:, 4] * 255) / 255
    assert not breaches(right, here)


def test_the_only_channel_of_an_output_is_judged_too() -> None:
    right = [np.full((1, 1), v, np.float32) for v in np.linspace(0.1, 0.9, 8)]
    assert breaches(right, [np.full((1, 1), 0.5, np.float32)] * 8)


def test_shares_of_one_have_one_unit() -> None:
    """Classes that are never likely are rounded away by one scale, which is right."""
    right = [RNG.dirichlet(np.full(100, 0.05), 1).astype(np.float32) for _ in range(16)]
    here = [(np.rint(a * 255) / 255).astype(np.float32) for a in right]
    assert not breaches(right, here)


def test_what_hardly_varies_may_move_by_a_rounding() -> None:
    right = [np.array([[640.0, 0.2 + 0.05 * i]], np.float32) for i in range(8)]
    here = [a + np.array([[1.5, 0.001]], np.float32) for a in right]
    assert not breaches(right, here)


def test_too_few_elements_say_nothing() -> None:
    right = heads(1, count=3)
    assert not breaches(right, [without_scores(a, 1) for a in right])


def test_open_sizes_are_pooled_where_channels_stay() -> None:
    right = [heads(rows, count=1)[0] for rows in (3, 5, 9)]
    (line,) = breaches(right, [without_scores(a, 1) for a in right])
    assert "channel 4 of axis 1" in line


def test_a_measure_of_the_task_judges_no_channel() -> None:
    right = heads(4)
    assert not breaches(right, [without_scores(a, 1) for a in right], "static_wi8_ai8+by_task")


def test_nan_is_left_to_the_other_measures() -> None:
    right = heads(4)
    here = [np.full_like(a, np.nan) for a in right]
    assert not breaches(right, here)
