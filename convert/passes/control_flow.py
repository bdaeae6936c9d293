"""Take the branch that is always taken."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    all_nodes,
    bodies,
    is_op,
    outcome,
    replace_value,
    small,
)


class InlineControlFlow(ir.passes.InPlacePass):
    """Replace an If with a known condition by the branch it takes.

    Given: ``y = If(true) <then_branch = {t = Relu(x)}, else_branch = {e = Neg(x)}>``
    Result: ``y = Relu(x)``

    Names inside the branch that the outer graph has already get a number.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Inline outer Ifs first; the ones inside are then part of the outer graph."""
        count = 0
        changed = True
        while changed:
            changed = False
            for node in all_nodes(model):
                if node.graph is None or not is_op(node, "If"):
                    continue
                condition = small(node.inputs[0])
                if condition is None or condition.size != 1:
                    continue
                name = "then_branch" if bool(condition.ravel()[0]) else "else_branch"
                take_branch(model, node, name)
                count, changed = count + 1, True
                break
        return outcome(model, count)


def take_branch(model: ir.Model, node: ir.Node, name: str) -> None:
    """Move the nodes of a branch before its If and connect the outputs."""
    connect(node, move_branch(model, node, name), Namer(model))


def connect(node: ir.Node, results: Sequence[ir.Value], namer: Namer) -> None:
    """Have readers of a node's outputs read other values, and remove the node."""
    for old, new in zip(node.outputs, results, strict=True):
        if old.uses() or old.is_graph_output():
            _connect(node, old, new, namer)
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def move_branch(model: ir.Model, node: ir.Node, name: str) -> list[ir.Value]:
    """Move the nodes of a branch before its If and return what were the branch's outputs."""
    graph, branch = node.graph, node.attributes[name].as_graph()
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    results = list(branch.outputs)
    branch.outputs.clear()
    outer, namer = _names_outside(model.graph, node), Namer(model)
    for name, value in list(branch.initializers.items()):
        branch.initializers.pop(name)
        if name in outer:
            value.name = namer.fresh(name)
        graph.register_initializer(value)
    moved = list(branch)
    branch.remove(moved)
    for inner in moved:
        for output in inner.outputs:
            if output.name in outer:
                output.name = namer.fresh(output.name or "value")
    graph.insert_before(node, moved)
    return results


def _connect(node: ir.Node, old: ir.Value, new: ir.Value, namer: Namer) -> None:
    """Read the branch's result; an Identity keeps a graph output's name where it must."""
    if replace_value(old, new) or node.graph is None:
        return
    copy = ir.node("Identity", [new], name=namer.fresh(f"{node.name or 'If'}_output"))
    node.graph.insert_before(node, copy)
    copy.outputs[0].type, copy.outputs[0].shape = old.type, old.shape
    replace_value(old, copy.outputs[0])


def _names_outside(graph: ir.Graph, node: ir.Node) -> set[str]:
    """Names of all values but those in the bodies of ``node``: what moved values must not take."""
    names = {v.name for v in graph.inputs if v.name} | set(graph.initializers)
    for n in graph:
        names.update(o.name for o in n.outputs if o.name)
        for body in () if n is node else bodies(n):
            names |= _names_outside(body, node)
    return names
