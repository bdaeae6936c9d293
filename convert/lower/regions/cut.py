"""A part of a graph taken out as a model of its own, and an operator put in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edgeinfer.backends.onnxruntime.regions import DOMAIN
from edgeinfer.convert.passes.infra import Namer, add_initializer
from edgeinfer.records import dataclass
from edgeinfer.types import Array


@dataclass(frozen=True, slots=True)
class Border:
    """What goes into a part of a graph and what comes out, each in the order of its first use."""

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


def border(graph: ir.Graph, nodes: Sequence[ir.Node]) -> Border:
    """Find what a part takes from the rest and gives to it; weights belong to the part."""
    inside = set(nodes)
    results = set(graph.outputs)
    inputs: dict[ir.Value, None] = {}
    outputs: dict[ir.Value, None] = {}
    for node in nodes:
        for value in node.inputs:
            if value is None or value.producer() in inside or value.is_initializer():
                continue
            inputs.setdefault(value)
        for value in node.outputs:
            if value in results or any(use.node not in inside for use in value.uses()):
                outputs.setdefault(value)
    return Border(tuple(inputs), tuple(outputs))


def taken_out(model: ir.Model, nodes: Sequence[ir.Node]) -> ir.Model:
    """Return a part as a model with inputs and outputs of its own."""
    edge = border(model.graph, nodes)
    names: dict[ir.Value, ir.Value] = {}
    for value in edge.inputs:
        names[value] = ir.Value(name=value.name, type=value.type, shape=value.shape)
    inputs = [names[v] for v in edge.inputs]
    constants = []
    for value in [v for n in nodes for v in n.inputs if v is not None and v.is_initializer()]:
        if value not in names:
            names[value] = ir.Value(name=value.name, type=value.type, shape=value.shape)
            names[value].const_value = value.const_value
            constants.append(names[value])
    made: list[ir.Node] = []
    for node in nodes:
        outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in node.outputs]
        names.update(zip(node.outputs, outputs, strict=True))
        given = [None if v is None else names[v] for v in node.inputs]
        if is_gelu(node):
            made += _gelu(given[0], outputs[0])
            continue
        kept = list(node.attributes.values())
        made.append(
            ir.Node(node.domain, node.op_type, given, kept, outputs=outputs, name=node.name)
        )
    graph = ir.Graph(
        inputs,
        [names[v] for v in edge.outputs],
        nodes=made,
        initializers=constants,
        opset_imports=dict(model.opset_imports),
        name="region",
    )
    return ir.Model(graph, ir_version=model.ir_version)


def up_to(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy that gives values from inside and computes nothing else."""
    made = model.clone()
    values = {v.name: v for n in made.graph for v in n.outputs}
    made.graph.outputs[:] = [values[name] for name in names]
    RemoveUnusedNodesPass()(made)
    return made


def is_gelu(node: ir.Node) -> bool:
    """Whether a node is the engine's own exact Gelu, which the standard had later."""
    return (node.domain, node.op_type) == ("com.microsoft", "Gelu")


def _gelu(x: ir.Value | None, result: ir.Value) -> list[ir.Node]:
    """Write it as the formula, which the passes know."""
    kind = None if x is None or x.dtype is None else x.dtype.numpy()

    def number(value: float) -> ir.Node:
        tensor = ir.tensor(np.asarray(value, kind))
        return ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])

    root, one, half = number(2**0.5), number(1.0), number(0.5)
    divided = ir.Node("", "Div", [x, root.outputs[0]])
    erf = ir.Node("", "Erf", divided.outputs)
    raised = ir.Node("", "Add", [erf.outputs[0], one.outputs[0]])
    scaled = ir.Node("", "Mul", [x, raised.outputs[0]])
    last = ir.Node("", "Mul", [scaled.outputs[0], half.outputs[0]], outputs=[result])
    return [root, one, half, divided, erf, raised, scaled, last]


def put_in(
    model: ir.Model, nodes: Iterable[ir.Node], name: str, weights: Sequence[Array]
) -> ir.Node:
    """Replace a part, in place, by one operator."""
    part = list(nodes)
    graph = model.graph
    edge = border(graph, part)
    namer = Namer(model)
    held = [add_initializer(graph, namer.fresh(f"{name}_w"), w) for w in weights]
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in edge.outputs]
    operator = ir.Node(DOMAIN, name, [*edge.inputs, *held], outputs=outputs, name=name)
    # Behind all that it reads, which may stand between the part's nodes.
    graph.insert_after(part[-1], operator)
    for old, new in zip(edge.outputs, outputs, strict=True):
        old.name = namer.fresh("gone")
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(part, safe=True)
    graph.opset_imports[DOMAIN] = 1
    graph.sort()
    return operator
