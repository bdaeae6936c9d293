"""TensorScatter: new steps among those of a cache; each place of it finds its own."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, sizes


def tensor_scatter(node: ir.Node) -> onnx.FunctionProto | None:
    """Each step of the cache takes a new one where it is among them; else it stays."""
    past, update = sizes(node.inputs[0]), sizes(node.inputs[1])
    if past is None or update is None or 0 in past or 0 in update:
        return None
    axis = attribute(node, "axis", -2) % len(past)
    steps, new, batch = past[axis], update[axis], past[0]
    body = Body(node)

    def whole(number: int) -> str:
        return body.const(np.array(number, np.int64))

    starts = body.given(2)
    start = body.reshape(starts, -1, 1) if starts else body.const(np.zeros((batch, 1), np.int64))
    # (batch, steps): which of the new steps each place takes.
    step = body.op("Sub", body.const(np.arange(steps).reshape(1, -1)), start)
    if attribute(node, "mode", "linear") == "circular":
        step = body.op("Mod", step, whole(steps))
    at_least = body.op("GreaterOrEqual", step, whole(0))
    is_new = body.op("And", at_least, body.op("Less", step, whole(new)))
    own = body.op("Clip", step, whole(0), whole(new - 1))
    shape = [batch if a == 0 else steps if a == axis else 1 for a in range(len(past))]
    index = body.op("Expand", body.reshape(own, *shape), body.const(list(past)))
    taken = body.op("GatherElements", "i1", index, axis=axis)
    body.give(0, body.op("Where", body.reshape(is_new, *shape), taken, "i0"))
    return body.function()
