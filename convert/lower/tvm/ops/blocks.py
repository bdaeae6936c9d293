"""Products with weights of 4 or 8 bits, as ONNX Runtime's own operator has them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from edgeinfer.convert.lower.microsoft_blocks import codes
from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.narrow import Blocks, fits, multiplied
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.matrix import product, reshape
from edgeinfer.convert.lower.tvm.registry import FLOATS, OPS
from edgeinfer.types import Array

_ROUNDED = 4
"""The level from which vectors may be rounded to 8 bits, which is done by the weights' blocks."""

_Sizes = tuple[int, int, int, int]


@OPS.lower("MatMulNBits", domain="com.microsoft", dtypes=FLOATS)
def matmul_nbits(
    g: Builder,
    A: Tensor,
    B: Const,
    scales: Const,
    zero_points: Const | None = None,
    g_idx: Const | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
) -> Tensor:
    """``A @ B.T + bias`` for a matrix of which each row is cut into blocks."""
    if g_idx is not None:
        raise Refusal("weights in another order (g_idx)")
    if bits not in (4, 8):
        raise Refusal(f"weights of {bits} bits")
    a, sizes = convert(g, A, "float32"), (N, K, bits, block_size)
    w = _unpacked(B.array, scales.array, zero_points, sizes)
    count = prod(a.shape[:-1]) if a.is_static else 0
    if w is not None and fits(g, w, count):
        flat = g.expr(reshape(g, a, (count, K)))
        rounded = accuracy_level >= _ROUNDED
        found = g.wrap(multiplied(g, flat, w, count, rounded=rounded))
        made = reshape(g, found, (*a.shape[:-1], N))
    else:
        wide = _floats(B.array, scales.array, zero_points, sizes) if w is None else w.floats()
        made = product(g, a, g.const(np.ascontiguousarray(wide.T)))
    if bias is not None:
        made = g.map(lambda v, b: v + b, made, convert(g, bias, "float32"))
    return convert(g, made, A.dtype)


def _unpacked(packed: Array, scales: Array, zeros: Const | None, sizes: _Sizes) -> Blocks | None:
    """The matrix, unless its zeros are floats."""
    n, k, bits, block = sizes
    count = -(-k // block)
    q = codes(packed.reshape(n, count, -1), block, bits).reshape(n, -1)[:, :k]
    if zeros is None:
        found = np.full((n, count), 1 << (bits - 1), np.uint8)
    elif zeros.array.dtype == np.uint8:
        found = codes(zeros.array.reshape(n, -1), count, bits)
    else:
        return None
    made = Blocks(bits, q, scales.astype(np.float32).reshape(n, count), found, block)
    if bits == 4:
        return made
    moved = [(a.astype(np.int16) - 128).astype(np.int8) for a in (q, found)]
    return replace(made, q=moved[0], zeros=moved[1])


def _floats(packed: Array, scales: Array, zeros: Const | None, sizes: _Sizes) -> Array:
    n, k, bits, block = sizes
    count = -(-k // block)
    q = codes(packed.reshape(n, count, -1), block, bits).astype(np.float32)
    zero = 0.0 if zeros is None else zeros.array.reshape(n, count, 1).astype(np.float32)
    wide = (q - zero) * scales.astype(np.float32).reshape(n, count, 1)
    result: Array = wide.reshape(n, -1)[:, :k]
    return result
