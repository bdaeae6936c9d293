"""bfloat16 in terms of single precision, for formats without such arithmetic."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, all_nodes, attr, is_op, walk

_BRAIN, _SINGLE = ir.DataType.BFLOAT16, ir.DataType.FLOAT
_TYPES = frozenset({
    *("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type"),
    "to",
})  # fmt: skip
"""Attributes that name an element type."""


def as_single(model: ir.Model) -> int:
    """Compute in float32, in place, what is bfloat16; return the number of operators.

    Given::

        bfloat16 y = Relu(bfloat16 x)

    Result::

        a = Cast<to=float>(x); b = Relu(a); y = Cast<to=bfloat16>(b)

    Each result is rounded once, as engines do on processors without such arithmetic. Only casts
    read and make bfloat16 afterwards, and the model's inputs and outputs keep it; bodies take and
    give float32 that is rounded already.
    """
    made = _Single(model)
    for graph in walk(model.graph):
        if graph is not model.graph:
            for value in graph.inputs:
                if _is_brain(value):
                    value.type = ir.TensorType(_SINGLE)
    count = sum(made.widen(node) for node in all_nodes(model))
    for graph in walk(model.graph):
        if graph is not model.graph:
            for index, value in enumerate(graph.outputs):
                if _is_brain(value):
                    graph.outputs[index] = made.single(value, graph)
    return count


def _is_brain(value: ir.Value | None) -> bool:
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == _BRAIN


class _Single:
    """Casts to float32, one a value."""

    def __init__(self, model: ir.Model) -> None:
        self.namer = Namer(model)
        self.made: dict[ir.Value, ir.Value] = {}

    def widen(self, node: ir.Node) -> bool:
        """Have one operator compute in float32; say whether it did not before."""
        graph = node.graph
        if graph is None or is_op(node, "BitCast"):
            return False
        is_cast = is_op(node, "Cast")
        own = is_cast and attr(node, "to") == _SINGLE
        found = False
        for index, value in enumerate(node.inputs):
            # Bodies read no bfloat16 from outside.
            if value is not None and _is_brain(value) and not (own and value.graph is graph):
                node.replace_input_with(index, self.single(value, graph))
                found = True
        if is_cast:
            return found
        for name, attribute in list(node.attributes.items()):
            if name in _TYPES and attribute.value == _BRAIN:
                node.attributes[name] = ir.AttrInt64(name, _SINGLE)
            elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == _BRAIN:
                values = attribute.value.numpy().astype(np.float32)
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(values))
        for value in node.outputs:
            if _is_brain(value):
                self._round(value, node, graph)
                found = True
        return found

    def single(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        """Return a value in float32."""
        if value not in self.made:
            cast = self._cast(value, _SINGLE)
            where, producer = value.graph or graph, value.producer()
            if producer is not None:
                where.insert_after(producer, cast)
            elif len(where):
                where.insert_before(where[0], cast)
            else:
                where.append(cast)
            self.made[value] = cast.outputs[0]
        return self.made[value]

    def _round(self, value: ir.Value, node: ir.Node, graph: ir.Graph) -> None:
        name = value.name
        value.name = self.namer.fresh(f"{name}.single")
        cast = self._cast(value, _BRAIN)
        rounded = cast.outputs[0]
        value.replace_all_uses_with(rounded, replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        value.type, rounded.name = ir.TensorType(_SINGLE), name
        graph.insert_after(node, cast)

    def _cast(self, value: ir.Value, kind: ir.DataType) -> ir.Node:
        name = self.namer.fresh(f"{value.name}.cast")
        cast = ir.node("Cast", [value], {"to": int(kind)}, name=name)
        result = cast.outputs[0]
        result.name = self.namer.fresh(f"{value.name}.{kind.name.lower()}")
        result.type = ir.TensorType(kind)
        result.shape = None if value.shape is None else value.shape.copy()
        return cast
