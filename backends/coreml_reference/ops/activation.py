"""Activation functions."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.backends.coreml_reference.ops.elementwise import error_function
from edgeinfer.backends.coreml_reference.registry import op
from edgeinfer.types import Array


@op("relu")
def relu(x: Array) -> Array:
    result: Array = np.maximum(x, np.asarray(0, x.dtype))
    return result


@op("relu6")
def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


@op("clamped_relu")
def clamped_relu(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.float32(beta), leaky_relu(x, alpha))


@op("leaky_relu")
def leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, np.float32(alpha) * x)


@op("prelu")
def prelu(x: Array, alpha: Array) -> Array:
    return np.where(x >= 0, x, channels(alpha, x) * x)


@op("thresholded_relu")
def thresholded_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= np.float32(alpha), x, np.asarray(0, x.dtype))


@op("elu")
def elu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


@op("gelu")
def gelu(x: Array, mode: str = "EXACT") -> Array:
    if mode == "EXACT":
        gate = (1 + error_function(x / np.float32(math.sqrt(2)))) / 2
    elif mode == "TANH_APPROXIMATION":
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
        gate = (1 + np.tanh(inner)) / 2
    elif mode == "SIGMOID_APPROXIMATION":
        gate = sigmoid(np.float32(1.702) * x)
    else:
        raise ValueError(f"the mode {mode!r} is not known")
    return x * gate


@op("linear_activation")
def linear_activation(x: Array, alpha: float, beta: float) -> Array:
    return np.float32(alpha) * x + np.float32(beta)


@op("scaled_tanh")
def scaled_tanh(x: Array, alpha: float, beta: float) -> Array:
    return np.float32(alpha) * np.tanh(np.float32(beta) * x)


@op("sigmoid")
def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, np.float32(1), small) / (1 + small)
    return result


@op("sigmoid_hard")
def sigmoid_hard(x: Array, alpha: float, beta: float) -> Array:
    result: Array = np.clip(np.float32(alpha) * x + np.float32(beta), 0, 1)
    return result


@op("silu")
def silu(x: Array) -> Array:
    return x * sigmoid(x)


@op("softmax")
def softmax(x: Array, axis: int = -1) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    result: Array = powers / powers.sum(axis=axis, keepdims=True)
    return result


@op("softplus")
def softplus(x: Array) -> Array:
    return np.logaddexp(x, np.float32(0))


@op("softplus_parametric")
def softplus_parametric(x: Array, alpha: Array, beta: Array) -> Array:
    return channels(alpha, x) * softplus(channels(beta, x) * x)


@op("softsign")
def softsign(x: Array) -> Array:
    result: Array = x / (1 + np.abs(x))
    return result


@op("tanh")
def tanh(x: Array) -> Array:
    return np.tanh(x)


def channels(values: Array, x: Array) -> Array:
    """Return one value a channel in a shape that meets the second axis of ``x``."""
    return values.reshape((1, -1) + (1,) * (x.ndim - 2))
