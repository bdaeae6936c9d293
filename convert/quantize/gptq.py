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

from edgeinfer.types import Array

Floats = npt.NDArray[np.float64]

_DAMPING = 0.01
"""Share of the mean square of an input that is added to all: directions hardly seen in the data
would else be free to take any error."""

_AT_ONCE = 128
"""Inputs after which all later weights are brought up to date."""


def round_weights(
    weights: Floats, moments: Floats, nearest: Callable[[Floats, slice], Floats]
) -> Floats:
    """Return weights on the grid that ``nearest`` rounds to.

    Args:
        weights: (groups, outputs, inputs).
        moments: (groups, inputs, inputs): sums of products of inputs.
        nearest: rounds the weights of some inputs, (groups, outputs, n).
    """
    left = weights.astype(np.float64).copy()
    found = np.zeros_like(left)
    factor = _factor(moments)
    inputs = left.shape[-1]
    for start in range(0, inputs, _AT_ONCE):
        stop = min(start + _AT_ONCE, inputs)
        errors = np.zeros((*left.shape[:2], stop - start))
        for i in range(start, stop):
            column = left[..., i : i + 1]
            found[..., i : i + 1] = nearest(column, slice(i, i + 1))
            error = (column - found[..., i : i + 1]) / factor[:, i, i][:, None, None]
            left[..., i + 1 : stop] -= error * factor[:, None, i, i + 1 : stop]
            errors[..., i - start : i - start + 1] = error
        left[..., stop:] -= errors @ factor[:, start:stop, stop:]
    return found


def product_error(difference: Floats, moments: Floats) -> Floats:
    """Return the squared error of the products, summed over the data, by (group, output).

    Args:
        difference: of the weights, (groups, outputs, inputs).
        moments: of the inputs.
    """
    return np.asarray(np.einsum("goi,gij,goj->go", difference, moments, difference, optimize=True))


def _factor(moments: Floats) -> Floats:
    """Return the upper Cholesky factor of the inverse of the damped moments."""
    size = moments.shape[-1]
    diagonal = np.einsum("gii->gi", moments)
    damping = np.maximum(_DAMPING * diagonal.mean(axis=1), 1e-12)
    # An input that is always zero may have any weight.
    damped = moments + np.eye(size) * damping[:, None, None]
    inverse = np.linalg.inv(damped)
    inverse = (inverse + np.swapaxes(inverse, 1, 2)) / 2
    return np.asarray(np.swapaxes(np.linalg.cholesky(inverse), 1, 2))


def unlike(a: Array, b: Array) -> int:
    """Return how many elements differ."""
    return int(np.count_nonzero(a != b))
