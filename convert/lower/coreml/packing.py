"""Weights that stay packed in the file: Core ML unpacks them when it loads or runs a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.types import Array

SMALL = 64
"""Elements up to which packing saves nothing."""


def pack(
    g: Builder,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    axis: int,
    block_size: int,
    dtype: np.dtype[Any],
) -> Tensor | None:
    """Make a constant expression of quantized weights; None where Core ML has none for them."""
    if x.data is None or scale.data is None or x.data.size <= SMALL:
        return None
    if zero is not None and zero.data is None:
        return None
    bits = _bits(x.data)
    if bits is None or x.rank > 5:
        return None
    shift = None if zero is None else zero.data
    if g.offers("constexpr_blockwise_shift_scale"):
        return _blocks(g, x.data, scale.data, shift, axis, block_size, dtype, bits)
    if bits[0] != 8 or block_size or scale.data.ndim > 1 or x.rank == 0:
        return None
    if not g.offers("constexpr_affine_dequantize"):
        return None
    return _affine(g, x.data, scale.data, shift, axis, dtype)


def _bits(array: Array) -> tuple[int, bool] | None:
    """Width and sign of a packed type; None for others."""
    return {
        "int8": (8, True),
        "uint8": (8, False),
        "int4": (4, True),
        "uint4": (4, False),
    }.get(array.dtype.name)


def _affine(
    g: Builder, data: Array, scale: Array, zero: Array | None, axis: int, dtype: np.dtype[Any]
) -> Tensor:
    factors = scale.astype(dtype)
    shift = np.zeros(scale.shape, data.dtype) if zero is None else zero.astype(data.dtype)
    if scale.size == 1:
        factors, shift, axis = factors.reshape(()), shift.reshape(()), 0
    variable = g.call(
        "constexpr_affine_dequantize",
        {
            "quantized_data": np.ascontiguousarray(data),
            "zero_point": shift if shift.ndim else shift[()],
            "scale": factors if factors.ndim else factors[()],
            "axis": np.int32(axis % data.ndim),
        },
    )
    return g.wrap(variable, dtype)


def _blocks(
    g: Builder,
    data: Array,
    scale: Array,
    zero: Array | None,
    axis: int,
    block_size: int,
    dtype: np.dtype[Any],
    bits: tuple[int, bool],
) -> Tensor | None:
    """Scales by block along any axis; their number along each axis divides its size."""
    shape = _block_shape(data.shape, scale, axis)
    if any(n % s for n, s in zip(data.shape, shape, strict=True)):
        return None
    if block_size and data.shape[axis] // shape[axis] != block_size:
        return None
    packed = _typed(data, bits)
    operands: dict[str, Any] = {
        "data": packed,
        "scale": scale.reshape(shape).astype(dtype),
    }
    if zero is not None and zero.any():
        operands["offset"] = _typed(zero.reshape(shape), bits)
    return g.wrap(g.call("constexpr_blockwise_shift_scale", operands), dtype)


def _block_shape(shape: tuple[int, ...], scale: Array, axis: int) -> tuple[int, ...]:
    if scale.size == 1:
        return (1,) * len(shape)
    if scale.ndim == 1:
        at = axis % len(shape)
        return tuple(scale.size if a == at else 1 for a in range(len(shape)))
    return tuple(scale.shape)


def _typed(array: Array, bits: tuple[int, bool]) -> Array:
    """Values in NumPy's 8 bits, marked as coremltools marks narrower ones."""
    from coremltools.converters.mil.mil import types

    width, signed = bits
    plain = np.ascontiguousarray(array.astype(np.int8 if signed else np.uint8))
    if width == 8:
        return plain
    return plain.astype(types.np_int4_dtype if signed else types.np_uint4_dtype)
