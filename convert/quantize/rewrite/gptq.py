"""Round weights so that the products stay right, not each weight by itself.

Weights are rounded one input after the other; what a rounding does to the outputs is made up for by
the weights that are still to come, as far as the inputs are correlated. Their correlations are
summed up from calibration data.

Source: Frantar et al. 2022, "GPTQ: Accurate post-training quantization for generative pre-trained
transformers"; the solver is that of Optimal Brain Surgeon, on a Cholesky factor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_DAMPING = 0.01
"""Share of the mean square of an input that is added to all: directions hardly seen in the data
would else be free to take any error."""

_AT_ONCE = 32
"""Inputs after which all later weights are brought up to date."""


_SMALL = 64
"""Size up to which a triangular matrix is inverted as any other."""


def round_weights(
    weights: Floats, moments: Floats, nearest: Callable[[Floats, int], Floats]
) -> Floats:
    """Return weights on the grid that ``nearest`` rounds to.

    Args:
        weights: (groups, outputs, inputs).
        moments: (groups, inputs, inputs): sums of products of inputs.
        nearest: rounds the weights of one input, (groups, outputs).
    """
    # One input after the other is worked on: their weights lie together.
    left = np.ascontiguousarray(np.moveaxis(weights.astype(np.float64), 2, 0))
    found = np.empty_like(left)
    factor = _factor(moments)
    inputs = len(left)
    for start in range(0, inputs, _AT_ONCE):
        stop = min(start + _AT_ONCE, inputs)
        errors = np.empty((stop - start, *left.shape[1:]))
        for i in range(start, stop):
            found[i] = nearest(left[i], i)
            errors[i - start] = error = (left[i] - found[i]) / factor[:, i, i][:, None]
            later = factor[:, i, i + 1 : stop].T
            left[i + 1 : stop] -= later[:, :, None] * error
        # (groups, later inputs, outputs)
        carried = np.swapaxes(factor[:, start:stop, stop:], 1, 2) @ np.swapaxes(errors, 0, 1)
        left[stop:] -= np.swapaxes(carried, 0, 1)
    return np.ascontiguousarray(np.moveaxis(found, 0, 2))


def product_error(difference: Floats, moments: Floats) -> Floats:
    """Return the squared error of the products, summed over the data, by (group, output).

    Args:
        difference: Difference of the weights, (groups, outputs, inputs).
        moments: Moments of the inputs.
    """
    return np.asarray(np.sum((difference @ moments) * difference, axis=2))


def _factor(moments: Floats) -> Floats:
    """Return the upper Cholesky factor of the inverse of the damped moments."""
    size = moments.shape[-1]
    diagonal = np.einsum("gii->gi", moments)
    damping = np.maximum(_DAMPING * diagonal.mean(axis=1), 1e-12)
    # An input that is always zero may have any weight.
    damped = moments + np.eye(size) * damping[:, None, None]
    # With the order of the inputs reversed, damped = R R' for an upper R; then the factor of
    # the inverse is the inverse of R.
    lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
    return _inverse(lower)[:, ::-1, ::-1]


def _inverse(lower: Floats) -> Floats:
    """Return the inverses of lower triangular matrices."""
    size = lower.shape[-1]
    if size <= _SMALL:
        return np.asarray(np.linalg.inv(lower))
    half = size // 2
    found = np.zeros_like(lower)
    first, last = _inverse(lower[:, :half, :half]), _inverse(lower[:, half:, half:])
    found[:, :half, :half], found[:, half:, half:] = first, last
    found[:, half:, :half] = -(last @ (lower[:, half:, :half] @ first))
    return found
