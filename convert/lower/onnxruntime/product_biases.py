"""A bias behind a product of integers, in the integers that ONNX Runtime's kernel adds.

ONNX Runtime (1.32) joins a product and the sum behind it into ``Gemm`` before it looks for
integers, and has an integer kernel for that with a bias of 32 bits only: with a bias of floats
every product is computed in float, its weights made floats again in each run. On MiniLM that took
four times as long as the integers do.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, constant, is_op
from edgeinfer.types import Array


def round_product_biases(model: ir.Model) -> int:
    """Write float biases behind products of integers in 32 bits, in place; returns how many."""
    namer, count = Namer(model), 0
    for node in list(model.graph):
        place = _bias_of(node)
        if place is None:
            continue
        index, steps, scale = place
        value = node.inputs[index]
        name = (value.name if value is not None else "") or "bias"
        integers = add_initializer(model.graph, namer.fresh(f"{name}.int"), steps)
        factor = add_initializer(model.graph, namer.fresh(f"{name}.scale"), scale)
        made = ir.node("DequantizeLinear", [integers, factor], {"axis": 0})
        out = made.outputs[0]
        out.name = made.name = namer.fresh(f"{name}.dq")
        out.type, out.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(list(steps.shape))
        model.graph.insert_before(node, made)
        node.replace_input_with(index, out)
        count += 1
    return count


def _bias_of(node: ir.Node) -> tuple[int, Array, Array] | None:
    """Return where a bias of floats is added, its steps and their sizes."""
    if not is_op(node, "Add") or len(node.inputs) != 2:
        return None
    for index in (0, 1):
        value, other = node.inputs[index], node.inputs[1 - index]
        bias = constant(value)
        if (
            bias is None
            or other is None
            or bias.dtype != ir.DataType.FLOAT
            or bias.shape.rank() != 1
        ):
            continue
        size = _step(other, bias.size)
        if size is None:
            return None
        steps = np.rint(bias.numpy().astype(np.float64) / size.astype(np.float64))
        if np.abs(steps).max(initial=0) > np.iinfo(np.int32).max:
            return None
        return index, steps.astype(np.int32), size
    return None


def _step(value: ir.Value, channels: int) -> Array | None:
    """Return the size of one step of a product of integers, by channel."""
    product = value.producer()
    if product is None or not is_op(product, "MatMul"):
        return None
    if value.is_graph_output() or len(value.uses()) != 1:
        return None
    found = []
    for operand in product.inputs:
        maker = operand.producer() if operand is not None else None
        if maker is None or not is_op(maker, "DequantizeLinear"):
            return None
        scale = constant(maker.inputs[1])
        if scale is None or scale.dtype != ir.DataType.FLOAT or scale.size not in (1, channels):
            return None
        found.append((maker, scale.numpy().reshape(-1)))
    (activations, per_tensor), (weights, per_channel) = found
    stored = constant(weights.inputs[0])
    if constant(activations.inputs[0]) is not None or per_tensor.size != 1:
        return None
    if stored is None or len(stored.shape) != 2 or stored.shape[1] != channels:
        return None
    sizes = (per_tensor * per_channel).astype(np.float32)
    if not (sizes > 0).all():
        return None
    return np.ascontiguousarray(np.broadcast_to(sizes, (channels,)))
