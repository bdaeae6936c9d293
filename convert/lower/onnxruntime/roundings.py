"""Write roundings in as few words as ONNX Runtime needs to find them."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import input_at, is_op, rank

_CARRIED = frozenset({"MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze"})
"""Operators that ONNX Runtime carries a rounding over by itself, and then moves integers."""


def shorten(model: ir.Model) -> int:
    """Leave out roundings of what was rounded alike and only moved since; return how many.

    Given: ``y = DequantizeLinear(QuantizeLinear(MaxPool(DequantizeLinear(x, s, z)), s, z), s, z)``
    Result: ``y = MaxPool(DequantizeLinear(x, s, z))``
    """
    count = 0
    for node in list(model.graph):
        if not is_op(node, *_CARRIED) or node.graph is None or sum(map(_used, node.outputs)) != 1:
            continue
        before = _maker(node)
        after = _rounding(node.outputs[0])
        if before is None or after is None or not is_op(before, "DequantizeLinear"):
            continue
        if not all(input_at(before, i) is input_at(n, i) for n in after for i in (1, 2)):
            continue
        if rank(input_at(before, 1)) != 0:
            continue
        for user, index in list(after[1].outputs[0].uses()):
            user.replace_input_with(index, node.outputs[0])
        count += 1
    for node in model.graph:
        if is_op(node, "QuantizeLinear", "DequantizeLinear"):
            result = node.outputs[0]
            if not result.is_graph_output():
                # Type and sizes follow from the operands.
                result.type = result.shape = None
    return count


def _maker(node: ir.Node) -> ir.Node | None:
    """Return what made a node's first operand, seen through further moves."""
    while True:
        source = input_at(node, 0)
        maker = source.producer() if source is not None else None
        if maker is None or not is_op(maker, *_CARRIED):
            return maker
        node = maker


def _used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _rounding(value: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """Return the rounding that alone reads a value, if nothing else sees the integers."""
    found: list[ir.Node] = []
    for kind in ("QuantizeLinear", "DequantizeLinear"):
        uses = list(value.uses())
        if len(uses) != 1 or value.is_graph_output() or not is_op(uses[0][0], kind):
            return None
        found.append(uses[0][0])
        value = found[-1].outputs[0]
    return None if value.is_graph_output() else (found[0], found[1])
