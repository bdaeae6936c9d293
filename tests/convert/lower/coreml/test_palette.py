"""Palettes against the best that there is, which dynamic programming in coremltools finds."""

import numpy as np
import pytest

from edgeinfer.convert.lower.coreml.palette import palette
from edgeinfer.errors import UsageError
from edgeinfer.types import Array


def draw(kind: str) -> Array:
    rng = np.random.default_rng(0)
    drawn: dict[str, Array] = {
        "normal": rng.standard_normal(2000),
        "heavy tails": rng.standard_t(2, 2000),
        "two scales": np.concatenate([rng.normal(0, 1e-3, 1800), rng.normal(3, 1, 50)]),
    }
    return drawn[kind].astype(np.float32)


def error(weights: Array, table: Array, indices: Array) -> float:
    return float(np.square(table[indices].astype(np.float64) - weights).sum())


@pytest.mark.parametrize("bits", [1, 3, 6])
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "two scales"])
def test_error_is_the_least_there_is(kind: str, bits: int) -> None:
    kmeans = pytest.importorskip("coremltools._deps.kmeans1d")
    weights = draw(kind)
    table, indices = palette(weights, bits)
    best = kmeans.cluster(weights.astype(np.float64), 1 << bits)
    least = error(weights, np.array(best.centroids), np.array(best.clusters))
    assert table.shape == (1 << bits,)
    assert table.dtype == np.float32
    assert error(weights, table, indices) <= 1.002 * least


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_any_number_of_values(bits: int) -> None:
    kmeans = pytest.importorskip("coremltools._deps.kmeans1d")
    rng = np.random.default_rng(0)
    for size in range(1, 40):
        weights = rng.normal(0, 1, size).astype(np.float32)
        table, indices = palette(weights, bits)
        best = kmeans.cluster(weights.astype(np.float64), min(1 << bits, size))
        least = error(weights, np.array(best.centroids), np.array(best.clusters))
        assert error(weights, table, indices) <= 1.0001 * least + 1e-9


def test_every_weight_has_its_nearest_entry() -> None:
    weights: Array = draw("heavy tails").astype(np.float16)
    table, indices = palette(weights, 4)
    wide = table.astype(np.float64)
    nearest = np.abs(weights.astype(np.float64)[:, None] - wide).min(axis=1)
    np.testing.assert_array_equal(np.abs(wide[indices] - weights), nearest)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_few_values_stay_as_they_are(dtype: type) -> None:
    weights: Array = np.random.default_rng(0).integers(-5, 6, (40, 7)).astype(dtype)
    table, indices = palette(weights, 4)
    np.testing.assert_array_equal(table[indices].reshape(weights.shape), weights)


def test_integers_get_integers() -> None:
    weights = np.random.default_rng(0).integers(-128, 128, 5000).astype(np.int8)
    table, indices = palette(weights, 4)
    assert table.dtype == np.int8
    assert np.abs(table[indices].astype(int) - weights).max() <= 9


def test_there_is_no_chance_in_it() -> None:
    one, two = (palette(draw("normal"), 6) for _ in range(2))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(UsageError, match="NaN"):
        palette(np.array([1.0, np.inf, 2.0], np.float32), 1)
