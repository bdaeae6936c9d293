"""Stored weights that kernels multiply with directly: activations are quantized in each run.

XNNPACK has such kernels for CONV_2D and FULLY_CONNECTED, several times faster than floats where the
processor multiplies bytes. For DEPTHWISE_CONV_2D and convolutions in groups only LiteRT's own are
left, several times slower than floats (2.3.0): those keep float arithmetic.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor


def multiply_stored(graph: Graph) -> None:
    """Let the kernels that can read stored weights do so, in place, in bodies too.

    Given::

        y = FULLY_CONNECTED(x, DEQUANTIZE(w))

    Result::

        y = FULLY_CONNECTED(x, w)
    """
    stored = {
        id(op.outputs[0]): op.inputs[0]
        for op in graph.ops
        if op.code == "DEQUANTIZE" and op.inputs[0] is not None and _is_stored(op.inputs[0])
    }
    for op in graph.ops:
        for body in op.bodies.values():
            multiply_stored(body)
        weights = stored.get(id(op.inputs[1])) if len(op.inputs) > 1 else None
        if weights is not None and _takes(op, weights):
            op.inputs[1] = weights
    graph.drop_dead()


def _is_stored(tensor: Tensor) -> bool:
    q = tensor.quantization
    if tensor.data is None or q is None or tensor.dtype != np.int8:
        return False
    return q.axis == 0 and not q.zero_point.any()


def _takes(op: Op, weights: Tensor) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    if x is None or x.dtype != np.float32 or y.dtype != np.float32:
        return False
    if op.code == "FULLY_CONNECTED":
        return True
    return op.code == "CONV_2D" and x.shape[-1] == weights.shape[-1]
