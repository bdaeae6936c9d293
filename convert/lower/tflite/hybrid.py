"""Stored weights that kernels multiply with directly: activations are quantized in each run.

XNNPACK has such kernels for CONV_2D and FULLY_CONNECTED, several times faster than floats where the
processor multiplies bytes. For DEPTHWISE_CONV_2D and convolutions in groups only LiteRT's own are
left, several times slower than floats (2.3.0): those keep float arithmetic. Of weights in blocks,
only FULLY_CONNECTED makes sense: DEQUANTIZE takes them and gives other numbers (2.3.0).
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from edgeinfer.convert.lower.tflite.builder import Builder
from edgeinfer.convert.lower.tflite.graph import (
    Graph,
    Op,
    QuantizedBlocks,
    Tensor,
    TensorQuantization,
)
from edgeinfer.types import Array

_BLOCK = 32
"""XNNPACK takes multiples of it."""


def multiply_stored(graph: Graph, only: Sequence[Array] | None = None) -> None:
    """Let the kernels that can read stored weights do so, in place, in bodies too.

    Args:
        graph: rewritten in place.
        only: scales of the weights that this is for; None for all.

    Given::

        y = FULLY_CONNECTED(x, DEQUANTIZE(w))

    Result::

        y = FULLY_CONNECTED(x, w)
    """
    stored = {
        id(op.outputs[0]): op.inputs[0]
        for op in graph.ops
        if op.code == "DEQUANTIZE" and op.inputs[0] is not None and _is_stored(op.inputs[0], only)
    }
    for op in graph.ops:
        for body in op.bodies.values():
            multiply_stored(body, only)
        weights = stored.get(id(op.inputs[1])) if len(op.inputs) > 1 else None
        if weights is not None and _takes(op, weights):
            op.inputs[1] = weights
    graph.drop_dead()


def _is_stored(tensor: Tensor, only: Sequence[Array] | None) -> bool:
    q = tensor.quantization
    if tensor.data is None or q is None or tensor.dtype != np.int8:
        return False
    if only is not None and not any(np.array_equal(q.scale, scales) for scales in only):
        return False
    return q.axis == 0 and not q.zero_point.any()


def _takes(op: Op, weights: Tensor) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    if x is None or x.dtype != np.float32 or y.dtype != np.float32:
        return False
    if op.code == "FULLY_CONNECTED":
        return True
    return op.code == "CONV_2D" and x.shape[-1] == weights.shape[-1]


def multiply_blocks(graph: Graph) -> int:
    """Store weights in blocks of 4 bits again, in place, in bodies too; returns how many."""
    count = 0
    done: dict[int, Tensor] = {}
    known = graph.blocks if isinstance(graph, Builder) else []
    for op in graph.ops:
        count += sum(multiply_blocks(body) for body in op.bodies.values())
        weights = op.inputs[1] if op.code == "FULLY_CONNECTED" else None
        if weights is None or weights.data is None:
            continue
        found = [b for b in known if _is_view(weights.data, b.values.T) and _is_exact(b)]
        if found:
            count += 1
            op.inputs[1] = done.setdefault(id(weights), _in_blocks(weights, found[0]))
    return count


def _in_blocks(weights: Tensor, blocks: QuantizedBlocks) -> Tensor:
    stored = blocks.stored.T
    made = Tensor(f"{weights.name}_q", weights.shape, stored.dtype, stored)
    scale = np.ascontiguousarray(blocks.scale.T)
    made.quantization = TensorQuantization(scale, np.zeros(0, np.int64), 0, blocks.size)
    return made


def _is_view(array: Array, other: Array) -> bool:
    same = array.shape == other.shape and array.strides == other.strides
    return same and array.__array_interface__["data"] == other.__array_interface__["data"]


def _is_exact(blocks: QuantizedBlocks) -> bool:
    """Whether the scales are those that the kernel multiplies with."""
    scale = blocks.scale
    # The file holds float16, XNNPACK reads it as bfloat16.
    short = scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    half = scale.astype(np.float16).astype(np.float32)
    exact = np.array_equal(short, scale) and np.array_equal(half, scale)
    whole = blocks.size % _BLOCK == 0 and blocks.values.shape[0] % blocks.size == 0
    return bool(exact and whole and np.all(scale > 0))
