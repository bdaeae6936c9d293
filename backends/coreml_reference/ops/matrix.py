"""Products of matrices."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.backends.coreml_reference.ops.activation import softmax
from edgeinfer.backends.coreml_reference.registry import Arrays, op
from edgeinfer.types import Array


@op("linear")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    product = product_of(x, weight.T)
    return product if bias is None else product + bias


@op("matmul")
def matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    left = np.swapaxes(x, -1, -2) if transpose_x and x.ndim > 1 else x
    right = np.swapaxes(y, -1, -2) if transpose_y and y.ndim > 1 else y
    return product_of(left, right)


@op("einsum")
def einsum(values: Arrays, equation: str) -> Array:
    result: Array = np.einsum(equation.replace(" ", ""), *values, optimize=True)
    return result


@op("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None
) -> Array:
    scores = query @ np.swapaxes(key, -1, -2) / np.float32(math.sqrt(query.shape[-1]))
    if attn_mask is not None:
        hidden = np.float32(-np.inf)
        masked = attn_mask.dtype == bool
        scores = np.where(attn_mask, scores, hidden) if masked else scores + attn_mask
    return softmax(scores) @ value


def product_of(left: Array, right: Array) -> Array:
    """Return the matrix product; integers multiply exactly, which BLAS does not do."""
    result: Array = np.matmul(left, right)
    return result
