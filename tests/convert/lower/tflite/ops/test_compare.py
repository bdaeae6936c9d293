"""Comparisons, logic, choice and triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.convert.lower.tflite.run import check
from tests.convert.lower.tflite.single import agree
from tests.convert.lower.tflite.together import rows

RNG = np.random.default_rng(0)
COMPARISONS = ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]
TYPES = [np.float32, np.int32, np.int64, np.int8, np.uint8, np.int16, np.uint16, np.uint32]


@rows("dtype", TYPES)
@rows("op", COMPARISONS)
def test_comparisons(op: str, dtype: Any) -> None:
    top = 2**24 if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max
    a = np.array([[0, 1, 2, top], [top - 1, 5, 3, 3]]).astype(dtype)
    b = np.array([1, 1, 3, top]).astype(dtype)
    agree(op, a, b, types=[np.bool_], like="reference")


@rows("dtype", [*TYPES, np.float16, np.float64, np.bool_])
def test_choice_in_every_type(dtype: Any) -> None:
    c = RNG.integers(0, 2, (2, 1, 3)).astype(bool)
    x, y = (RNG.integers(0, 2, s).astype(dtype) for s in ((3,), (2, 4, 1)))
    agree("Where", c, x, y, types=[dtype], like="reference")


def test_triangle_of_bools_at_two_sizes() -> None:
    model = "g (bool[n, m] x) => (bool[n, m] y) {y = Trilu<upper=0>(x)}"
    check(model, {"x": np.ones((3, 5), bool)}, {"x": np.ones((4, 2), bool)})
