"""Parts of a graph as models of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.types import Array


def used_values(node: ir.Node) -> list[ir.Value]:
    """Everything a node reads, with what its subgraphs capture from outside."""
    used = [v for v in node.inputs if v is not None]
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            body = attr.as_graph()
            own = set(body.inputs)
            inner: list[ir.Value] = list(body.outputs)
            for each in body:
                own.update(each.outputs)
                inner += used_values(each)
            used += [v for v in inner if v not in own and not v.is_initializer()]
            used += [v for v in inner if v.is_initializer() and v.graph is not body]
    return used


def part_inputs(nodes: Collection[ir.Node]) -> list[ir.Value]:
    """Values that nodes read and none of them makes, weights aside."""
    made = {o for n in nodes for o in n.outputs}
    needed = dict.fromkeys(v for n in nodes for v in used_values(n))
    return [v for v in needed if v not in made and v.const_value is None]


def part_outputs(graph: ir.Graph, nodes: Collection[ir.Node]) -> list[ir.Value]:
    """Values that nodes make and others, or the caller, read."""
    inside = set(nodes)
    read: set[ir.Value] = set(graph.outputs)
    for node in graph:
        if node not in inside:
            read.update(used_values(node))
    return [o for n in nodes for o in n.outputs if o in read]


def ancestors(nodes: Sequence[ir.Node], target: ir.Value) -> list[ir.Node]:
    """Those of the nodes, in order, that the target depends on."""
    needed, kept = {target}, []
    for node in reversed(nodes):
        if any(o in needed for o in node.outputs):
            kept.append(node)
            needed.update(used_values(node))
    return kept[::-1]


def extract(
    model: ir.Model,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    values: Mapping[str, Array],
) -> ir.Model:
    """Return a copy of the part between two sets of values.

    Args:
        model: it is not modified.
        inputs: they bound the part.
        outputs: what it computes.
        values: arrays by name; they give a type and shape to what has none declared.
    """
    graph = ir.convenience.extract(model.graph, inputs, outputs)
    for value in [*graph.inputs, *graph.outputs]:
        array = values.get(str(value.name))
        if not isinstance(array, np.ndarray):
            continue
        if value.type is None or value.dtype is None:
            value.type = ir.TensorType(_type_of(array))
        if value.shape is None:
            value.shape = ir.Shape(array.shape)
    graph.name = f"{model.graph.name or 'model'}_part"
    functions = [f.clone() for f in model.functions.values()]
    return ir.Model(
        graph, ir_version=model.ir_version, producer_name="edgeinfer", functions=functions
    )


def _type_of(array: Array) -> ir.DataType:
    if array.dtype.kind in "OSUT":
        return ir.DataType.STRING
    return ir.DataType.from_numpy(array.dtype)
