"""Sums, squares and exponentials of half-precision models in single precision."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    attr,
    constant,
    is_op,
    outcome,
    remove_node,
    replace_value,
    walk,
)
from edgeinfer.convert.verify.beyond_half import beyond_half

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


class WidenHalves(ir.passes.InPlacePass):
    """Let what passes through large numbers compute in single precision.

    Given::

        d = Sub(x, ReduceMean(x)); y = Div(d, Sqrt(ReduceMean(Mul(d, d))))

    Result::

        a = Cast<float>(x); d = Sub(a, ReduceMean(a))
        y = Cast<float16>(Div(d, Sqrt(ReduceMean(Mul(d, d)))))

    Engines differ in what they add up in: some take each operator apart and round every step.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Widen such operators of every graph; constants are widened at once."""
        namer, count = Namer(model), 0
        for graph in list(walk(model.graph)):
            if found := beyond_half(graph):
                _Widener(graph, found, namer).run()
                count += len(found)
        note = f"{count} operators of half precision are computed in fp32" if count else ""
        return outcome(model, count, *filter(None, [note]))


class _Widener:
    """Changes types in one graph and puts casts at the borders, one for each value."""

    def __init__(self, graph: ir.Graph, found: AbstractSet[ir.Node], namer: Namer) -> None:
        self.graph, self.found, self.namer = graph, found, namer
        self.wide: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        """Rewrite the graph."""
        nodes = [node for node in self.graph if node in self.found]
        for node in nodes:
            for index, value in enumerate(node.inputs):
                if value is not None and value.dtype == _HALF:
                    node.replace_input_with(index, self._widened(value, node))
            for value in node.outputs:
                if value.name and value.dtype == _HALF:
                    self._made(value, node)
        for node in nodes:
            value = node.inputs[0]
            is_single = is_op(node, "Cast") and attr(node, "to") == _SINGLE
            if is_single and value is not None and replace_value(node.outputs[0], value):
                remove_node(node)

    def _widened(self, value: ir.Value, node: ir.Node) -> ir.Value:
        """Return a value of another precision in single precision."""
        if value not in self.wide:
            name = self.namer.fresh(f"{value.name}.fp32")
            tensor = constant(value)
            if tensor is not None:
                array = tensor.numpy().astype(np.float32)
                self.wide[value] = add_initializer(self.graph, name, array)
            else:
                cast = _cast(value, _SINGLE, name)
                self.graph.insert_before(node, cast)
                self.wide[value] = cast.outputs[0]
        return self.wide[value]

    def _made(self, value: ir.Value, node: ir.Node) -> None:
        """Make a result single, and half again for those that want it so."""
        # A new type: a clone shares its types with the source.
        value.type = ir.TensorType(_SINGLE)
        others = [(user, i) for user, i in value.uses() if user not in self.found]
        outputs = [i for i, o in enumerate(self.graph.outputs) if o is value]
        if not others and not outputs:
            return
        cast = _cast(value, _HALF, self.namer.fresh(f"{value.name}.fp16"))
        self.graph.insert_after(node, cast)
        made = cast.outputs[0]
        for user, index in others:
            user.replace_input_with(index, made)
        for index in outputs:
            self.graph.outputs[index] = made
        if outputs:
            made.name, value.name = value.name, made.name
            cast.name = made.name


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": to.value}, name=name)
    made = cast.outputs[0]
    made.name, made.type, made.shape = name, ir.TensorType(to), value.shape
    return cast
