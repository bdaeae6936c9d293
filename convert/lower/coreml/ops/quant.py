"""Quantizing and its reverse: Core ML's own operators and packed weights, or arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.packing import pack
from edgeinfer.convert.lower.coreml.registry import FLOATS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

_TYPES = FLOATS | {
    *(ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16),
    *(ir.DataType.INT32, ir.DataType.INT4, ir.DataType.UINT4),
}
_STORED = ("int8", "uint8")
"""What quantize makes and dequantize takes."""


@OPS.lower("QuantizeLinear", dtypes=_TYPES)
def quantize_linear(
    g: Builder,
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: int,
) -> Tensor:
    """Quantize, or its arithmetic."""
    dtype = _target(y_zero_point, output_dtype)
    parameters = _parameters(x, y_scale, y_zero_point, axis, block_size)
    if g.offers("quantize") and dtype.name in _STORED and parameters is not None and x.rank:
        scale, zero, at = parameters
        return g.emit(
            "quantize",
            dtype,
            input=x,
            scale=scale.astype(x.dtype),
            zero_point=None if zero is None else zero.astype(dtype),
            axis=at,
            output_dtype=dtype.name,
        )
    if dtype.name not in (*_STORED, "int16", "uint16"):
        raise Refusal(f"{dtype.name} is not held by Core ML", "unsupported_dtype")
    wide = g.cast(x, np.float32)
    scale_t = _along(g, g.cast(y_scale, np.float32), x, axis, block_size)
    steps = g.unary("round", g.binary("real_div", wide, scale_t))
    if y_zero_point is not None:
        shift = _along(g, g.cast(y_zero_point, np.float32), x, axis, block_size)
        steps = g.binary("add", steps, shift)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    held = g.unary("clip", steps, alpha=float(low), beta=float(high))
    out = g.cast(held, np.int32)
    return Tensor(dtype, out.shape, out.variable, span=(low, high))


def _target(zero: Tensor | None, output_dtype: int) -> np.dtype[Any]:
    if zero is not None:
        return zero.dtype
    return np.dtype(ir.DataType(output_dtype).numpy()) if output_dtype else np.dtype(np.uint8)


def _parameters(
    x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block_size: int
) -> tuple[Array, Array | None, int | None] | None:
    """Scale, zero point and axis as Core ML takes them; None where it cannot."""
    if scale.data is None or (zero is not None and zero.data is None) or block_size:
        return None
    factors = np.asarray(scale.data, np.float32)
    shift = None if zero is None or zero.data is None else zero.data
    if factors.size == 1:
        return factors.reshape(()), None if shift is None else shift.reshape(()), None
    if factors.ndim != 1:
        return None
    return factors, shift, axis % x.rank


def _along(g: Builder, values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Shape scales or zero points so that they broadcast over the tensor."""
    if values.rank == 0 or (values.data is not None and values.data.size == 1):
        return g.reshape(values, [])
    at = axis % x.rank
    if values.rank == 1 and not block_size:
        return g.reshape(values, [-1 if a == at else 1 for a in range(x.rank)])
    if values.data is None or not isinstance(x.shape[at], int):
        raise Refusal("scales by block known only at run time", "dynamic_shape")
    size = block_size or -(-x.shape[at] // values.shape[at])
    repeated = np.repeat(values.data, size, axis=at)
    return g.const(np.take(repeated, range(x.shape[at]), axis=at), values.dtype)


@OPS.lower("DequantizeLinear", dtypes=_TYPES)
def dequantize_linear(
    g: Builder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int,
    block_size: int,
    output_dtype: int,
) -> Tensor:
    """Packed weights, dequantize, or its arithmetic."""
    own = np.dtype(ir.DataType(output_dtype).numpy()) if output_dtype else x_scale.dtype
    if x.data is not None:
        packed = pack(g, x, x_scale, x_zero_point, axis, block_size, own)
        return (
            packed
            if packed is not None
            else _constant(g, x, x_scale, x_zero_point, axis, block_size, own)
        )
    parameters = _parameters(x, x_scale, x_zero_point, axis, block_size)
    kind = "" if x.variable is None else g.kind(x.variable)
    if parameters is not None and kind in _STORED:
        scale, zero, at = parameters
        variable = g.call(
            "dequantize",
            {
                "input": x.variable,
                "scale": scale.astype(own),
                "zero_point": None if zero is None else zero.astype(x.dtype),
                "axis": at,
            },
        )
        return g.wrap(variable, own)
    values = g.cast(Tensor(np.dtype(np.int32), x.shape, g.physical(x)), np.float32)
    if x_zero_point is not None:
        shift = _along(g, g.cast(x_zero_point, np.float32), x, axis, block_size)
        values = g.binary("sub", values, shift)
    scale_t = _along(g, g.cast(x_scale, np.float32), x, axis, block_size)
    return g.cast(g.binary("mul", values, scale_t), own)


def _constant(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    axis: int,
    block_size: int,
    own: np.dtype[Any],
) -> Tensor:
    factor = _along(g, scale, x, axis, block_size)
    shift = None if zero is None else _along(g, zero, x, axis, block_size)
    if x.data is None or factor.data is None or (shift is not None and shift.data is None):
        raise Refusal("scales known only at run time", "requires_constant")
    values = x.data.astype(np.float32)
    if shift is not None and shift.data is not None:
        values = values - shift.data.astype(np.float32)
    return g.const(values * factor.data.astype(np.float32), own)


@OPS.lower("DynamicQuantizeLinear", dtypes=FLOATS | {ir.DataType.UINT8})
def dynamic_quantize_linear(g: Builder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Its arithmetic."""
    axes = list(range(x.rank))
    high = g.binary("maximum", g.reduce("reduce_max", x, axes, False), 0.0)
    low = g.binary("minimum", g.reduce("reduce_min", x, axes, False), 0.0)
    span = g.binary("sub", high, low)
    # A 255th as coremltools writes it, times the reciprocal, is the last bit off.
    scale = g.binary("add", g.binary("mul", span, 1 / 256), g.binary("mul", span, 1 / 65280))
    shift = g.binary("real_div", g.binary("sub", 0.0, low), scale)
    zero = g.unary("clip", g.unary("round", shift), alpha=0.0, beta=255.0)
    steps = g.binary("add", g.unary("round", g.binary("real_div", x, scale)), zero)
    held = g.cast(g.unary("clip", steps, alpha=0.0, beta=255.0), np.int32)
    place = g.cast(zero, np.int32)
    dtype = np.dtype(np.uint8)
    return (
        Tensor(dtype, held.shape, held.variable, span=(0, 255)),
        scale,
        Tensor(dtype, place.shape, place.variable, span=(0, 255)),
    )
