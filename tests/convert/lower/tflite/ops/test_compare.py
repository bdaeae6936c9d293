"""Comparisons, logic, choice and triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.convert.lower.tflite.run import check
from tests.convert.lower.tflite.single import agree, f32
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


@rows("op", COMPARISONS)
def test_nothing_compares_to_no_number(op: str) -> None:
    agree(op, f32(np.nan, 1, np.nan, np.inf), f32(1, np.nan, np.nan, np.inf), types=[np.bool_])


@rows("op", ["And", "Or", "Xor", "Equal"])
@rows("shapes", [((3,), (2, 1)), ((2, 1, 2, 1, 2), (1, 3, 1, 2, 1))])
def test_logic(op: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    agree(op, *(RNG.integers(0, 2, s).astype(bool) for s in shapes))


def test_not() -> None:
    agree("Not", np.array([[True, False]]))


@rows("dtype", [*TYPES, np.float16, np.float64, np.bool_])
def test_choice_in_every_type(dtype: Any) -> None:
    c = RNG.integers(0, 2, (2, 1, 3)).astype(bool)
    x, y = (RNG.integers(0, 2, s).astype(dtype) for s in ((3,), (2, 4, 1)))
    agree("Where", c, x, y, types=[dtype], like="reference")


@rows("upper", [0, 1])
@rows("k", [None, 0, 1, -2, 9, -9])
@rows("constants", [(1,), ()])
def test_triangles(upper: int, k: int | None, constants: tuple[int, ...]) -> None:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    place = None if k is None else np.array(k, np.int64)
    agree("Trilu", x, place, constants=constants if k is not None else (), upper=upper)


def test_triangle_of_bools_at_two_sizes() -> None:
    model = "g (bool[n, m] x) => (bool[n, m] y) {y = Trilu<upper=0>(x)}"
    check(model, {"x": np.ones((3, 5), bool)}, {"x": np.ones((4, 2), bool)})
