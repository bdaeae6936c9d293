"""Rewrite a graph by the plan of its layout."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    attr,
    bodies,
    dims_of,
    is_op,
    rank,
    walk,
)
from edgeinfer.convert.passes.layout_moves import Editor, Move, Perm, identity
from edgeinfer.convert.passes.layout_plan import LayoutLabels, between


class Applier:
    """Edits operators in place; a value keeps its name where it is stored in another order."""

    def __init__(self, graph: ir.Graph, namer: Namer) -> None:
        self.graph, self.namer = graph, namer
        self.editor = Editor(graph, namer)
        self.stored: dict[ir.Value, Perm] = {}
        self._made: dict[tuple[ir.Value, Perm], ir.Value] = {}

    def run(self, plan: LayoutLabels) -> None:
        """Rewrite every operator, then the graph's inputs and outputs."""
        for value, perm in plan.ends.items():
            if value.producer() is None:
                self._mark(value, perm)
        for node in list(self.graph):
            if is_op(node, "Transpose"):
                self._transpose(node, plan.moves.get(node))
            elif is_op(node, "Shape"):
                self._shape(node)
            elif not is_op(node, "Size"):
                self._node(node, plan.moves.get(node))
        for index, value in enumerate(list(self.graph.outputs)):
            wanted = plan.ends.get(value) if value.producer() is not None else None
            self._output(index, value, wanted)

    def _mark(self, value: ir.Value, perm: Perm) -> None:
        if identity(perm):
            return
        self.stored[value] = perm
        if value.shape is not None:
            value.shape = ir.Shape([value.shape[p] for p in perm])

    def _get(self, node: ir.Node, value: ir.Value, perm: Perm) -> ir.Value:
        """The value in an order, made before the first node that needs it."""
        have = self.stored.get(value, tuple(range(len(perm))))
        if have == perm:
            return value
        if (value, perm) not in self._made:
            move = tuple(have.index(p) for p in perm)
            self._made[value, perm] = self.editor.transpose(node, value, move)
        return self._made[value, perm]

    def _as_onnx(self, node: ir.Node, value: ir.Value) -> ir.Value:
        if value not in self.stored:
            return value
        return self._get(node, value, tuple(range(len(self.stored[value]))))

    def _node(self, node: ir.Node, move: Move | None) -> None:
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            perm = None if move is None else move.inputs.get(index)
            found = self._as_onnx(node, value) if perm is None else self._get(node, value, perm)
            if found is not value:
                node.replace_input_with(index, found)
        for body in bodies(node):
            self._captures(node, body)
        if move is None:
            return
        if move.edit is not None:
            move.edit(self.editor, node)
        self._mark_outputs(node, move)

    def _mark_outputs(self, node: ir.Node, move: Move) -> None:
        for value in node.outputs:
            if rank(value) == len(move.output):
                self._mark(value, move.output)

    def _captures(self, node: ir.Node, body: ir.Graph) -> None:
        """Bodies read what is around them in ONNX's order."""
        for graph in walk(body):
            for inner in graph:
                for index, value in enumerate(inner.inputs):
                    if value is not None and value in self.stored:
                        inner.replace_input_with(index, self._as_onnx(node, value))
            for index, value in enumerate(graph.outputs):
                if value in self.stored:
                    graph.outputs[index] = self._as_onnx(node, value)

    def _transpose(self, node: ir.Node, move: Move | None) -> None:
        value = node.inputs[0]
        if value is None or rank(value) is None:
            return
        plain = tuple(range(len(dims_of(value))))
        own = tuple(attr(node, "perm") or reversed(plain))
        target = plain if move is None else move.output
        perm = between(own, self.stored.get(value, plain), target)
        node.attributes["perm"] = ir.AttrInt64s("perm", list(perm))
        if move is not None:
            self._mark_outputs(node, move)

    def _shape(self, node: ir.Node) -> None:
        value = node.inputs[0]
        if value is None or value not in self.stored:
            return
        have = self.stored[value]
        wanted = range(len(have))[attr(node, "start", 0) : attr(node, "end")]
        whole = self.editor.insert(node, "Shape", [value], {}, f"{node.name}/stored")
        whole.type, whole.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([len(have)])
        picks = np.array([have.index(axis) for axis in wanted], np.int64)
        indices = add_initializer(self.graph, self.namer.fresh(f"{node.name}/axes"), picks)
        node.op_type = "Gather"
        node.attributes.clear()
        node.attributes["axis"] = ir.AttrInt64("axis", 0)
        node.resize_inputs(2)
        node.replace_input_with(0, whole)
        node.replace_input_with(1, indices)

    def _output(self, index: int, value: ir.Value, wanted: Perm | None) -> None:
        plain = tuple(range(len(dims_of(value))))
        have, want = self.stored.get(value, plain), wanted or plain
        if have == want:
            return
        made = self._made.get((value, want))
        if made is None or made.is_graph_output():
            move = tuple(have.index(p) for p in want)
            node = ir.node("Transpose", [value], {"perm": list(move)})
            node.name = self.namer.fresh(f"{value.name}/order")
            self.graph.append(node)
            made = node.outputs[0]
            made.type = value.type
            if value.shape is not None:
                made.shape = ir.Shape([value.shape[p] for p in move])
        name = value.name
        self.graph.outputs[index] = made
        value.name = self.namer.fresh(f"{name}/stored")
        made.name = name
