"""What ONNX Runtime's operators on weights of 4 or 8 bits mean, in terms of the standard.

Each row of such weights is cut into blocks, each of which has a scale and a zero point.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at
from edgeinfer.types import Array


def codes(packed: Array, count: int, bits: int) -> Array:
    """Return whole numbers of 4 or 8 bits, the first in the lower half of a byte."""
    held = packed.view(np.uint8)
    if bits == 4:
        held = np.stack([held & 15, held >> 4], axis=-1).reshape(*held.shape[:-1], -1)
    return held[..., :count]


def _constants(node: ir.Node, *indices: int) -> list[Array | None] | None:
    """Return inputs as arrays, None for those left out; None where one is computed."""
    values = [input_at(node, index) for index in indices]
    tensors = [None if v is None else v.const_value for v in values]
    if any(v is not None and t is None for v, t in zip(values, tensors, strict=True)):
        return None
    return [None if t is None else t.numpy() for t in tensors]


def matmul_nbits(node: ir.Node) -> onnx.FunctionProto | None:
    """Multiply by weights that stay blocks: another pass or the target decides where they unfold.

    Given: ``y = com.microsoft.MatMulNBits(a, b, scales)``
    Result: ``y = MatMul(a, Transpose(DequantizeLinear<axis=1>(b, scales, zeros)))``
    """
    bits, size = attribute(node, "bits", 4), attribute(node, "block_size", 0)
    depth, rows = attribute(node, "K", 0), attribute(node, "N", 0)
    found = _constants(node, 1, 2, 3)
    if found is None or input_at(node, 4) is not None or bits not in (4, 8):
        return None
    packed, scales, zeros = found
    if packed is None or scales is None or (zeros is not None and zeros.dtype != np.uint8):
        return None
    blocks, kind = -(-depth // size), np.dtype(ml_dtypes.uint4 if bits == 4 else np.uint8)
    if zeros is None:
        offsets = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    else:
        offsets = codes(zeros.reshape(rows, -1), blocks, bits)
    body = Body(node)
    weights = codes(packed.reshape(rows, -1), depth, bits).astype(kind)
    parts = (weights, scales.reshape(rows, blocks), offsets.astype(kind))
    wide = body.op("DequantizeLinear", *map(body.const, parts), axis=1, block_size=size)
    made = body.op("MatMul", "i0", body.op("Transpose", wide, perm=[1, 0]))
    bias = body.given(5)
    body.give(0, body.op("Add", made, bias) if bias else made)
    return body.function()


_FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_NF4 = (
    *(-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1),
)
"""Numbers by their codes; source: Dettmers et al. 2023 (arXiv 2305.14314), appendix E."""


def matmul_bnb4(node: ir.Node) -> onnx.FunctionProto | None:
    """Multiply by weights that are 4-bit floats of blocks, the first in the upper half of a byte.

    Given: ``y = com.microsoft.MatMulBnb4(a, b, absmax)``
    Result: ``y = MatMul(a, w)``; w is table[b], times the largest magnitude of each block
    """
    size, kind = attribute(node, "block_size", 0), attribute(node, "quant_type", 1)
    depth, rows = attribute(node, "K", 0), attribute(node, "N", 0)
    packed, largest = _constants(node, 1, 2) or (None, None)
    if packed is None or largest is None or not attribute(node, "transB", 1):
        return None
    table = np.array(_NF4 if kind else (*_FP4, *(-v for v in _FP4)), np.float32)
    halves = np.stack([packed.ravel() >> 4, packed.ravel() & 15], axis=-1).ravel()
    flat = (
        table[halves[: rows * depth]] * np.repeat(largest.astype(np.float32), size)[: rows * depth]
    )
    body = Body(node)
    weights = flat.reshape(rows, depth).T.astype(largest.dtype)
    body.give(0, body.op("MatMul", "i0", body.const(np.ascontiguousarray(weights))))
    return body.function()


def gather_block_quantized(node: ir.Node) -> onnx.FunctionProto | None:
    """Take rows of whole numbers, and multiply those by their scales.

    Given: ``y = com.microsoft.GatherBlockQuantized(table, i, scales)``
    Result::

        rows = Cast(Gather(less, i)); less is the table without its zero points
        y = Reshape(Mul(Reshape(rows, [0, blocks, -1]), Unsqueeze(Gather(scales, i), -1)), [0, -1])
    """
    found = _constants(node, 0, 2, 3)
    data, scales, zeros = found or (None, None, None)
    if data is None or scales is None:
        return None
    bits, size = attribute(node, "bits", 4), attribute(node, "block_size", 128)
    is_packed = data.dtype == np.uint8 and bits == 4
    count = data.shape[-1] * 2 if is_packed else data.shape[-1]
    along = attribute(node, "gather_axis", 0) % data.ndim
    cut = attribute(node, "quantize_axis", 1) % data.ndim
    table = (codes(data, count, 4) if is_packed else data).astype(np.int16)
    if zeros is None:
        table = table - (1 << (bits - 1) if data.dtype == np.uint8 else 0)
    else:
        offsets = codes(zeros, scales.shape[-1], 4) if is_packed else zeros
        table = table - _spread(offsets.astype(np.int16), size, cut, table.shape)
    body = Body(node)
    if (along, cut) == (0, table.ndim - 1) and count % size == 0:
        body.give(0, _rows(body, node, table, scales))
    else:
        wide = table.astype(scales.dtype) * _spread(scales, size, cut, table.shape)
        body.give(0, body.op("Gather", body.const(wide), "i1", axis=along))
    return body.function()


def _spread(values: Array, size: int, axis: int, shape: tuple[int, ...]) -> Array:
    """Repeat each value over its block; the last block may be cut short."""
    return np.take(np.repeat(values, size, axis), range(shape[axis]), axis)


def _rows(body: Body, node: ir.Node, table: Array, scales: Array) -> str:
    indices: Any = node.inputs[1]
    kept = [0] * len(indices.shape)
    fits = np.abs(table).max(initial=0) <= np.iinfo(np.int8).max
    rows = body.op("Gather", body.const(table.astype(np.int8 if fits else np.int32)), "i1")
    wide = body.op("Cast", rows, to=ir.DataType.from_numpy(scales.dtype).value)
    apart = body.reshape(wide, *kept, *table.shape[1:-1], scales.shape[-1], -1)
    factors = body.op("Unsqueeze", body.op("Gather", body.const(scales), "i1"), body.const([-1]))
    return body.reshape(body.op("Mul", apart, factors), *kept, *table.shape[1:])
