"""Factors by which no integer lands halfway between two others."""

from fractions import Fraction

import numpy as np
import pytest

from edgeinfer.convert.quantize.ties import LARGEST, off_ties
from edgeinfer.convert.quantize.weights import store

RNG = np.random.default_rng(0)
FACTORS = np.exp(RNG.uniform(np.log(1.2 / LARGEST), 0.0, 400))


def test_factors_are_nearly_what_they_were() -> None:
    assert np.abs(off_ties(FACTORS) / FACTORS - 1.0).max() < 5e-4


def test_no_product_is_near_the_middle_of_two_integers() -> None:
    """Not even after single precision has rounded the factor and the product."""
    sums = np.arange(-300_000, 300_000, dtype=np.int64)
    for factor in off_ties(FACTORS)[:40]:
        exact = sums * factor
        inside = np.abs(exact) < 256
        single = sums[inside].astype(np.float32) * np.float32(factor)
        away = np.abs(exact[inside] - np.floor(exact[inside]) - 0.5)
        assert away.min() > 0.99 / (2 * LARGEST)
        assert np.abs(single - exact[inside]).max() < 0.5 * away.min()


def test_the_fraction_is_the_smallest_one_of_its_bin() -> None:
    found = [Fraction(float(f)).limit_denominator(LARGEST) for f in off_ties(FACTORS)]
    assert all(f.denominator % 2 for f in found)
    assert np.median([f.denominator for f in found]) < LARGEST / 3


@pytest.mark.parametrize("factor", [0.0, 1e-12, 1e-5, 1e6, np.inf])
def test_what_is_too_small_or_large_stays(factor: float) -> None:
    assert off_ties(np.array([factor]))[0] == factor


def test_weights_take_such_scales_and_keep_their_integers() -> None:
    weights = RNG.normal(size=(16, 40)).astype(np.float32)
    plain, free = store(weights, 0), store(weights, 0, per_step=0.37)
    factors = free.scale.astype(np.float64) * 0.37
    np.testing.assert_allclose(off_ties(factors), factors, rtol=1e-6)
    np.testing.assert_allclose(free.scale, plain.scale, rtol=5e-4)
    assert np.abs(free.values.astype(int) - plain.values).max() <= 1
    again = store(plain.floats(), 0, per_step=0.37)
    np.testing.assert_array_equal(again.values, plain.values)
