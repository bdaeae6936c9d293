"""Operators in NumPy, against sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.numerics.convolution import convolved, transposed, transposed_sizes
from edgeinfer.numerics.pooling import maxima, means, sums
from edgeinfer.numerics.windows import same, sliding
from edgeinfer.types import Array


def _written_out(x: Array, w: Array, strides: tuple[int, ...], dilations: tuple[int, ...]) -> Array:
    """A convolution of one group over a line, element by element."""
    count = (x.shape[2] - (w.shape[2] - 1) * dilations[0] - 1) // strides[0] + 1
    y = np.zeros((x.shape[0], w.shape[0], count))
    for n, f, i, c, k in np.ndindex(*y.shape, *w.shape[1:]):
        y[n, f, i] += x[n, c, i * strides[0] + k * dilations[0]] * w[f, c, k]
    return y


@pytest.mark.parametrize(("channels", "taps"), [(3, 1), (3, 4), (40, 4)])
def test_a_convolution_however_it_is_computed(channels: int, taps: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, channels, 11)), rng.standard_normal((5, channels, taps))
    window = sliding((11,), (taps,), (2,), (2,), [(1, 0)])
    found = convolved(x, w, np.arange(5.0), window, 1)
    wide = np.pad(x, [(0, 0), (0, 0), (1, 0)])
    right = _written_out(wide, w, (2,), (2,)) + np.arange(5.0)[:, None]
    np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


def test_groups_are_convolutions_of_their_own() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((1, 4, 9)), rng.standard_normal((8, 1, 3))
    window = sliding((9,), (3,), (1,), (1,), [(0, 0)])
    each = [convolved(x[:, [g]], w[2 * g : 2 * g + 2], None, window, 1) for g in range(4)]
    np.testing.assert_allclose(convolved(x, w, None, window, 4), np.concatenate(each, 1))


def test_a_transposed_convolution_is_the_gradient_of_one() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, 3, 5)), rng.standard_normal((3, 2, 4))
    (full,) = transposed_sizes((5,), (4,), (2,), (1,))
    back = transposed(x, w, None, (2,), (1,), 1, [0], [full])
    probe = rng.standard_normal((1, 2, full))
    forward = convolved(probe, w, None, sliding((full,), (4,), (2,), (1,), [(0, 0)]), 1)
    np.testing.assert_allclose((back * probe).sum(), (x * forward).sum())
    beyond = transposed(x, w, None, (2,), (1,), 1, [1], [full + 2])
    np.testing.assert_array_equal(beyond[..., full - 1 :], 0)
    np.testing.assert_array_equal(beyond[..., : full - 1], back[..., 1:])


def test_pools_and_what_counts_in_a_mean() -> None:
    x = np.array([[[1.0, 2.0, 4.0]]])
    window = sliding((3,), (2,), (2,), (1,), [(1, 1)])
    assert maxima(x, window).tolist() == [[[1.0, 4.0]]]
    assert sums(x, window).tolist() == [[[1.0, 6.0]]]
    assert means(x, window, [(0, 0)]).tolist() == [[[1.0, 3.0]]]
    assert means(x, window, [(1, 1)]).tolist() == [[[0.5, 3.0]]]


def test_padding_of_same_and_windows_that_do_not_fit() -> None:
    assert same(5, 4, 2, lower=False) == (1, 2)
    assert same(5, 4, 2, lower=True) == (2, 1)
    with pytest.raises(ValueError, match="does not fit"):
        sliding((2,), (3,), (1,), (1,), [(0, 0)])
