"""Every constant becomes an initializer of the main graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    all_nodes,
    is_op,
    outcome,
    remove_node,
    walk,
)


class LiftConstants(ir.passes.InPlacePass):
    """Turn Constant nodes, and initializers of subgraphs, into initializers of the main graph.

    Given: ``k = Constant<value = ...>(); y = Add(x, k)``
    Result: ``y = Add(x, k)`` with the initializer ``k``

    A constant that is itself a graph output stays a node, and sparse ones stay too.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Lift all that can be lifted; no data is copied."""
        namer = Namer(model)
        count = 0
        for node in all_nodes(model):
            if is_op(node, "Constant") and not node.outputs[0].is_graph_output():
                tensor = _tensor(node)
                if tensor is None:
                    continue
                old = node.outputs[0]
                name = namer.fresh(old.name or "constant")
                if old.name:
                    # The node goes, so its name is free again.
                    name, old.name = old.name, None
                old.replace_all_uses_with(add_initializer(model.graph, name, tensor))
                remove_node(node)
                count += 1
        return outcome(model, count + _lift_from_subgraphs(model))


def _lift_from_subgraphs(model: ir.Model) -> int:
    taken, count = Namer(model), 0
    for graph in list(walk(model.graph)):
        if graph is model.graph:
            continue
        for name, value in list(graph.initializers.items()):
            if value.is_graph_input() or value.is_graph_output() or value.const_value is None:
                continue
            graph.initializers.pop(name)
            if name in model.graph.initializers or _is_used(model.graph, name):
                value.name = taken.fresh(name)
            model.graph.register_initializer(value)
            count += 1
    return count


def _is_used(graph: ir.Graph, name: str) -> bool:
    """Whether a value of the main graph has this name."""
    return any(v.name == name for v in graph.inputs) or any(
        o.name == name for n in graph for o in n.outputs
    )


def _tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds, as a dense tensor."""
    if len(node.attributes) != 1:
        return None
    (found,) = node.attributes.values()
    if found.is_ref():
        return None
    match found.name:
        case "value":
            return found.as_tensor()
        case "value_float":
            return ir.tensor(np.float32(found.as_float()))
        case "value_floats":
            return ir.tensor(np.asarray(found.as_floats(), np.float32))
        case "value_int":
            return ir.tensor(np.int64(found.as_int()))
        case "value_ints":
            return ir.tensor(np.asarray(found.as_ints(), np.int64))
        case "value_string":
            return _strings([found.as_string()], ())
        case "value_strings":
            strings = list(found.as_strings())
            return _strings(strings, (len(strings),))
        case _:
            return None


def _strings(values: list[str], shape: tuple[int, ...]) -> ir.StringTensor:
    encoded = np.array([v.encode() for v in values], dtype=object).reshape(shape)
    return ir.StringTensor(encoded, shape=ir.Shape(shape))
