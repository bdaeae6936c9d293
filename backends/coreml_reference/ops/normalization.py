"""Normalisations."""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.coreml_reference.ops.activation import channels
from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.types import Array


@op("batch_norm")
def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    scale = 1 / np.sqrt(variance + np.float32(epsilon))
    scale = scale if gamma is None else scale * gamma
    y = (x - channels(mean, x)) * channels(scale, x)
    return y if beta is None else y + channels(beta, x)


@op("instance_norm")
def instance_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: float = 1e-5
) -> Array:
    y = _standard(x, tuple(range(2, x.ndim)), epsilon)
    y = y if gamma is None else y * channels(gamma, x)
    return y if beta is None else y + channels(beta, x)


@op("layer_norm")
def layer_norm(
    x: Array,
    axes: Ints | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    over = range(x.ndim) if axes is None else sorted(a % x.ndim for a in axes)
    y = _standard(x, tuple(over), epsilon)
    shape = [x.shape[a] if a in over else 1 for a in range(x.ndim)]
    y = y if gamma is None else y * gamma.reshape(shape)
    return y if beta is None else y + beta.reshape(shape)


@op("l2_norm")
def l2_norm(x: Array, epsilon: float = 1e-6) -> Array:
    axes = tuple(range(max(0, x.ndim - 3), x.ndim))
    squares = np.square(x).sum(axis=axes, keepdims=True)
    result: Array = x / np.sqrt(squares + np.float32(epsilon))
    return result


@op("local_response_norm")
def local_response_norm(
    x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Array:
    squares = np.square(x)
    before = (size - 1) // 2 + (size + 1) % 2
    padding = [(0, 0), (before, size // 2 if size % 2 else size // 2 - 1)]
    padded = np.pad(squares, [*padding, *[(0, 0)] * (x.ndim - 2)])
    total = np.zeros_like(x)
    for shift in range(size):
        total += padded[:, shift : shift + x.shape[1]]
    result: Array = x / np.power(np.float32(k) + np.float32(alpha / size) * total, np.float32(beta))
    return result


def _standard(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    variance = np.square(centred).mean(axis=axes, keepdims=True, dtype=x.dtype)
    result: Array = centred / np.sqrt(variance + np.float32(epsilon))
    return result
