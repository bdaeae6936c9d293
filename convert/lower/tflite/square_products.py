"""Products of a tensor with itself, where XNNPACK would multiply with something else."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.tflite.graph import Graph, Op
from edgeinfer.convert.lower.tflite.simplify import Wiring


def part_squares(graph: Graph) -> None:
    """Give the second operand another name, in place.

    XNNPACK (LiteRT 2.3.0) lets BATCH_MATMUL read through the TRANSPOSE before it, and gets it wrong
    where both operands are its result.

    Given::

        t = TRANSPOSE(x); y = BATCH_MATMUL(t, t)

    Result::

        t = TRANSPOSE(x); u = RESHAPE(t); y = BATCH_MATMUL(t, u)
    """
    wiring = Wiring(graph)
    ops: list[Op] = []
    for op in graph.ops:
        x = op.inputs[0] if op.code == "BATCH_MATMUL" else None
        move = None if x is None or op.inputs[1] is not x else wiring.maker(x, "TRANSPOSE")
        if x is not None and move is not None:
            sizes = [-1 if s is None else s for s in x.shape]
            copy = graph.tensor(x.shape, x.dtype)
            if sizes.count(-1) <= 1:
                options = {"new_shape": sizes}
                ops.append(Op("RESHAPE", [x, graph.const(sizes, np.int32)], [copy], options))
            else:
                ops.append(Op("TRANSPOSE", list(move.inputs), [copy]))
            op.inputs[1] = copy
        ops.append(op)
    graph.ops = ops
