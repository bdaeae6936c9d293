"""What is left of training in a model: statistics of a batch, and a draw that draws nothing."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at


def batch_normalization(node: ir.Node) -> onnx.FunctionProto | None:
    """Normalise by the statistics of the batch itself, and move the stored ones towards them.

    Given: ``y, mean, var = BatchNormalization<training_mode=1>(x, s, b, mean0, var0)``
    Result::

        m = ReduceMean(x, all but the channels); v = ReduceMean((x - m) ** 2, ...)
        y = BatchNormalization(x, s, b, m, v); mean = mean0 * momentum + m * (1 - momentum)
    """
    x = node.inputs[0]
    if not attribute(node, "training_mode", 0) or x is None or x.shape is None:
        return None
    body = Body(node)
    axes = body.const([a for a in range(len(x.shape)) if a != 1])
    mean = body.op("ReduceMean", "i0", axes, keepdims=1)
    apart = body.op("Sub", "i0", mean)
    variance = body.op("ReduceMean", body.op("Mul", apart, apart), axes, keepdims=0)
    statistics = [body.reshape(mean, -1), variance]
    epsilon = float(attribute(node, "epsilon", 1e-5))
    stored = [body.op("CastLike", v, "i0") for v in statistics]
    body.give(0, body.op("BatchNormalization", "i0", "i1", "i2", *stored, epsilon=epsilon))
    momentum = float(attribute(node, "momentum", 0.9))
    for index, own in enumerate(statistics[: len(node.outputs) - 1], 1):
        old = f"i{index + 2}"
        kept, share = (
            body.op("CastLike", body.const(value), old) for value in (momentum, 1 - momentum)
        )
        moved = body.op("Mul", body.op("CastLike", own, old), share)
        body.give(index, body.op("Add", body.op("Mul", old, kept), moved))
    return body.function()


def dropout(node: ir.Node) -> onnx.FunctionProto | None:
    """Nothing is dropped of a share of zero, whatever would be drawn."""
    ratio = input_at(node, 1)
    if ratio is None or ratio.const_value is None or np.any(ratio.const_value.numpy()):
        return None
    body = Body(node)
    body.give(0, "i0")
    if len(node.outputs) > 1:
        ones = body.op("Expand", body.const(np.array(True)), body.op("Shape", "i0"))
        body.give(1, ones)
    return body.function()
