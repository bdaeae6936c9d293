"""Compressed weights, and quantized tensors.

Operations on constants alone are computed once, when a program is loaded.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.coreml_reference.program import TensorType, unpack
from edgeinfer.backends.coreml_reference.registry import Ints, op
from edgeinfer.types import Array

_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


@op("constexpr_affine_dequantize")
def constexpr_affine_dequantize(
    quantized_data: Array, zero_point: Array, scale: Array, axis: int
) -> Array:
    data = quantized_data.astype(np.float32)
    offset = _along(zero_point, data, axis).astype(np.float32)
    return (data - offset) * _along(scale, data, axis)


@op("constexpr_cast")
def constexpr_cast(source_val: Array, output_dtype: str) -> Array:
    return source_val


@op("constexpr_lut_to_dense")
def constexpr_lut_to_dense(
    indices: Array, lut: Array, shape: Ints | None = None, vector_axis: int | None = None
) -> Array:
    if shape is None:
        return _look_up(indices, lut, vector_axis)
    # Until iOS 17 the indices are bits packed into bytes, for a table of 2**bits values.
    bits = int(lut.size).bit_length() - 1
    return lut[_packed(indices, f"uint{bits}", shape)]


@op("constexpr_sparse_to_dense")
def constexpr_sparse_to_dense(nonzero_data: Array, mask: Array, shape: Ints | None = None) -> Array:
    chosen = mask.astype(bool) if shape is None else _packed(mask, "uint1", shape).astype(bool)
    return _scattered(nonzero_data, chosen)


@op("constexpr_blockwise_shift_scale")
def constexpr_blockwise_shift_scale(
    data: Array, scale: Array, offset: Array | None = None
) -> Array:
    values = data.astype(np.float32)
    if offset is not None:
        values = values - _blocks(offset.astype(np.float32), data.shape)
    return values * _blocks(scale, data.shape)


@op("constexpr_sparse_blockwise_shift_scale")
def constexpr_sparse_blockwise_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> tuple[Array, Array]:
    mask = data_mask.astype(bool)
    dense = _scattered(nonzero_data, mask)
    return data_mask, constexpr_blockwise_shift_scale(dense, scale, offset)[mask]


@op("constexpr_lut_to_sparse")
def constexpr_lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: int | None = None
) -> tuple[Array, Array]:
    mask = indices_mask.astype(bool)
    dense = _look_up(_scattered(indices_nonzero_data, mask), lut, vector_axis)
    if lut.shape[-1] > 1 and vector_axis is not None:
        mask = np.repeat(mask, lut.shape[-1], axis=vector_axis)
    return mask.astype(np.uint8), dense[mask]


@op("dequantize")
def dequantize(
    input: Array, scale: Array, zero_point: Array | None = None, axis: int | None = None
) -> Array:
    values = input.astype(np.float32)
    if zero_point is not None:
        values = values - _along(zero_point, values, axis).astype(np.float32)
    return values * _along(scale, values, axis)


@op("quantize")
def quantize(
    input: Array,
    scale: Array,
    output_dtype: str,
    zero_point: Array | None = None,
    axis: int | None = None,
    *,
    out: tuple[TensorType, ...],
) -> Array:
    steps = np.round(input / _along(scale, input, axis))
    if zero_point is not None:
        steps = steps + _along(zero_point, input, axis).astype(np.float32)
    low, high = _RANGES[out[0].dtype]
    return np.nan_to_num(np.clip(steps, low, high)).astype(out[0].container)


def _along(values: Array, data: Array, axis: int | None) -> Array:
    """Return a vector of one value for each place of an axis in a shape that meets ``data``."""
    if axis is None or values.size == 1:
        return values.reshape(()) if values.size == 1 else values
    shape = [1] * data.ndim
    shape[axis] = -1
    return values.reshape(tuple(shape))


def _packed(data: Array, dtype: str, shape: Ints) -> Array:
    number = int(np.prod(shape))
    return unpack(data.tobytes(), dtype, number).reshape(shape)


def _scattered(values: Array, mask: Array) -> Array:
    dense = np.zeros(mask.shape, values.dtype)
    dense[mask] = values
    return dense


def _blocks(values: Array, shape: tuple[int, ...]) -> Array:
    """Repeat each value over its block."""
    for axis, (have, want) in enumerate(zip(values.shape, shape, strict=True)):
        if want % have:
            raise ValueError(f"{have} blocks do not divide an axis of {want}")
        if 1 < have < want:
            values = np.repeat(values, want // have, axis)
    return values


def _look_up(indices: Array, lut: Array, vector_axis: int | None) -> Array:
    """Return the entries of the table that each block of indices has."""
    groups = lut.shape[:-2]
    tables = lut.reshape(-1, *lut.shape[-2:])
    numbers = np.arange(len(tables)).reshape(groups)
    table = np.broadcast_to(_blocks(numbers, indices.shape), indices.shape)
    vectors = tables[table, indices]
    if lut.shape[-1] == 1:
        single: Array = vectors[..., 0]
        return single
    if vector_axis is None:
        raise ValueError("vectors in a table need a vector_axis")
    axis = vector_axis % indices.ndim
    merged = list(indices.shape)
    merged[axis] *= lut.shape[-1]
    result: Array = np.moveaxis(vectors, -1, axis + 1).reshape(merged)
    return result
