"""Weights and zero points that no two operators have signed ones of in common.

ONNX Runtime (1.32), told to be exact on processors without VNNI, turns signed weights into
unsigned ones and names the new weights and zero points after the old ones; where two share one,
the second name is taken and the model is refused ("Attempt to replace the existing tensor"). Where
there is no zero point it makes a single one, also of a weight with a scale for each channel, and
fails in the first run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, is_op, walk
from edgeinfer.types import Array

_SCALE, _ZERO_POINT = 1, 2
_SHIFT = 128


def unshare_weights(model: ir.Model, *, unsigned: bool) -> int:
    """Make weights that several operators read ones that the engine need not turn, in place.

    Args:
        model: with DequantizeLinear nodes on weights.
        unsigned: store them 128 steps higher, once; else each operator gets a copy of its own, for
            compilers that take signed weights only.

    Returns:
        How many weights were shared.
    """
    namer, count = Namer(model), 0
    found: dict[ir.Value, list[ir.Node]] = {}
    for graph in walk(model.graph):
        for node in graph:
            weights = node.inputs[0] if is_op(node, "DequantizeLinear") else None
            if weights is None or not weights.is_initializer() or not _is_signed(weights):
                continue
            zero = node.inputs[_ZERO_POINT] if len(node.inputs) > _ZERO_POINT else None
            known = _scales(node) is not None if zero is None else zero.const_value is not None
            if known:
                found.setdefault(weights, []).append(node)
    for weights, nodes in found.items():
        if sum(len(n.outputs[0].uses()) for n in nodes) < 2:
            continue
        count += 1
        if unsigned:
            _shift(model, weights, nodes, namer)
        else:
            _copy(model, weights, nodes, namer)
    return count


def _is_signed(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype == ir.DataType.INT8


def _shift(model: ir.Model, weights: ir.Value, nodes: list[ir.Node], namer: Namer) -> None:
    higher = add_initializer(model.graph, namer.fresh(f"{weights.name}.unsigned"), _higher(weights))
    for node in nodes:
        zero = node.inputs[_ZERO_POINT] if len(node.inputs) > _ZERO_POINT else None
        points = (
            _higher(zero) if zero is not None else np.full(_scales(node) or (), _SHIFT, np.uint8)
        )
        node.replace_input_with(0, higher)
        _point(node, add_initializer(model.graph, namer.fresh("zero_point"), points))


def _higher(value: ir.Value) -> Array:
    array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
    return (array.astype(np.int16) + _SHIFT).astype(np.uint8)


def _copy(model: ir.Model, weights: ir.Value, nodes: list[ir.Node], namer: Namer) -> None:
    def copied() -> ir.Value:
        own = ir.Value(
            name=namer.fresh(weights.name or "weights"),
            type=weights.type,
            shape=weights.shape,
            const_value=weights.const_value,
        )
        model.graph.register_initializer(own)
        return own

    for index, node in enumerate(nodes):
        if index:
            node.replace_input_with(0, copied())
        for user, place in list(node.outputs[0].uses())[1:]:
            operands = [copied(), *node.inputs[1:]]
            made = ir.node("DequantizeLinear", operands, dict(node.attributes.items()))
            out, like = made.outputs[0], node.outputs[0]
            out.name = made.name = namer.fresh(like.name or "weights")
            out.type, out.shape = like.type, like.shape
            if node.graph is not None:
                node.graph.insert_after(node, made)
            user.replace_input_with(place, out)


def unshare_zero_points(model: ir.Model) -> int:
    """Give weights a zero point that no other has, in place; returns how many are new."""
    namer, seen, count = Namer(model), set[int](), 0
    for graph in walk(model.graph):
        for node in graph:
            weight = node.inputs[0] if is_op(node, "DequantizeLinear") else None
            if weight is None or not weight.is_initializer():
                continue
            zero = node.inputs[_ZERO_POINT] if len(node.inputs) > _ZERO_POINT else None
            if zero is None:
                shape = _scales(node) if _is_signed(weight) else None
                points = np.zeros(shape, np.int8) if shape else None
            elif zero.const_value is None or not zero.is_initializer():
                continue
            else:
                points = zero.const_value.numpy() if id(zero) in seen else None
                seen.add(id(zero))
            if points is None:
                continue
            name = "zero_point" if zero is None else zero.name or "zero_point"
            _point(node, add_initializer(model.graph, namer.fresh(name), points))
            count += 1
    return count


def _scales(node: ir.Node) -> tuple[int, ...] | None:
    """Return the shape of the scales; None where it is not known."""
    scale = node.inputs[_SCALE]
    known = scale is not None and scale.shape is not None and scale.shape.is_static()
    return tuple(scale.shape.numpy()) if known else None  # type: ignore[union-attr]


def _point(node: ir.Node, zero: ir.Value) -> None:
    node.resize_inputs(max(len(node.inputs), _ZERO_POINT + 1))
    node.replace_input_with(_ZERO_POINT, zero)
