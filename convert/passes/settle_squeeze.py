"""Tell whether an exported ``squeeze(axis)`` squeezes, where only one answer can run."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.constants import FoldConstants
from edgeinfer.convert.passes.control_flow import InlineControlFlow, take_branch
from edgeinfer.convert.passes.fold_shapes import FoldShapes
from edgeinfer.convert.passes.infra import (
    PassOutcome,
    all_nodes,
    attr,
    input_at,
    ints,
    is_op,
    outcome,
    rank,
)
from edgeinfer.convert.passes.shapes import InferShapes

_ROUNDS = 4
_RECURRENT = ("LSTM", "GRU", "RNN")
_LEARN = (InferShapes(), FoldShapes(), FoldConstants(), InlineControlFlow())


class SettleSqueeze(ir.passes.InPlacePass):
    """Take the branch that squeezes where the other one leads to an operator that cannot run.

    Given: ``float[B,C,T] x; n = Gather(Shape(x), -1); y = If(n == 1) <then_branch =
        {s = Squeeze(x, -1)}, else_branch = {i = Identity(x)}>; z = LSTM(Unsqueeze(y, 0), w, r)``
    Result: ``y = Squeeze(x, -1); z = LSTM(Unsqueeze(y, 0), w, r)``

    Torch writes ``squeeze(axis)`` of an open size like this, and the rank of all that follows is
    then unknown. An LSTM takes three axes, so this model runs for ``T = 1`` only; with another
    size the Squeeze refuses, as the LSTM did.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Settle one after the other; each may give the next one's ranks."""
        count, open_ones = 0, True
        while open_ones:
            open_ones = False
            for index, node in enumerate(all_nodes(model)):
                if not _is_squeeze(node):
                    continue
                if _can_run(model, index, "else_branch") or not _can_run(
                    model, index, "then_branch"
                ):
                    continue
                take_branch(model, node, "then_branch")
                count, open_ones = count + 1, True
                break
        return outcome(model, count)


def _is_squeeze(node: ir.Node) -> bool:
    """Whether an If squeezes an axis of size 1 and else hands on what it would squeeze."""
    if not is_op(node, "If") or len(node.outputs) != 1:
        return False
    squeeze = _result(node, "then_branch", "Squeeze")
    other = _result(node, "else_branch", "Identity")
    if squeeze is None or other is None or squeeze.inputs[0] is not other.inputs[0]:
        return False
    x, axes = squeeze.inputs[0], ints(input_at(squeeze, 1))
    condition = node.inputs[0]
    if x is None or axes is None or condition is None or x.graph is not node.graph:
        return False
    return len(axes) == 1 and _is_size_one(condition.producer(), x, axes[0])


def _result(node: ir.Node, branch: str, op: str) -> ir.Node | None:
    """The only node of a branch, if it is this operator."""
    graph = node.attributes[branch].as_graph()
    maker = graph.outputs[0].producer()
    return maker if len(graph) == 1 and is_op(maker, op) else None


def _is_size_one(equal: ir.Node | None, x: ir.Value, axis: int) -> bool:
    """Whether a condition is ``Gather(Shape(x), axis) == 1``."""
    if equal is None or not is_op(equal, "Equal"):
        return False
    for size, one in (equal.inputs, equal.inputs[::-1]):
        gather = None if size is None else size.producer()
        if gather is None or not is_op(gather, "Gather") or ints(one) != [1]:
            continue
        data, index = gather.inputs[0], ints(gather.inputs[1])
        shape = None if data is None else data.producer()
        if shape is None or not is_op(shape, "Shape") or shape.inputs[0] is not x:
            continue
        cut = attr(shape, "start", 0) or attr(shape, "end") is not None
        if not cut and index is not None and len(index) == 1:
            return _same_axis(index[0], axis, rank(x))
    return False


def _same_axis(a: int, b: int, axes: int | None) -> bool:
    return a == b if axes is None else a % axes == b % axes


def _can_run(model: ir.Model, index: int, branch: str) -> bool:
    """Whether, as far as ranks tell, the graph around an If runs with this branch taken."""
    trial = model.clone()
    node = all_nodes(trial)[index]
    result = node.attributes[branch].as_graph().outputs[0].producer()
    if result is None:
        return True
    take_branch(trial, node, branch)
    for _ in range(_ROUNDS):
        changes = [one(trial).modified for one in _LEARN]
        if not any(changes):
            break
    # Of other graphs it is not certain that they run whenever this one does.
    graph = result.graph
    return graph is None or not any(_is_impossible(n) for n in graph)


def _is_impossible(node: ir.Node) -> bool:
    """Whether an operator refuses the ranks of its inputs in every engine."""
    ranks = [rank(v) for v in node.inputs]
    if is_op(node, *_RECURRENT):
        return any(r not in (3, None) for r in (ranks[0], *ranks[5:7]))
    if is_op(node, "Gemm"):
        return any(r not in (2, None) for r in ranks[:2])
    if is_op(node, "Conv", "ConvTranspose"):
        return None not in ranks[:2] and ranks[0] != ranks[1]
    if is_op(node, "Concat"):
        return len({r for r in ranks if r is not None}) > 1
    return False
