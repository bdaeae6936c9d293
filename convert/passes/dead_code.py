"""Remove what no output needs."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, PassOutcome, is_op, outcome, walk


class RemoveDeadCode(ir.passes.InPlacePass):
    """Remove nodes, initializers and optional outputs that nothing reads.

    Given: ``y = Relu(x); z = Exp(x)`` with the only output ``y``
    Result: ``y = Relu(x)``

    Graph inputs stay even when unused: they are the model's interface.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Remove in reverse order until nothing is left to remove."""
        count = 0
        while removed := _sweep(model):
            count += removed
        return outcome(model, count)


def _sweep(model: ir.Model) -> int:
    count = 0
    graphs = list(walk(model.graph))
    for graph in graphs:
        for node in reversed(list(graph)):
            if not any(o.uses() or o.is_graph_output() for o in node.outputs):
                graph.remove(node, safe=True)
                count += 1
            else:
                count += _trim(node)
    for graph in graphs:
        for name, value in list(graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                graph.initializers.pop(name)
                count += 1
    return count


_MASKS = {"Dropout": 1, "MaxPool": 1}
"""Operators whose later outputs cost time, and how many outputs are needed."""


def _trim(node: ir.Node) -> int:
    """Drop optional outputs at the end, which engines would have to compute."""
    if not is_op(node, *_MASKS, "LSTM", "GRU", "RNN", "LayerNormalization"):
        return 0
    before = len(node.outputs)
    keep = max(i for i, o in enumerate(node.outputs) if o.uses() or o.is_graph_output()) + 1
    if keep == before:
        return 0
    node.resize_outputs(max(keep, 1))
    return before - keep


def drop_unused_imports(model: ir.Model, opset: int) -> None:
    """Forget opset imports of domains that no node uses; unknown ones make engines refuse.

    Args:
        model: changed in place.
        opset: Opset of the default domain, for a model that imports none.
    """
    used = {n.domain for g in model.graphs() for n in g}
    for domain in list(model.opset_imports):
        if domain not in used and domain not in DEFAULT_DOMAINS:
            del model.opset_imports[domain]
    if not any(d in DEFAULT_DOMAINS for d in model.opset_imports):
        model.opset_imports[""] = opset
