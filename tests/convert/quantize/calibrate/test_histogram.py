import numpy as np
import pytest

from edgeinfer.convert.quantize.calibrate.histogram import BINS, MOST, ChannelStats, Histogram


def test_order_of_samples_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(scale=s, size=500).astype(np.float32) for s in (0.01, 3.0, 200.0, 0.5)]
    first, second = Histogram(), Histogram()
    for part in parts:
        first.add(part)
    for part in reversed(parts):
        second.add(part)
    assert first.reach == second.reach == 1024.0
    np.testing.assert_array_equal(first.counts, second.counts)
    assert (first.low, first.high) == (second.low, second.high)


def test_memory_does_not_grow_with_the_samples() -> None:
    seen = Histogram()
    for seed in range(50):
        seen.add(np.random.default_rng(seed).normal(size=10_000))
    assert seen.counts.shape == (BINS,)
    assert seen.seen == 500_000


def test_extremes_are_those_of_all_elements_though_few_are_counted() -> None:
    array = np.zeros(4 * MOST, np.float32)
    array[1], array[-2] = -7.0, 9.0
    seen = Histogram()
    seen.add(array)
    assert (seen.low, seen.high) == (-7.0, 9.0)
    assert seen.counts.sum() + seen.zeros <= 2 * MOST


def test_nan_and_infinity_are_counted_and_left_out() -> None:
    seen = Histogram()
    seen.add(np.array([1.0, np.nan, np.inf, -2.0]))
    assert (seen.nonfinite, seen.low, seen.high) == (2, -2.0, 1.0)
    seen.add(np.array([np.nan]))
    assert seen.nonfinite == 3


def test_every_element_lies_in_the_bin_that_holds_it() -> None:
    values = np.array([-1.0, -0.3, 0.2, 1.0])
    seen = Histogram()
    seen.add(values)
    filled = seen.centres[np.flatnonzero(seen.counts)]
    np.testing.assert_allclose(filled, values, atol=seen.reach / BINS * 1.01)


@pytest.mark.parametrize("axis", [1, -1])
def test_channels_have_their_mean_and_largest_magnitude(axis: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 3)), rng.normal(size=(5, 3, 3))
    stats = ChannelStats.of(3)
    stats.add(a, axis)
    stats.add(b, axis)
    rows = np.moveaxis(np.concatenate([a, b]), axis, 0).reshape(3, -1)
    np.testing.assert_allclose(stats.mean, rows.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(stats.largest, np.abs(rows).max(axis=1), rtol=1e-6)
