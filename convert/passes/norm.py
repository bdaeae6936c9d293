"""Facts about normalisations that their fusions share."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import attr, constant, ints, static_shape
from edgeinfer.convert.passes.match import Named, OpPattern, var
from edgeinfer.types import Array

_FEW = 1 << 20
"""Scales and biases of more elements than this are activations in disguise and are not folded."""


def mean(of: Named | OpPattern, axes: str) -> OpPattern:
    """Return the pattern of a mean that keeps its axes."""
    return OpPattern("ReduceMean", (of, var(axes)), lambda n: attr(n, "keepdims", 1) == 1)


def trailing_axis(x: ir.Value, axes: ir.Value) -> int | None:
    """Return the first of the reduced axes when they are the last ones of ``x``, else None."""
    found = ints(axes)
    if not found or x.shape is None:
        return None
    rank = len(x.shape)
    order = sorted(a % rank for a in found)
    return order[0] if order == list(range(order[0], rank)) else None


def normal_shape(x: ir.Value, axis: int) -> tuple[int, ...] | None:
    """Return the sizes of the axes from ``axis`` on when they are known."""
    if x.shape is None:
        return None
    dims = x.shape[axis:]
    return tuple(d for d in dims if isinstance(d, int)) if ir.Shape(dims).is_static() else None


def ones(x: ir.Value, axis: int, dtype: ir.DataType | None) -> Array | None:
    """Return the scale that changes nothing, when its shape is known."""
    shape = normal_shape(x, axis)
    if shape is None or dtype is None or np.prod(shape) > _FEW:
        return None
    return np.ones(shape, dtype.numpy())


def per_element(value: ir.Value, shape: tuple[int, ...]) -> Array | None:
    """Return a constant as one number for each normalised element, when it has that form."""
    tensor = constant(value)
    if tensor is None or tensor.size > _FEW:
        return None
    data = np.asarray(tensor.numpy())
    lead = len(data.shape) - len(shape)
    if any(d != 1 for d in data.shape[: max(lead, 0)]):
        return None
    data = data.reshape(data.shape[max(lead, 0) :])
    try:
        return np.broadcast_to(data, shape).copy()
    except ValueError:
        return None


def exact_shape(value: ir.Value, shape: tuple[int, ...]) -> bool:
    """Whether a computed value has exactly the shape of the normalised axes."""
    return static_shape(value) == shape


def is_ones(value: ir.Value | None) -> bool:
    """Whether a constant holds nothing but ones."""
    tensor = constant(value)
    return tensor is not None and tensor.size <= _FEW and bool(np.all(tensor.numpy() == 1.0))
