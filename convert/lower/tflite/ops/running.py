"""Running sums and products."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import OPS
from edgeinfer.convert.lower.tflite.sizes import axis_of
from edgeinfer.convert.lower.tflite.unsigned import signed, unsigned
from edgeinfer.convert.lower.tflite.widen import NUMBERS, widened


@OPS.lower("CumSum", dtypes=NUMBERS)
@widened
def cumsum(g: Builder, x: Tensor, axis: Tensor, *, exclusive: int, reverse: int) -> Tensor:
    """Running sum."""
    if x.dtype == np.uint64:
        return unsigned(g, cumsum(g, signed(g, x), axis, exclusive=exclusive, reverse=reverse))
    if x.dtype == np.float64:
        return _running(g, "ADD", x, axis, bool(exclusive), bool(reverse))
    if axis.data is None:
        along = g.reshape(g.cast(axis, np.int32), [])
    else:
        along = g.const(int(axis.data.reshape(())[()]) % x.rank, np.int32)
    return g.emit("CUMSUM", [x, along], x.shape, exclusive=bool(exclusive), reverse=bool(reverse))


@OPS.lower("CumProd", dtypes=NUMBERS)
@widened
def cumprod(g: Builder, x: Tensor, axis: Tensor, *, exclusive: int, reverse: int) -> Tensor:
    """Running product."""
    return _running(g, "MUL", x, axis, bool(exclusive), bool(reverse))


def _running(
    g: Builder, code: str, x: Tensor, axis: Tensor, exclusive: bool, reverse: bool
) -> Tensor:
    """Combine each element with the one 1, 2, 4, ... positions before."""
    if axis.data is None:
        raise Refusal("input 'axis' must be constant", "requires_constant")
    at = axis_of(int(axis.data.reshape(())[()]), x.rank)
    size = x.shape[at]
    if size is None:
        raise Refusal("the length of the axis is known at run time only", "dynamic_shape")
    neutral = 0 if code == "ADD" else 1
    if exclusive:
        x = _shifted(g, x, at, size, 1, reverse, neutral)
    distance = 1
    while distance < size:
        x = g.binary(code, _shifted(g, x, at, size, distance, reverse, neutral), x)
        distance *= 2
    return x


def _shifted(
    g: Builder, x: Tensor, axis: int, size: int, distance: int, reverse: bool, neutral: int
) -> Tensor:
    """Move along an axis, towards its end unless ``reverse``; what comes in is ``neutral``."""
    if not size:
        return x
    if not x.is_static:
        raise Refusal("sizes of the other axes are known at run time only", "dynamic_shape")
    shape = list(x.static_shape)
    if distance >= size:
        return g.const(np.full(shape, neutral, x.dtype))
    first, last = (distance, size) if reverse else (0, size - distance)
    begin = [first if i == axis else 0 for i in range(x.rank)]
    end = [last if i == axis else None for i in range(x.rank)]
    kept = g.slice(x, begin, end, [1] * x.rank)
    shape[axis] = distance
    edge = g.const(np.full(shape, neutral, x.dtype))
    return g.concat([kept, edge] if reverse else [edge, kept], axis)
