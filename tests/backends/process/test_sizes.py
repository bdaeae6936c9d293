"""Sizes that a signature promises, of answers with elements and of those without."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.process.sizes import KnownSizes
from edgeinfer.types import Array, TensorSpec

INPUTS = (TensorSpec("x", "float32", ("b", 3)),)
OUTPUTS = (TensorSpec("r", "float32", ("k", "b", 3)),)


def feeds(rows: int) -> dict[str, Array]:
    return {"x": np.zeros((rows, 3), np.float32)}


def answer(*shape: int) -> dict[str, Array]:
    return {"r": np.zeros(shape, np.float32)}


@pytest.mark.parametrize("given", [(0, 0, 3), (0, 1, 3), (0, 4, 3), (0, 0, 0)])
def test_rows_of_a_loop_without_turns_get_the_sizes_of_the_signature(
    given: tuple[int, ...],
) -> None:
    sizes = KnownSizes(INPUTS, OUTPUTS, list)
    found = sizes.settled(feeds(2), answer(*given))
    assert found["r"].shape == (0, 2, 3)
    assert sizes.fault(feeds(2), found) == ""


@pytest.mark.parametrize("given", [(2, 1, 3), (0, 3), (1, 0, 3)])
def test_others_stay_as_they_are(given: tuple[int, ...]) -> None:
    sizes = KnownSizes(INPUTS, OUTPUTS, list)
    assert sizes.settled(feeds(2), answer(*given))["r"].shape == given


def test_a_name_that_right_answers_contradict_decides_nothing() -> None:
    sizes = KnownSizes(INPUTS, OUTPUTS, lambda: [(feeds(5), answer(1, 2, 3))])
    assert sizes.settled(feeds(2), answer(0, 1, 3))["r"].shape == (0, 1, 3)


def test_an_answer_that_is_to_have_elements_is_a_fault() -> None:
    sizes = KnownSizes(INPUTS, (TensorSpec("y", "float32", ("b", 3)),), list)
    found = sizes.settled(feeds(2), {"y": np.zeros((0, 3), np.float32)})
    assert "expected b = 2 in axis 0" in sizes.fault(feeds(2), found)
