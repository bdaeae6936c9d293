"""Random numbers: NumPy's, so the distribution is Core ML's and the numbers are not."""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.coreml_reference.ops.activation import softmax
from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.types import Array


def _generator(seed: int) -> np.random.Generator:
    """Return the generator of a seed; a negative one means another start each time."""
    return np.random.default_rng(None if seed < 0 else seed)


@op("random_uniform")
def random_uniform(shape: Ints, low: float = 0.0, high: float = 1.0, seed: int = -1) -> Array:
    return _generator(seed).uniform(low, high, shape)


@op("random_normal")
def random_normal(shape: Ints, mean: float = 0.0, stddev: float = 1.0, seed: int = -1) -> Array:
    return _generator(seed).normal(mean, stddev, shape)


@op("random_bernoulli")
def random_bernoulli(shape: Ints, prob: float = 0.5, seed: int = -1) -> Array:
    return (_generator(seed).random(shape) < prob).astype(np.float32)


@op("random_categorical")
def random_categorical(x: Array, mode: str = "logits", size: int = 1, seed: int = -1) -> Array:
    weights = softmax(x) if mode == "logits" else x / x.sum(axis=-1, keepdims=True)
    steps = np.cumsum(weights, axis=-1)
    drawn = _generator(seed).random((*x.shape[:-1], size))
    chosen = (drawn[..., None] >= steps[..., None, :]).sum(axis=-1)
    result: Array = np.minimum(chosen, x.shape[-1] - 1).astype(np.float32)
    return result
