"""Inline model-local functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from edgeinfer.convert.passes.infra import PassOutcome, outcome
from edgeinfer.convert.passes.opset import default_opset, raise_graphs, set_default_opset
from edgeinfer.convert.passes.opset_steps import CannotRaiseError


class InlineFunctions(ir.passes.InPlacePass):
    """Put the body of each model-local function where it is called.

    Given: ``y = local.Twice(x)`` with ``Twice(a) => (b) { b = Add(a, a) }``
    Result: ``y = Add(x, x)``

    Bodies written for another opset are raised to the model's first, or the model to theirs.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Inline all functions, or none where one is recursive or cannot be raised."""
        if not model.functions:
            return outcome(model, 0)
        count = len(model.functions)
        try:
            trial = model.clone()
            _align_opsets(trial)
            InlinePass()(trial)
        # onnx_ir raises what it happens to meet (ValueError, KeyError, PreconditionError).
        except Exception as e:
            return outcome(model, 0, f"functions stay: {e}")
        _align_opsets(model)
        InlinePass()(model)
        model.functions.clear()
        return outcome(model, count)


def _align_opsets(model: ir.Model) -> None:
    """Bring the main graph and all function bodies to one opset of the default domain."""
    owners: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    versions = {default_opset(owner.opset_imports) for owner in owners}
    known = {v for v in versions if v is not None}
    if not known:
        return
    newest = max(known)
    for owner in owners:
        version = default_opset(owner.opset_imports)
        if version is not None and version < newest:
            graph = owner if isinstance(owner, ir.Graph) else owner.graph
            try:
                raise_graphs(model, [graph, *graph.subgraphs()], version, newest)
            except CannotRaiseError as e:
                raise ValueError(str(e)) from e
            if isinstance(owner, ir.Function):
                _constants_to_nodes(owner)
        set_default_opset(owner.opset_imports, newest)
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            model.opset_imports.setdefault(domain, version)


def _constants_to_nodes(function: ir.Function) -> None:
    """A function has no initializers, so those that raising made become Constant nodes."""
    for value in list(function.graph.initializers.values()):
        if value.const_value is None or value.name is None:
            continue
        node = ir.node("Constant", [], {"value": ir.AttrTensor("value", value.const_value)})
        function.graph.initializers.pop(value.name)
        node.outputs[0].name, value.name = value.name, None
        value.replace_all_uses_with(node.outputs[0])
        function.insert_before(function[0], node)
