"""Masks that come in as inputs: their "minus infinity" must fit half precision.

A mask of -1e9 becomes minus infinity in half precision, and a row that is minus infinity all along
makes a softmax NaN.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.passes.infra import Namer

_MASK_OF_ATTENTION = 3
_DEPTH = 8


def clamp_mask_inputs(model: ir.Model, lowest: float) -> list[str]:
    """Let no element of an added mask be below ``lowest``, in place; return the masks' names.

    Given::

        s = Add(scores, mask); p = Softmax(s)

    Result::

        m = Max(mask, lowest); s = Add(scores, m); p = Softmax(s)
    """
    graph = model.graph
    found: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in graph:
        for user, index in _added_masks(node):
            value, place = _from_input(user, index)
            if value is not None and place not in found.setdefault(value, []):
                found[value].append(place)
    namer = Namer(model)
    for value, uses in found.items():
        name = namer.fresh(f"{value.name}.lowest")
        tensor = ir.tensor(np.asarray(lowest, np.float32), name=name)
        low = ir.Value(name=name, shape=ir.Shape(()), type=ir.TensorType(ir.DataType.FLOAT))
        low.const_value = tensor
        graph.register_initializer(low)
        clamp = ir.node("Max", [value, low], name=namer.fresh(f"{value.name}.clamp"))
        made = clamp.outputs[0]
        made.name, made.shape = namer.fresh(f"{value.name}.mask"), value.shape
        made.type = ir.TensorType(ir.DataType.FLOAT)
        for user, index in uses:
            user.replace_input_with(index, made)
        graph.insert_before(graph[0], clamp)
    return [value.name or "" for value in found]


def _added_masks(node: ir.Node) -> list[tuple[ir.Node, int]]:
    """Return the operands that are added to what a softmax is taken of."""
    if node.domain:
        return []
    if node.op_type == "Attention":
        return [(node, _MASK_OF_ATTENTION)] if len(node.inputs) > _MASK_OF_ATTENTION else []
    maker = node.inputs[0].producer() if node.op_type == "Softmax" and node.inputs[0] else None
    if maker is not None and maker.op_type in MOVES and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    if maker is None or maker.op_type != "Add" or maker.graph is not node.graph:
        return []
    return [(maker, 0), (maker, 1)]


def _from_input(user: ir.Node, index: int) -> tuple[ir.Value | None, tuple[ir.Node, int]]:
    """Follow an operand through what only moves it; return the float input it comes from."""
    for _ in range(_DEPTH):
        value = user.inputs[index]
        if value is None:
            break
        if value.is_graph_input() and value.graph is user.graph:
            is_float = value.dtype == ir.DataType.FLOAT and value.const_value is None
            return (value if is_float else None), (user, index)
        maker = value.producer()
        if maker is None or maker.op_type not in MOVES or maker.domain:
            break
        user, index = maker, 0
    return None, (user, index)
