"""Sums of int64 are exact, whatever they come to."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.lower.onnxruntime.wide_sums import SUMS
from edgeinfer.types import Array
from tests.convert.lower.running import lower, model, run

NANOSECONDS = np.array([[1790000000000000001, 1790000000000000003, -7], [1 << 60, 5, -(1 << 61)]])
RIGHT: dict[str, Callable[[Array], Array]] = {
    "ReduceSum": lambda x: x,
    "ReduceL1": np.abs,
    "ReduceSumSquare": lambda x: x * x,
}


@pytest.mark.parametrize("sizes", ["2,3", "n,m"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", sorted(SUMS))
def test_every_bit_of_a_sum_is_right(op: str, axis: int, sizes: str, tmp_path: Path) -> None:
    whole = model(
        f"g (int64[{sizes}] x) => (int64[a] y) <int64[1] axis = {{{axis}}}> "
        f"{{ y = {op}<keepdims = 0>(x, axis) }}"
    )
    x = NANOSECONDS % 94906267 if op == "ReduceSumSquare" else NANOSECONDS // 4 + 1
    (found,) = run(lower(whole, tmp_path).files[0], {"x": x})
    np.testing.assert_array_equal(found, RIGHT[op](x).sum(axis))


def test_sums_that_stay_small_are_left_alone(tmp_path: Path) -> None:
    whole = model(
        "g (float[n,m] x) => (int64[n] y, int64 z) <int64[1] axis = {1}, int64[1] k = {3}> "
        "{ b = Greater(x, x) m = Cast<to = 7>(b) y = ReduceSum<keepdims = 0>(m, axis) "
        "s = Shape(x) z = ReduceSum<keepdims = 0>(k) }"
    )
    assert "Mod" not in lower(whole, tmp_path).ops
