"""Quantized values: integers with a scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import ALL, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


def _spread(g: Builder, x: Tensor, t: Tensor, axis: int, block_size: int) -> Tensor:
    """Bring a scale or a zero point to the axes of what it is for."""
    if block_size:
        return _blocks(g, x, t, axis % x.rank, block_size)
    if t.rank == 0 or t.shape == (1,):
        return g.reshape(t, [])
    return g.insert_axes(t, [a for a in range(x.rank) if a != axis % x.rank])


def _blocks(g: Builder, x: Tensor, t: Tensor, axis: int, size: int) -> Tensor:
    """Repeat each scale over its block; the last block may be cut short."""
    whole = x.shape[axis]
    if t.sizes is None or whole is None:
        raise Refusal("blocks of scales on dynamic sizes", "dynamic_shape")
    before, count, behind = t.sizes[:axis], t.sizes[axis], t.sizes[axis + 1 :]
    wide = g.expand(g.insert_axes(t, [axis + 1]), [*before, count, size, *behind])
    return g.part(g.reshape(wide, [*before, count * size, *behind]), axis, 0, whole)


@OPS.lower("QuantizeLinear", dtypes=ALL)
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
    wanted = ir.DataType(output_dtype) if output_dtype else ir.DataType.UINT8
    if wanted not in ALL:
        raise Refusal(f"to {wanted.name.lower()}", "unsupported_dtype")
    dtype = y_zero_point.dtype if y_zero_point is not None else wanted.numpy()
    scale = g.cast(_spread(g, x, y_scale, axis, block_size), np.float32)
    whole = g.unary("round_", g.binary("divide", g.cast(x, np.float32), scale))
    limits = np.iinfo(dtype)
    if y_zero_point is not None:
        zero = g.cast(_spread(g, x, y_zero_point, axis, block_size), np.float32)
        whole = g.binary("add", whole, zero)
    return g.cast(g.clip(whole, float(limits.min), float(limits.max)), dtype)


@OPS.lower("DequantizeLinear", dtypes=ALL | {ir.DataType.INT4, ir.DataType.UINT4})
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
    scale = _spread(g, x, x_scale, axis, block_size)
    wide = g.cast(x, np.int32)
    if x_zero_point is not None:
        zero = _spread(g, x, x_zero_point, axis, block_size)
        wide = g.binary("sub", wide, g.cast(zero, np.int32))
    made = g.binary("mul", g.cast(wide, scale.dtype), scale)
    return g.cast(made, ir.DataType(output_dtype).numpy()) if output_dtype else made
