"""Products with weights in blocks, by the definition of ONNX Runtime's operator.

Source: ONNX Runtime 1.32, docs/ContribOperators.md, ``com.microsoft.MatMulNBits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeinfer.convert.verify.operators.window import Unhandled
from edgeinfer.types import Array


def matmul_nbits(
    attrs: Mapping[str, Any], version: int, inputs: list[Array | None]
) -> tuple[Array, ...]:
    """Multiply exactly: what kernels round at a level of accuracy is their error, not its meaning.

    Args:
        attrs: attributes of the node.
        version: version of the operator.
        inputs: numbers of shape (..., K), packed weights of (N, blocks, bytes), their scales, zero
            points, the order of groups and a bias; later ones may be missing.

    Raises:
        Unhandled: weights in an order of their own, or of another number of bits.
    """
    a, packed, scales, zeros, order, bias = (*inputs, *[None] * 6)[:6]
    rows, depth, size = int(attrs["N"]), int(attrs["K"]), int(attrs["block_size"])
    bits = int(attrs.get("bits", 4))
    if a is None or packed is None or scales is None or order is not None or 8 % bits:
        raise Unhandled("weights in another form")
    blocks = -(-depth // size)
    whole = _codes(packed.reshape(rows, -1), bits)
    if zeros is None:
        offsets = np.full((rows, blocks), 1 << (bits - 1))
    elif zeros.dtype == np.uint8:
        offsets = _codes(zeros.reshape(rows, -1), bits)[:, :blocks]
    else:
        offsets = zeros.reshape(rows, blocks)
    each = whole[:, : blocks * size].reshape(rows, blocks, size) - offsets[..., None]
    weights = (each * scales.reshape(rows, blocks, 1)).reshape(rows, -1)[:, :depth]
    made = a @ weights.T.astype(a.dtype)
    return (made if bias is None else made + bias,)


def _codes(packed: Array, bits: int) -> Array:
    """Take bytes of (rows, bytes) apart, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(len(packed), -1), np.int64)
