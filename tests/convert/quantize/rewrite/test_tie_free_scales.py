"""Factors by which no integer lands halfway between two others."""

from fractions import Fraction

import numpy as np
import pytest

from edgeinfer.convert.quantize.rewrite.tie_free_scales import (
    LARGEST,
    SMALLEST_FACTOR,
    curve_off_ties,
    exact_multiples,
    off_ties,
    sum_off_ties,
)
from edgeinfer.convert.quantize.rewrite.weights import store

RNG = np.random.default_rng(0)
FACTORS = np.exp(RNG.uniform(np.log(1.2 / LARGEST), 0.0, 400))


def test_factors_are_nearly_what_they_were() -> None:
    assert np.abs(off_ties(FACTORS) / FACTORS - 1.0).max() < 2e-3


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
    assert np.median([f.denominator for f in found]) < LARGEST / 10


@pytest.mark.parametrize("factor", [0.0, 1e-12, 1e-5, 1e6, np.inf])
def test_what_is_too_small_or_large_stays(factor: float) -> None:
    assert off_ties(np.array([factor]))[0] == factor


def test_weights_take_such_scales_and_keep_their_integers() -> None:
    weights = RNG.normal(size=(16, 40)).astype(np.float32)
    plain, free = store(weights, 0), store(weights, 0, per_step=0.37)
    factors = free.scale.astype(np.float64) * 0.37
    np.testing.assert_allclose(off_ties(factors), factors, rtol=1e-6)
    np.testing.assert_allclose(free.scale, plain.scale, rtol=2e-3)
    assert np.abs(free.values.astype(int) - plain.values).max() <= 1
    again = store(plain.floats(), 0, per_step=0.37)
    np.testing.assert_array_equal(again.values, plain.values)


@pytest.mark.parametrize("scales", [(0.02, 0.013, 0.025), (1.0, 0.2, 1.1), (0.3, 0.3, 0.6)])
def test_sums_are_not_near_the_middle_of_two_integers(scales: tuple[float, float, float]) -> None:
    found = sum_off_ties(*scales)
    assert found is not None
    other, result = found
    assert 1.0 - 1e-9 <= other / scales[1] < 1.05
    assert 1.0 - 1e-9 <= result / scales[2] < 1.05
    steps = np.arange(-255, 256)
    sums = steps[:, None] * (scales[0] / result) + steps * (other / result)
    assert np.abs(sums - np.floor(sums) - 0.5).min() > 0.99 / (2 * 1023)


def test_an_operand_that_hardly_counts_leaves_scales_alone() -> None:
    assert sum_off_ties(1e-4, 1.0, 1.0) is None
    assert sum_off_ties(1.0, 1e-4, 1.0) is None


def test_small_factors_are_one_part_of_an_odd_number() -> None:
    factors = np.exp(RNG.uniform(np.log(SMALLEST_FACTOR * 1.001), np.log(0.999 / LARGEST), 200))
    found = off_ties(factors)
    parts = np.rint(1.0 / found)
    np.testing.assert_allclose(found * parts, 1.0, rtol=1e-12)
    assert (parts % 2 == 1).all()
    assert np.abs(found / factors - 1.0).max() < 3e-4


def test_scales_have_exact_multiples_and_nearly_exact_reciprocals() -> None:
    values = RNG.uniform(-130, 130, 2000)
    others = []
    for scale in np.exp(RNG.uniform(-30, 10, 300)):
        found = exact_multiples(scale)
        assert 1.0 - 1.1e-3 < found / scale <= 1.0
        multiples = np.arange(-255, 256) * found
        np.testing.assert_array_equal(multiples.astype(np.float32), multiples)
        given, single = (values * found).astype(np.float32), np.float32(found)
        others.append(np.mean(given / single != given * (np.float32(1.0) / single)))
    assert np.mean(others) < 0.05


@pytest.mark.parametrize("scale", [1.0, 1 / 128, 3 / 256, 2.0**-90])
def test_scales_of_few_digits_stay(scale: float) -> None:
    assert exact_multiples(scale) == scale


def test_a_curve_keeps_away_from_halfway_though_it_began_there() -> None:
    values = np.arange(-3, 60) * 0.5 * 0.03
    found = curve_off_ties(values, 0.03)
    steps = values / found
    assert np.abs(steps - np.floor(steps) - 0.5).min() > 2e-4
    assert 1.0 <= found / 0.03 < 1.0 + 2.1e-3
    np.testing.assert_array_equal((255 * np.float64(found)), np.float32(255 * found))
