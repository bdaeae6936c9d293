"""Half-precision weights: float constants as FLOAT16 behind DEQUANTIZE, computed in float32."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor

SMALL = 16
"""Elements up to which a constant stays float32: it would be no smaller with its operator."""


def halve(graph: Graph) -> None:
    """Store float constants in half precision, in place, in bodies too.

    Values that float16 cannot hold (beyond 65504) keep the whole constant in float32.
    """
    done: dict[int, Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        for body in op.bodies.values():
            halve(body)
        for index, operand in enumerate(op.inputs):
            if operand is None or not _fits(operand):
                continue
            if id(operand) not in done:
                half = Tensor(
                    f"{operand.name}_half",
                    operand.shape,
                    np.dtype(np.float16),
                    operand.value.astype(np.float16),
                )
                done[id(operand)] = Tensor(operand.name, operand.shape, operand.dtype)
                ops.append(Op("DEQUANTIZE", [half], [done[id(operand)]]))
            op.inputs[index] = done[id(operand)]
        ops.append(op)
    graph.ops = ops


def _fits(tensor: Tensor) -> bool:
    if tensor.data is None or tensor.dtype != np.float32 or tensor.data.size <= SMALL:
        return False
    return bool(np.max(np.abs(tensor.data)) <= np.finfo(np.float16).max)
