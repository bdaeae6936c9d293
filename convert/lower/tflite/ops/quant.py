"""QuantizeLinear and its kin.

Scales that are constant and per tensor become the scale of a tensor, between QUANTIZE and
DEQUANTIZE; ``quantize`` then lets the operators between them compute with integers. Everything else
is written out as arithmetic, which is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import QuantizedBlocks, Tensor, TensorQuantization
from edgeinfer.convert.lower.tflite.registry import FLOATS, OPS
from edgeinfer.convert.lower.tflite.widen import REALS, is_real
from edgeinfer.types import Array

_STORED = frozenset({"int8", "uint8", "int16"})
_TYPES = REALS | {
    *(ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16),
    *(ir.DataType.INT32, ir.DataType.INT4, ir.DataType.UINT4),
}


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
    """QUANTIZE, or its arithmetic."""
    if not is_real(x.dtype):
        raise Refusal(f"{x.dtype} is not quantized further", "unsupported_dtype")
    # Half precision is computed in float32 and rounded once.
    x, y_scale = g.cast(x, np.float32), g.cast(y_scale, np.float32)
    dtype = _target(y_zero_point, output_dtype)
    _check_width(dtype)
    per_tensor = _per_tensor(y_scale, y_zero_point)
    if per_tensor is not None and dtype.name in _STORED and _is_storable(dtype, per_tensor):
        out = g.tensor(x.shape, dtype)
        out.quantization = per_tensor
        g.add("QUANTIZE", [x], [out])
        return out
    scale = _along(g, y_scale, x, axis, block_size)
    return quantized(g, x, scale, y_zero_point, dtype, axis, block_size)


def quantized(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    dtype: np.dtype[Any],
    axis: int,
    block_size: int = 0,
) -> Tensor:
    """Divide, round half to even, shift, saturate."""
    limits = np.iinfo(dtype)
    steps = g.unary("ROUND", g.binary("DIV", x, scale))
    if zero is not None and not _is_zero(zero):
        shift = zero if zero.data is None else g.const(zero.data)
        shift = g.cast(shift, np.float32)
        steps = g.binary("ADD", steps, _along(g, shift, x, axis, block_size))
    steps = g.binary("MAXIMUM", steps, float(limits.min))
    return g.cast(g.binary("MINIMUM", steps, float(limits.max)), dtype)


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
    """DEQUANTIZE, or its arithmetic; constants are computed here and remember their scales."""
    own = _result(x_scale, output_dtype)
    if own != np.float32:
        single = g.cast(x_scale, np.float32)
        how = {"axis": axis, "block_size": block_size, "output_dtype": 0}
        wide = dequantize_linear(g, x, single, x_zero_point, **how)
        return g.cast(wide, own)
    if x.data is not None and x_scale.data is not None:
        return _constant(g, x, x_scale, x_zero_point, axis, block_size)
    _check_width(x.dtype)
    per_tensor = _per_tensor(x_scale, x_zero_point)
    if per_tensor is not None and x.dtype.name in _STORED and _is_storable(x.dtype, per_tensor):
        if x.quantization is None:
            x.quantization = per_tensor
        if _same(x.quantization, per_tensor):
            return g.emit("DEQUANTIZE", [x], x.shape, np.float32)
    values = g.cast(x, np.int32)
    if x_zero_point is not None and not _is_zero(x_zero_point):
        shift = g.cast(x_zero_point, np.int32)
        values = g.binary("SUB", values, _along(g, shift, x, axis, block_size))
    scale = _along(g, x_scale, x, axis, block_size)
    return g.binary("MUL", g.cast(values, np.float32), scale)


@OPS.lower(
    "DynamicQuantizeLinear",
    dtypes=FLOATS | {ir.DataType.UINT8},
)
def dynamic_quantize_linear(g: Builder, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Its arithmetic."""
    axes = list(range(x.rank))
    low = g.binary("MINIMUM", g.reduce("REDUCE_MIN", x, axes, keepdims=False), 0.0)
    high = g.binary("MAXIMUM", g.reduce("REDUCE_MAX", x, axes, keepdims=False), 0.0)
    scale = g.binary("DIV", g.binary("SUB", high, low), 255.0)
    zero = g.unary("ROUND", g.binary("DIV", g.unary("NEG", low), scale))
    zero = g.binary("MINIMUM", g.binary("MAXIMUM", zero, 0.0), 255.0)
    steps = g.binary("ADD", g.unary("ROUND", g.binary("DIV", x, scale)), zero)
    steps = g.binary("MINIMUM", g.binary("MAXIMUM", steps, 0.0), 255.0)
    return g.cast(steps, np.uint8), scale, g.cast(zero, np.uint8)


