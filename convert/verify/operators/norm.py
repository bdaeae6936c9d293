"""Normalisations and Gelu, in the type that they are given, with the mean taken off first.

ONNX defines some of them by functions that cast to float32 inside, subtract the square of a mean
from a mean of squares, or add one to an error function near minus one: in float64 those would still
have float32's faults, or not run at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array

Attributes = Mapping[str, Any]


def group_normalization(
    attrs: Attributes, version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """GroupNormalization; before opset 21 scale and bias are one a group."""
    x, scale, bias = _given(inputs, 3)
    groups = int(attrs["num_groups"])
    parted = x.reshape(x.shape[0], groups, -1)
    normal, _, _ = _moments(parted, (2,), attrs.get("epsilon", 1e-5))
    if version < 21:
        return ((normal * scale[:, None] + bias[:, None]).reshape(x.shape),)
    column = (-1, *(1 for _ in x.shape[2:]))
    return (normal.reshape(x.shape) * scale.reshape(column) + bias.reshape(column),)


def instance_normalization(
    attrs: Attributes, version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """InstanceNormalization."""
    x, scale, bias = _given(inputs, 3)
    normal, _, _ = _moments(x, tuple(range(2, x.ndim)), attrs.get("epsilon", 1e-5))
    column = (-1, *(1 for _ in x.shape[2:]))
    return (normal * scale.reshape(column) + bias.reshape(column),)


def layer_normalization(
    attrs: Attributes, version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """LayerNormalization, with mean and inverse deviation where they are requested."""
    x, scale = _given(inputs, 2)
    axes = tuple(range(attrs.get("axis", -1) % x.ndim, x.ndim))
    normal, mean, inverse = _moments(x, axes, attrs.get("epsilon", 1e-5))
    y = normal * scale
    if len(inputs) > 2 and inputs[2] is not None:
        y = y + inputs[2]
    return (y, mean, inverse)[: attrs["#outputs"]]


def rms_normalization(
    attrs: Attributes, version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """RMSNormalization."""
    x, scale = _given(inputs, 2)
    axes = tuple(range(attrs.get("axis", -1) % x.ndim, x.ndim))
    squares = np.mean(x * x, axis=axes, keepdims=True)
    return (x / np.sqrt(squares + x.dtype.type(attrs.get("epsilon", 1e-5))) * scale,)


def mean_variance_normalization(
    attrs: Attributes, version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """MeanVarianceNormalization, with the definition's term next to the deviation."""
    (x,) = _given(inputs, 1)
    axes = tuple(attrs.get("axes", (0, 2, 3)))
    rest = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(np.mean(rest * rest, axis=axes, keepdims=True))
    return (rest / (deviation + x.dtype.type(1e-9)),)


def lp_normalization(
    attrs: Attributes, version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """LpNormalization; the reference of onnx 1.23 adds up elements with their signs for ``p=1``."""
    (x,) = _given(inputs, 1)
    axis, power = int(attrs.get("axis", -1)), int(attrs.get("p", 2))
    length = np.linalg.norm(x, power, axis=axis, keepdims=True)
    return (np.divide(x, length, out=np.zeros_like(x), where=length != 0),)


def local_response(
    attrs: Attributes, version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """LRN over channels; the reference of onnx 1.23 takes the batch's size for theirs."""
    (x,) = _given(inputs, 1)
    size, kind = int(attrs["size"]), x.dtype.type
    before, after = (size - 1) // 2, size // 2
    around = [(0, 0), (before, after), *((0, 0) for _ in x.shape[2:])]
    squares = np.pad(x * x, around)
    total = sum(squares[:, i : i + x.shape[1]] for i in range(size))
    share = kind(attrs.get("alpha", 1e-4) / size)
    power = kind(attrs.get("beta", 0.75))
    return (x / (kind(attrs.get("bias", 1.0)) + share * total) ** power,)


def gelu(attrs: Attributes, version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Gelu; what is left far below zero keeps its digits."""
    (x,) = _given(inputs, 1)
    kind = x.dtype.type
    if _text(attrs.get("approximate", "none")) == "tanh":
        inner = kind(2 * math.sqrt(2 / math.pi)) * (x + kind(0.044715) * x * x * x)
        return ((x / (1 + np.exp(-inner))).astype(x.dtype),)
    tail = np.asarray(_erfc(x * kind(-math.sqrt(0.5)))).astype(x.dtype)
    return (kind(0.5) * x * tail,)


def _erfc(x: Array) -> Array:
    return np.fromiter(map(math.erfc, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _moments(x: Array, axes: Sequence[int], epsilon: float) -> tuple[Array, Array, Array]:
    """Return the normalised operand, its mean and the inverse of its deviation."""
    over = tuple(axes)
    mean = x.mean(axis=over, keepdims=True)
    rest = x - mean
    variance = np.mean(rest * rest, axis=over, keepdims=True)
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    return rest * inverse, mean, inverse


def _given(inputs: Sequence[Array | None], count: int) -> list[Array]:
    found = [x for x in inputs[:count] if x is not None]
    if len(found) < count or (found[0].ndim == 0 and count > 1):
        raise Unhandled("an operand is missing")
    return found


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
