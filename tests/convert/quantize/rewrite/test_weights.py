import numpy as np
import pytest

from edgeinfer.convert.quantize.rewrite.weights import store, store_bias, store_blocks
from edgeinfer.errors import UsageError


def test_each_channel_is_within_half_a_step() -> None:
    weights = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    weights *= 10.0 ** np.arange(-3, 5)[:, None, None, None].astype(np.float32)
    stored = store(weights, 0)
    error = np.abs(stored.floats() - weights) / stored.wide_scale()
    assert stored.scale.shape == (8,)
    assert error.max() <= 0.5001
    assert np.abs(stored.values).max() == 127


def test_ties_go_to_even() -> None:
    weights = np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert store(weights, None).values.tolist() == [127, 0, 2, 2, 0, -2]


def test_channel_of_zeros_keeps_its_bias() -> None:
    weights = np.stack([np.zeros(4), np.linspace(-1, 1, 4)]).astype(np.float32)
    bias = np.array([0.37, 0.1])
    stored = store(weights, 0, bias_steps=bias / 0.02)
    made = store_bias(bias, 0.02, stored.scale)
    assert not stored.values[0].any()
    np.testing.assert_allclose(made.floats(), bias, atol=0.02 / 127)


def test_all_zero_weights_are_zero() -> None:
    stored = store(np.zeros((2, 2), np.float32), 0)
    assert not stored.floats().any()
    assert (stored.scale > 0).all()


def test_scales_grow_until_the_bias_fits_32_bits() -> None:
    weights = np.full((1, 4), 1e-6, np.float32)
    bias = np.array([1e4])
    stored = store(weights, 0, bias_steps=bias / 1e-3)
    made = store_bias(bias, 1e-3, stored.scale)
    assert made.values.dtype == np.int32
    np.testing.assert_allclose(made.floats(), bias, rtol=1e-6)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_bias_and_all_products_fit_32_bits_together(sign: float) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 24, 3, 3)).astype(np.float32) * np.float32(1e-6)
    bias = np.array([2.5689, 1e3, 0.0]) * sign
    stored = store(weights, 0, bias_steps=bias / 0.339)
    made = store_bias(bias, 0.339, stored.scale)
    products = 255 * np.abs(stored.values.astype(np.int64)).sum(axis=(1, 2, 3))
    assert (np.abs(made.values.astype(np.int64)) + products).max() < 2**31
    np.testing.assert_allclose(made.floats(), bias, rtol=1e-6)


def test_a_bias_beyond_32_bits_saturates() -> None:
    made = store_bias(np.array([1e30, -1e30]), 1.0, np.ones(2, np.float32))
    assert made.values.tolist() == [2**31 - 1, -(2**31)]


def test_tiny_channel_has_a_scale_that_no_engine_flushes() -> None:
    weights = np.array([[1e-38, -1e-38], [1.0, 0.5]], np.float32)
    stored = store(weights, 0)
    assert stored.scale.min() > 1e-20


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused_by_name(bad: float) -> None:
    with pytest.raises(UsageError, match="weights 'w'"):
        store(np.array([1.0, bad], np.float32), None, name="w")
    with pytest.raises(UsageError, match="weights 'w'"):
        store_blocks(np.array([[1.0, bad]], np.float32), 32, name="w")


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("kind", ["normal", "positive", "outlier", "zero", "tiny"])
def test_blocks_are_within_half_a_scale_everywhere(rows: int, kind: str) -> None:
    rng = np.random.default_rng(rows)
    weights = rng.normal(size=(rows, 5)).astype(np.float32)
    if kind == "positive":
        weights = np.abs(weights)
    elif kind == "outlier":
        weights[0] *= 100.0
    elif kind == "zero":
        weights[:] = 0.0
    elif kind == "tiny":
        weights *= 1e-20
    stored = store_blocks(weights, 32)
    wide = np.repeat(np.abs(stored.scale), 32, axis=0)[:rows]
    error = np.abs(stored.floats() - weights)
    assert (error <= 0.5 * wide * (1 + 1e-5)).all()
    assert stored.values.min() >= -8
    assert stored.values.max() <= 7
    assert stored.scale.shape == (-(-rows // 32), 5)


def test_a_block_uses_all_sixteen_steps() -> None:
    stored = store_blocks(np.linspace(-8, 7, 32, dtype=np.float32)[:, None], 32)
    assert sorted(set(stored.values.ravel().tolist())) == list(range(-8, 8))
