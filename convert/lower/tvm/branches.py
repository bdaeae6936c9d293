"""Conditions that are known only when the model runs: both branches are computed, one is taken."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.control_flow import connect, move_branch
from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    all_nodes,
    bodies,
    input_at,
    is_op,
    same_shape,
)
from edgeinfer.convert.passes.infra import constant as known

BRANCHES = ("then_branch", "else_branch")

_INTEGERS = frozenset(
    getattr(ir.DataType, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
)
_INDEXED = (
    *("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter"),
    *("TensorScatter", "OneHot", "ReverseSequence"),
)


def select(model: ir.Model) -> int:
    """Replace each If by its branches and a choice of their results; return how many.

    Given: ``y = If(c) <then_branch = {t = Relu(x)}, else_branch = {e = Neg(x)}>``
    Result: ``t = Relu(x); e = Neg(x); y = Where(c, t, e)``

    What ``obstacle`` names stays. Shapes must have been inferred.
    """
    count = 0
    while found := next((n for n in all_nodes(model) if is_op(n, "If") and not obstacle(n)), None):
        _select(model, found)
        count += 1
    return count


def _select(model: ir.Model, node: ir.Node) -> None:
    made = [move_branch(model, node, name) for name in BRANCHES]
    graph, namer = node.graph, Namer(model)
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    # A condition may have one axis; a result need not.
    scalar = add_initializer(graph, namer.fresh("no_axes"), np.zeros(0, np.int64))
    flat = ir.node("Reshape", [node.inputs[0], scalar], name=namer.fresh(f"{node.name}_condition"))
    flat.outputs[0].type, flat.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    graph.insert_before(node, flat)
    condition = flat.outputs[0]
    results = []
    for then, other in zip(*made, strict=True):
        choice = ir.node("Where", [condition, then, other], name=namer.fresh(f"{node.name}_choice"))
        choice.outputs[0].type, choice.outputs[0].shape = then.type, then.shape
        choice.outputs[0].name = namer.fresh(f"{then.name}_choice")
        graph.insert_before(node, choice)
        results.append(choice.outputs[0])
    connect(node, results, namer)


def obstacle(node: ir.Node) -> str:
    """Why not both branches of an If can be computed; empty if they can."""
    graphs = [node.attributes[name].as_graph() for name in BRANCHES]
    for then, other in zip(*(g.outputs for g in graphs), strict=True):
        if not isinstance(then.type, ir.TensorType) or then.type != other.type:
            return f"its branches give {then.type} and {other.type}"
        if then.shape is None or not same_shape(then, other):
            return f"its branches give sizes {then.shape} and {other.shape}"
    for graph in graphs:
        for inner in _nodes(graph):
            if fault := _can_fail(inner):
                return f"{inner.op_type} in a branch that may not be taken {fault}"
    return ""


def _nodes(graph: ir.Graph) -> list[ir.Node]:
    found = list(graph)
    return [*found, *(n for node in found for body in bodies(node) for n in _nodes(body))]


def _can_fail(node: ir.Node) -> str:
    """What a node may do on values that its branch was not made for."""
    first, second = input_at(node, 0), input_at(node, 1)
    if is_op(node, "Div", "Mod") and first is not None and first.dtype in _INTEGERS:
        divisor = None if second is None else known(second)
        return "" if divisor is not None and divisor.numpy().all() else "may divide by zero"
    if is_op(node, *_INDEXED) and (second is None or known(second) is None):
        return "may read beyond its data"
    return ""
