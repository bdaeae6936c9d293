"""How large answers are, before they are made."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.runtime.serve.answer_size import AnswerSize
from edgeinfer.types import Feeds, TensorSpec

INPUTS = (TensorSpec("x", "float32", ("n", 3, "w")), TensorSpec("k", "int64", ("n",)))
FEEDS: Feeds = {"x": np.zeros((5, 3, 7), np.float32), "k": np.zeros(5, np.int64)}


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("float32", (2, 3), 24),
        ("float64", (), 8),
        ("bfloat16", ("n", 4), 40),
        ("bool", ("w", "w", 2), 98),
        ("uint8", ("w", "n"), 35),
        # Nobody knows before it runs.
        ("float32", ("m", 4), 0),
        ("float32", (None, 4), 0),
        ("float32", None, 0),
        ("string", ("n",), 0),
    ],
)
def test_shapes_say_it(dtype: str, shape: tuple[int | str | None, ...] | None, size: int) -> None:
    outputs = (TensorSpec("a", dtype, shape), TensorSpec("b", "int8", (100,)))
    assert AnswerSize(INPUTS, outputs).of(FEEDS) == size + 100


def test_of_wrong_requests_nothing_is_said() -> None:
    found = AnswerSize(INPUTS, (TensorSpec("a", "float32", ("w",)),))
    assert found.of({"x": np.zeros(3, np.float32)}) == 0
    assert found.of({}) == 0
