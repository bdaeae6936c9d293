"""Weights and zero points that no two operators have signed ones of in common.

ONNX Runtime (1.32), set to be exact on processors without VNNI, turns signed weights into
unsigned ones and names the new weights and zero points after the old ones; where two share one,
the second name is taken and the model is refused ("Attempt to replace the existing tensor"). Where
there is no zero point it makes a single one, also of a weight with a scale for each channel, and
fails in the first run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, input_at, is_op, walk
from edgeinfer.types import Array

_SCALE, _ZERO_POINT = 1, 2
_SHIFT = 128

_MICROSOFT = "com.microsoft"

_PLACES: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("", "ConvInteger"): ((1, 3),),
    ("", "DequantizeLinear"): ((0, _ZERO_POINT),),
    ("", "MatMulInteger"): ((1, 3),),
    ("", "QLinearConv"): ((3, 5),),
    ("", "QLinearMatMul"): ((3, 5),),
    (_MICROSOFT, "DynamicQuantizeLSTM"): ((1, 9), (2, 11)),
    (_MICROSOFT, "DynamicQuantizeMatMul"): ((1, 3),),
    (_MICROSOFT, "MatMulIntegerToFloat"): ((1, 5),),
    (_MICROSOFT, "QAttention"): ((1, 7),),
    (_MICROSOFT, "QGemm"): ((3, 5),),
}
"""Where operators take weights, and the zero point of each."""


def _weights(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value, int, int]]:
    """Yield each operator's stored weights with their place and that of their zero point."""
    for graph in walk(model.graph):
        for node in graph:
            for place, point in _PLACES.get((node.domain, node.op_type), ()):
                weights = input_at(node, place)
                if weights is not None and weights.is_initializer():
                    yield node, weights, place, point


def unshare_weights(model: ir.Model, *, unsigned: bool) -> int:
    """Make weights that several operators read ones that the engine need not turn, in place.

    Args:
        model: with operators on weights of 8 bits.
        unsigned: store them 128 steps higher, once; else each operator gets a copy of its own, for
            compilers that take signed weights only.

    Returns:
        How many weights were shared.
    """
    namer, count = Namer(model), 0
    found: dict[ir.Value, list[tuple[ir.Node, int, int]]] = {}
    for node, weights, place, point in _weights(model):
        zero = input_at(node, point)
        known = _scales(node) is not None if zero is None else zero.const_value is not None
        if _is_signed(weights) and known:
            found.setdefault(weights, []).append((node, place, point))
    for weights, users in found.items():
        if sum(len(n.outputs[0].uses()) if _is_dequantized(n) else 1 for n, _, _ in users) < 2:
            continue
        count += 1
        if unsigned:
            _shift(model, weights, users, namer)
        else:
            _copy(model, weights, users, namer)
    return count


def _is_dequantized(node: ir.Node) -> bool:
    return is_op(node, "DequantizeLinear")


def _is_signed(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype == ir.DataType.INT8


def _shift(
    model: ir.Model, weights: ir.Value, users: list[tuple[ir.Node, int, int]], namer: Namer
) -> None:
    higher = add_initializer(model.graph, namer.fresh(f"{weights.name}.unsigned"), _higher(weights))
    for node, place, point in users:
        zero = input_at(node, point)
        points = (
            _higher(zero) if zero is not None else np.full(_scales(node) or (), _SHIFT, np.uint8)
        )
        node.replace_input_with(place, higher)
        _point(node, point, add_initializer(model.graph, namer.fresh("zero_point"), points))


def _higher(value: ir.Value) -> Array:
    array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
    return (array.astype(np.int16) + _SHIFT).astype(np.uint8)


def _copy(
    model: ir.Model, weights: ir.Value, users: list[tuple[ir.Node, int, int]], namer: Namer
) -> None:
    def copied() -> ir.Value:
        own = ir.Value(
            name=namer.fresh(weights.name or "weights"),
            type=weights.type,
            shape=weights.shape,
            const_value=weights.const_value,
        )
        model.graph.register_initializer(own)
        return own

    for index, (node, place, _) in enumerate(users):
        if index:
            node.replace_input_with(place, copied())
        if not _is_dequantized(node):
            continue
        for user, at in list(node.outputs[0].uses())[1:]:
            operands = [copied(), *node.inputs[1:]]
            made = ir.node("DequantizeLinear", operands, dict(node.attributes.items()))
            out, like = made.outputs[0], node.outputs[0]
            out.name = made.name = namer.fresh(like.name or "weights")
            out.type, out.shape = like.type, like.shape
            if node.graph is not None:
                node.graph.insert_after(node, made)
            user.replace_input_with(at, out)


def unshare_zero_points(model: ir.Model) -> int:
    """Give weights a zero point that no other has, in place; returns how many are new."""
    namer, seen, count = Namer(model), set[int](), 0
    for node, weights, _, point in _weights(model):
        zero = input_at(node, point)
        if zero is None:
            shape = _scales(node) if _is_signed(weights) else None
            points = np.zeros(shape, np.int8) if shape else None
        elif zero.const_value is None or not zero.is_initializer():
            continue
        else:
            points = zero.const_value.numpy() if id(zero) in seen else None
            seen.add(id(zero))
        if points is None:
            continue
        name = "zero_point" if zero is None else zero.name or "zero_point"
        _point(node, point, add_initializer(model.graph, namer.fresh(name), points))
        count += 1
    return count


def _scales(node: ir.Node) -> tuple[int, ...] | None:
    """Return the shape of the zero points that were left out; None where it is not known."""
    if not _is_dequantized(node):
        # One for all of the weights.
        return ()
    scale = node.inputs[_SCALE]
    known = scale is not None and scale.shape is not None and scale.shape.is_static()
    return tuple(scale.shape.numpy()) if known else None  # type: ignore[union-attr]


def _point(node: ir.Node, place: int, zero: ir.Value) -> None:
    node.resize_inputs(max(len(node.inputs), place + 1))
    node.replace_input_with(place, zero)