def _check_width(dtype: np.dtype[Any]) -> None:
    if dtype.name not in ("int8", "uint8", "int16", "uint16", "int32"):
        raise Refusal(f"{dtype.name} is for constants only", "unsupported_dtype")


def _target(zero: Tensor | None, output_dtype: int) -> np.dtype[Any]:
    if zero is not None:
        return zero.dtype
    return np.dtype(ir.DataType(output_dtype).numpy()) if output_dtype else np.dtype(np.uint8)


def _result(scale: Tensor, output_dtype: int) -> np.dtype[Any]:
    return np.dtype(ir.DataType(output_dtype).numpy()) if output_dtype else scale.dtype


def _is_zero(zero: Tensor) -> bool:
    return zero.data is not None and not zero.data.any()


def _per_tensor(scale: Tensor, zero: Tensor | None) -> TensorQuantization | None:
    """The parameters, if they are known and one for the whole tensor."""
    if scale.data is None or scale.data.size != 1 or (zero is not None and zero.data is None):
        return None
    point = np.zeros(1, np.int64) if zero is None or zero.data is None else zero.data
    return TensorQuantization(
        scale.data.reshape(1).astype(np.float32), point.reshape(1).astype(np.int64)
    )


def _is_storable(dtype: np.dtype[Any], q: TensorQuantization) -> bool:
    """LiteRT's int16 tensors are symmetric."""
    positive = bool(q.scale[0] > 0) and bool(np.isfinite(q.scale[0]))
    return positive and (dtype != np.int16 or int(q.zero_point[0]) == 0)


def _same(a: TensorQuantization, b: TensorQuantization) -> bool:
    return bool(np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point))


def _along(g: Builder, values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Shape scales so that they broadcast over the tensor."""
    if block_size and values.rank == x.rank:
        return _blocks(g, values, x, axis % x.rank, block_size)
    if values.rank == 0 or values.shape == (1,):
        return g.reshape(values, [])
    axis %= x.rank
    shape = [1] * x.rank
    size = values.shape[0]
    if size is None:
        raise Refusal("the number of scales is not known", "dynamic_shape")
    shape[axis] = size
    return g.reshape(values, shape)


def _blocks(g: Builder, values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """One value for every element of its block; the last block may be shorter."""
    if not (values.is_static and x.is_static):
        raise Refusal("blocks of dynamic sizes", "dynamic_shape")
    sizes = list(values.static_shape)
    wide = [*sizes[: axis + 1], block_size, *sizes[axis + 1 :]]
    repeated = g.insert_axis(values, axis + 1)
    repeated = g.emit("BROADCAST_TO", [repeated, g.const(wide, np.int32)], wide)
    sizes[axis] *= block_size
    flat = g.reshape(repeated, sizes)
    if flat.shape == x.shape:
        return flat
    end = [x.static_shape[axis] if i == axis else None for i in range(x.rank)]
    return g.slice(flat, [0] * x.rank, end, [1] * x.rank)


def _constant(
    g: Builder, x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block_size: int
) -> Tensor:
    stored, scales = x.value, scale.value
    points = np.zeros(scales.shape, np.int32) if zero is None else zero.value.astype(np.int32)
    shape = [1] * stored.ndim
    if block_size:
        axis %= stored.ndim
        count = stored.shape[axis]
        wide = [np.repeat(v, block_size, axis).take(range(count), axis) for v in (scales, points)]
        factor, shift = wide
    elif scales.size == 1:
        factor, shift = scales.reshape(()), points.reshape(())
    else:
        shape[axis % stored.ndim] = scales.size
        factor, shift = scales.reshape(shape), points.reshape(shape)
    values: Array = (stored.astype(np.int32) - shift).astype(np.float32) * factor
    values = values.astype(np.float32, copy=False)
    in_blocks = block_size and axis == 0 and stored.ndim == 2 and stored.dtype.name == "int4"
    if in_blocks and not points.any():
        g.blocks.append(QuantizedBlocks(values, stored, scales, block_size))
    if not block_size and stored.dtype in (np.int8, np.int16) and not points.any():
        g.scales.append(scales.ravel().astype(np.float32))
        if g.arithmetic:
            g.apart.append(g.scales[-1])
        if g.arithmetic == "dynamic":
            g.dynamic.append(g.scales[-1])
    return g.const(values)
