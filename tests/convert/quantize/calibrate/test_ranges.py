import numpy as np
import pytest

from edgeinfer.convert.quantize.calibrate.histogram import Histogram
from edgeinfer.convert.quantize.calibrate.ranges import Range, choose, scale_of
from edgeinfer.convert.quantize.recipe import METHODS, Method
from edgeinfer.errors import UsageError


def seen(*arrays: object) -> Histogram:
    found = Histogram()
    for array in arrays:
        found.add(np.asarray(array, np.float32))
    return found


def rounding_error(values: np.ndarray, span: Range) -> float:
    scale = scale_of(span, "uint8")
    steps = np.clip(np.rint(values / scale.scale) + scale.zero, 0, 255)
    return float(np.mean(((steps - scale.zero) * scale.scale - values) ** 2))


def test_minmax_covers_all_and_zero() -> None:
    assert choose(seen([2.0, 5.0]), "minmax") == Range(0.0, 5.0)
    assert choose(seen([-3.0, 5.0]), "minmax") == Range(-3.0, 5.0)


@pytest.mark.parametrize("method", METHODS)
def test_plain_data_keeps_nearly_its_range(method: Method) -> None:
    values = np.random.default_rng(0).uniform(-1, 3, 50_000)
    span = choose(seen(values), method)
    assert -1.01 <= span.low <= -0.5
    assert 2.0 <= span.high <= 3.01


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_an_outlier_of_100_sigma_is_clipped(method: Method) -> None:
    values = np.random.default_rng(0).normal(size=500_000)
    values[7] = 100.0
    # Elements are counted in several samples, as they come.
    span = choose(seen(*np.split(values, 10)), method)
    assert span.high < 20.0
    assert span.low < -2.0


def test_minmax_keeps_an_outlier_and_mse_weighs_it() -> None:
    values = np.random.default_rng(0).normal(size=60_000)
    values[3] = 100.0
    found = seen(values)
    assert choose(found, "minmax").high == 100.0
    span = choose(found, "mse")
    # Among all clips of the grid it is the one with the least error, measured on the elements.
    best = rounding_error(values, span)
    others = [Range(choose(found, "minmax").low, h) for h in (100.0, 80.0, 40.0, 21.0)]
    assert best <= min(rounding_error(values, r) for r in others) * 1.05


@pytest.mark.parametrize("method", METHODS)
def test_nan_is_one_clear_error(method: Method) -> None:
    with pytest.raises(UsageError, match="1 of 2 elements are NaN or infinite"):
        choose(seen([1.0, np.nan]), method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 4.0, -4.0])
def test_constant_value_is_exact(method: Method, value: float) -> None:
    span = choose(seen([value] * 10), method)
    scale = scale_of(span, "uint8")
    step = np.clip(np.rint(value / scale.scale) + scale.zero, 0, 255)
    assert (step - scale.zero) * scale.scale == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("span", [Range(-1, 2), Range(0, 6), Range(-5, 0), Range(0, 1e-35)])
def test_zero_is_exact_and_the_range_is_covered(dtype: str, span: Range) -> None:
    scale = scale_of(span, dtype)
    low, high = scale.ends
    assert low <= scale.zero <= high
    assert (low - scale.zero) * scale.scale <= span.low + scale.scale
    assert (high - scale.zero) * scale.scale >= span.high - scale.scale
    assert np.float32(scale.scale) > 0


def test_int8_and_uint8_hold_the_same_numbers() -> None:
    a, b = scale_of(Range(-1, 2), "uint8"), scale_of(Range(-1, 2), "int8")
    assert (a.scale, a.zero) == (b.scale, b.zero + 128)


def test_a_clip_to_the_range_has_nothing_left_to_do() -> None:
    for high in np.random.default_rng(0).uniform(0.1, 9.0, 200):
        scale = scale_of(Range(0.0, float(high)), "uint8")
        assert scale.zero == 0
        assert 255 * scale.scale <= high


def test_sixteen_bits_are_symmetric() -> None:
    scale = scale_of(Range(-1.0, 3.0), "int16")
    assert scale.zero == 0
    assert scale.scale == pytest.approx(3.0 / 32767)
