"""Sums of int64 are exact, whatever they come to."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.convert.lower.onnxruntime.wide_sums import SUMS
from edgeinfer.errors import UnsupportedError
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


def test_a_number_of_elements_is_a_product_of_open_sizes(tmp_path: Path) -> None:
    whole = model(
        "g (float[n,m,3] x) => (int64[1] y) <int64[1] axis = {0}> "
        "{ s = Shape(x) y = ReduceProd(s, axis) }"
    )
    (y,) = run(lower(whole, tmp_path).files[0], {"x": np.zeros((2, 5, 3), np.float32)})
    assert y.tolist() == [30]


def test_sums_that_stay_small_are_left_alone(tmp_path: Path) -> None:
    whole = model(
        "g (float[n,m] x) => (int64[n] y, int64 z) <int64[1] axis = {1}, int64[1] k = {3}> "
        "{ b = Greater(x, x) m = Cast<to = 7>(b) y = ReduceSum<keepdims = 0>(m, axis) "
        "s = Shape(x) z = ReduceSum<keepdims = 0>(k) }"
    )
    assert "Mod" not in lower(whole, tmp_path).ops


@pytest.mark.parametrize("sizes", ["2,3", "n,m"])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_bit_of_a_mean_is_right(axis: int, sizes: str, tmp_path: Path) -> None:
    whole = model(
        f"g (int64[{sizes}] x) => (int64[a] y) <int64[1] axis = {{{axis}}}> "
        "{ y = ReduceMean<keepdims = 0>(x, axis) }"
    )
    x = np.concatenate([NANOSECONDS[:, :2] * [[1], [-1]], [[9], [9]]], 1) | (1 << 62)
    x[1] = -x[1] - 2
    (found,) = run(lower(whole, tmp_path).files[0], {"x": x})
    sums = x.astype(object).sum(axis)
    count = x.shape[axis]
    # Towards zero; the sums are beyond 64 bits.
    right = [abs(s) // count * (1 if s > 0 else -1) for s in sums]
    np.testing.assert_array_equal(found, np.array(right, np.int64))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", ["0", "1", "0, 1", "-1"])
def test_every_bit_of_a_product_is_right(axes: str, keepdims: int, tmp_path: Path) -> None:
    places = tuple(map(int, axes.split(",")))
    rank = 2 if keepdims else 2 - len(places)
    made = {2: "int64[a,b]", 1: "int64[a]", 0: "int64"}[rank]
    whole = model(
        f"g (int64[2,3] x) => ({made} y) <int64[{len(places)}] axes = {{{axes}}}> "
        f"{{ y = ReduceProd<keepdims = {keepdims}>(x, axes) }}"
    )
    x = np.array([[(1 << 31) + 1, 3, 5], [(1 << 30) + 1, -7, 11]])
    x = x if places in {(0,), (1,), (-1,)} else np.where(x > 99, x // 1024 + 1, x)
    (found,) = run(lower(whole, tmp_path).files[0], {"x": x})
    np.testing.assert_array_equal(found, x.prod(places, keepdims=bool(keepdims)))


def test_a_product_of_many_is_refused(tmp_path: Path) -> None:
    whole = model(
        "g (int64[n] x) => (int64[1] y) <int64[1] axes = {0}> { y = ReduceProd(x, axes) }"
    )
    with pytest.raises(UnsupportedError, match="multiplied in float64"):
        lower(whole, tmp_path)


@pytest.mark.parametrize(
    "equation", ["ij->i", "ij->j", "ij->", "ij,jk->k", "ij,k->i", "...ij->...i", "ijk,kl->jl"]
)
def test_every_bit_of_a_sum_by_einsum_is_right(equation: str, tmp_path: Path) -> None:
    terms, result = equation.split("->")
    sizes = {"i": 2, "j": 3, "k": 4, "l": 2}
    rng = np.random.default_rng(0)
    shapes = [
        [2] * ("." in term) + [sizes[c] for c in term if c.isalpha()] for term in terms.split(",")
    ]
    feeds = {f"x{i}": rng.integers(0, 7, shape) for i, shape in enumerate(shapes)}
    feeds["x0"] += 1 << 57
    inputs = ", ".join(f"int64[{','.join(map(str, s))}] x{i}" for i, s in enumerate(shapes))
    kept = ["e"] * ("." in result) + [c for c in result if c.isalpha()]
    made = f"int64[{','.join(kept)}]" if kept else "int64"
    names = ", ".join(feeds)
    whole = model(f'g ({inputs}) => ({made} y) {{ y = Einsum<equation = "{equation}">({names}) }}')
    (found,) = run(lower(whole, tmp_path).files[0], feeds)
    np.testing.assert_array_equal(found, np.einsum(equation, *feeds.values()))
