"""The operators that most nodes are: NumPy says them in one line, and needs no reference for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array

Plain = Callable[[Mapping[str, Any], int, list[Array | None]], tuple[Array, ...]]


def elementwise(function: Callable[..., Array]) -> Plain:
    """Return the operator that applies a NumPy function; from opset 7 on they broadcast alike."""

    def run(
        attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
    ) -> tuple[Array, ...]:
        return (np.asarray(function(*inputs)),)

    return run


def relu(attrs: Mapping[str, Any], version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Relu; a NaN stays one."""
    (x,) = inputs
    if x is None:
        raise Unhandled("Relu without an operand")
    return (np.maximum(x, np.zeros((), x.dtype)),)


def softsign(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """Softsign; the reference of onnx 1.23 takes no scalars."""
    (x,) = inputs
    if x is None:
        raise Unhandled("Softsign without an operand")
    return (np.asarray(x / (1 + np.abs(x))),)


def flatten(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """Flatten to two axes; ``axis`` may be the rank, and negative from opset 11 on."""
    (x,) = inputs
    if x is None:
        raise Unhandled("Flatten without an operand")
    axis = attrs.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    # Not -1: NumPy cannot infer a size of an array without elements.
    return (x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


def gather(attrs: Mapping[str, Any], version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Gather; positions below zero count from the end, and those outside are an error."""
    data, indices = inputs
    if data is None or indices is None:
        raise Unhandled("Gather without an operand")
    return (np.asarray(np.take(data, indices, axis=attrs.get("axis", 0))),)


def gather_elements(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """GatherElements; the ONNX reference does not take fewer positions than there are rows."""
    data, indices = inputs
    if data is None or indices is None or data.ndim != indices.ndim:
        raise Unhandled("GatherElements without an operand, or of two ranks")
    axis = attrs.get("axis", 0) % data.ndim
    part = tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))
    if any(
        n > m for a, (n, m) in enumerate(zip(indices.shape, data.shape, strict=True)) if a != axis
    ):
        raise Unhandled("GatherElements of more positions than rows")
    return (np.take_along_axis(data[part], indices, axis),)


def running_sum(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """CumSum; its axis may be a list of one, as PyTorch's exporter writes it."""
    x, axis = inputs
    if x is None or axis is None or axis.size != 1 or not x.ndim:
        raise Unhandled("CumSum without an axis")
    place = int(axis.reshape(-1)[0]) % x.ndim
    back, exclusive = attrs.get("reverse", 0), attrs.get("exclusive", 0)
    x = np.flip(x, place) if back else x
    made = np.cumsum(x, axis=place, dtype=x.dtype)
    if exclusive:
        made = np.roll(made, 1, axis=place)
        made[tuple(slice(0, 1) if a == place else slice(None) for a in range(x.ndim))] = 0
    return (np.flip(made, place) if back else made,)


def one_hot(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """OneHot; indices below zero count from the end, and those outside have no class.

    The ONNX reference does not take a depth of shape ``[1]``, which the standard allows.
    """
    indices, depth, values = inputs
    if indices is None or depth is None or values is None:
        raise Unhandled("OneHot without an operand")
    axis, rank = int(attrs.get("axis", -1)), indices.ndim + 1
    count = int(depth.reshape(-1)[0])
    positions = np.arange(count).reshape([-1 if a == axis % rank else 1 for a in range(rank)])
    # Any number may be an index, and fractions are cut off.
    whole = np.trunc(indices)
    whole = np.expand_dims(np.where(whole < 0, whole + count, whole), axis % rank)
    return (np.where(positions == whole, values[1], values[0]),)


def gemm(attrs: Mapping[str, Any], version: int, inputs: list[Array | None]) -> tuple[Array, ...]:
    """Gemm of floats: ``alpha * A' B' + beta * C``."""
    a, b, *rest = inputs
    if a is None or b is None or a.dtype.kind != "f":
        raise Unhandled("Gemm of integers")
    a = a.T if attrs.get("transA", 0) else a
    b = b.T if attrs.get("transB", 0) else b
    y = (a @ b) * a.dtype.type(attrs.get("alpha", 1.0))
    c = rest[0] if rest else None
    return (y if c is None else y + a.dtype.type(attrs.get("beta", 1.0)) * c,)
