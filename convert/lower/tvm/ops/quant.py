"""Integers that stand for numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from tvm import te, tirx

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.narrow import of_quantized
from edgeinfer.convert.lower.tvm.ops.arith import convert, dtype_name
from edgeinfer.convert.lower.tvm.ops.matrix import numpy_product, reshape
from edgeinfer.convert.lower.tvm.registry import BOOL, FLOATS, OPS
from edgeinfer.types import Array

_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32})
_PARTS = _BYTES | {ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.FLOAT, ir.DataType.FLOAT16}
_NIBBLES = frozenset({ir.DataType.INT4, ir.DataType.UINT4})


def _along(g: Builder, x: Tensor, part: Tensor, axis: int, block: int) -> Tensor:
    """Lay a scale or a zero point along its axis."""
    if block and part.rank == x.rank:
        return _repeated(g, x, part, axis % x.rank, block)
    if part.rank == 0 or (part.is_static and part.shape == (1,)):
        return reshape(g, part, ())
    shape = [1] * x.rank
    shape[axis % x.rank] = part.shape[0]
    return reshape(g, part, tuple(shape))


def _repeated(g: Builder, x: Tensor, part: Tensor, axis: int, block: int) -> Tensor:
    """Give each element of a block the block's value."""
    size = x.shape[axis]
    if not isinstance(size, int):
        raise Refusal("blocks along an open size", "dynamic_shape")
    if part.data is not None:
        return g.const(part.data.repeat(block, axis).take(range(size), axis))
    shape = (*part.shape[:axis], size, *part.shape[axis + 1 :])

    def compute(values: Any) -> Any:
        def element(*index: Any) -> Any:
            return values(*index[:axis], index[axis] // block, *index[axis + 1 :])

        return te.compute(shape, element, name="blocks")

    return g.te(compute, part, name="blocks")


@OPS.lower("DequantizeLinear", dtypes=_PARTS | _NIBBLES)
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
    """``(x - zero) * scale``."""
    kind = dtype_name(output_dtype) if output_dtype else x_scale.dtype
    if kind != x_scale.dtype:
        raise Refusal("another type than the scale's", "unsupported_dtype")
    if x.data is not None and x_scale.data is not None and kind == "float32":
        known = None if x_zero_point is None else x_zero_point.data
        if known is not None or x_zero_point is None:
            return _known(g, x.data, x_scale.data, known, axis, block_size)
    if x.dtype.endswith("int4"):
        raise Refusal("4 bits that are computed", "unsupported_dtype")
    scale = _along(g, x, x_scale, axis, block_size)
    whole = convert(g, x, "int32")
    if x_zero_point is not None:
        zero = convert(g, _along(g, x, x_zero_point, axis, block_size), "int32")
        whole = g.map(lambda v, z: v - z, whole, zero)
    return g.map(lambda v, s: v * s, convert(g, whole, kind), scale)


def _known(g: Builder, x: Array, scale: Array, zero: Array | None, axis: int, block: int) -> Tensor:
    """Weights: as floats, and as they came for a kernel that reads fewer bits."""
    axis %= max(x.ndim, 1)
    whole = x.astype(np.int32) if x.dtype.kind != "f" else x
    tensor = g.const(whole)
    parts = [g.const(p) for p in (scale, zero) if p is not None]
    factor, *none = (np.asarray(_along(g, tensor, p, axis, block).data) for p in parts)
    if none:
        whole = whole - none[0].astype(whole.dtype)
    made = g.const((whole.astype(np.float32) * factor).astype(np.float32))
    made.blocks = of_quantized(x, scale, zero, axis, block)
    return made


@OPS.lower("QuantizeLinear", dtypes=_PARTS)
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
    """``x / scale`` rounded to even, moved and held within the type."""
    kind = y_zero_point.dtype if y_zero_point is not None else "uint8"
    if output_dtype:
        kind = dtype_name(output_dtype)
    if kind not in ("int8", "uint8", "int16", "uint16"):
        raise Refusal(f"{kind} results", "unsupported_dtype")
    if x.dtype != "float32" or y_scale.dtype != "float32":
        raise Refusal("other floats than float32", "unsupported_dtype")
    limits = np.iinfo(kind)
    low, high = (tirx.const(float(v), "float32") for v in (limits.min, limits.max))
    scale = _along(g, x, y_scale, axis, block_size)
    if y_zero_point is None:
        zero = g.const(np.zeros((), np.float32))
    else:
        zero = convert(g, _along(g, x, y_zero_point, axis, block_size), "float32")

    def whole(v: Any, s: Any, z: Any) -> Any:
        # A chain of these reads each once; what NaN becomes ONNX leaves open.
        held = tirx.min(tirx.max(tirx.nearbyint(v / s) + z, low), high)
        return held.astype("int32").astype(kind)

    return g.map(whole, x, scale, zero, dtype=kind)


@OPS.lower("MatMulInteger", dtypes=_BYTES)
def matmul_integer(
    g: Builder,
    A: Tensor,
    B: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
) -> Tensor:
    """A product of integers, exact in 32 bits."""
    a, b = convert(g, A, "int32"), convert(g, B, "int32")
    if a_zero_point is not None:
        zero = convert(g, a_zero_point, "int32")
        rows = zero.rank == 1 and A.rank > 1
        wide = reshape(g, zero, (zero.shape[0], 1)) if rows else zero
        a = g.map(lambda v, z: v - z, a, wide)
    if b_zero_point is not None:
        b = g.map(lambda v, z: v - z, b, convert(g, b_zero_point, "int32"))
    return numpy_product(g, a, b)


@OPS.lower("Dropout", dtypes=FLOATS | BOOL)
def dropout(
    g: Builder, data: Tensor, ratio: Tensor | None = None, training_mode: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Nothing, outside training."""
    if training_mode is not None and (training_mode.data is None or training_mode.data.any()):
        raise Refusal("training")
    if not data.is_static:
        return data, data
    return data, g.const(np.ones(data.shape, np.bool_))


@OPS.lower("Hardmax", dtypes=FLOATS)
def hardmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """One at the first of the largest, zero elsewhere."""
    from edgeinfer.convert.lower.tvm.ops.reduce import extreme

    at = axis % input.rank
    place = extreme(g, input, at, last=False, low=False)

    def compute(where: Any) -> Any:
        def element(*index: Any) -> Any:
            hit = tirx.EQ(where(*index[:at], *index[at + 1 :]), index[at].astype("int64"))
            return tirx.Select(hit, tirx.const(1, input.dtype), tirx.const(0, input.dtype))

        return te.compute(input.shape, element, name="hardmax")

    return g.te(compute, place, name="hardmax")
