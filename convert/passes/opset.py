"""Raise a model to one opset, so that everything later knows one version of each operator.

onnx's own version converter has no adapter for many operators and none for subgraphs, so the
steps are written here, one function per operator and version whose meaning or form changed
(``opset_steps``). A test compares all schemas of onnx between opset 7 and ``OPSET`` and fails for
a change that is in neither ``STEPS`` nor ``COMPATIBLE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    DEFAULT_DOMAINS,
    Namer,
    PassOutcome,
    all_nodes,
    outcome,
)
from edgeinfer.convert.passes.opset_steps import STEPS, CannotRaiseError, Edit

OLDEST = 7
"""Before opset 7 broadcasting itself was different."""


class RaiseOpset(ir.passes.InPlacePass):
    """Rewrite every node of the default domain to the given opset.

    Given: ``opset 11: y = Squeeze<axes=[0]>(x)``
    Result: ``opset 24: y = Squeeze(x, axes)`` with the initializer ``axes = [0]``

    A model with a node that has no equal in the newer opset stays as it is, with a note.
    """

    def __init__(self, target: int) -> None:
        self.target = target

    def call(self, model: ir.Model) -> PassOutcome:
        """Raise the whole model, or leave all of it alone."""
        version = default_opset(model.opset_imports)
        if version is None or version >= self.target:
            return outcome(model, 0)
        if version < OLDEST or model.functions:
            why = f"opset {version}" if version < OLDEST else "functions that cannot be inlined"
            return outcome(model, 0, f"stays at opset {version}: {why}")
        try:
            # A trial on a copy that shares the weights: no model is left half raised.
            trial = model.clone()
            _raise_nodes(trial, all_nodes(trial), version, self.target)
        except CannotRaiseError as e:
            return outcome(model, 0, f"stays at opset {version}: {e}")
        count = raise_graphs(model, model.graphs(), version, self.target)
        set_default_opset(model.opset_imports, self.target)
        wanted = onnx.helper.find_min_ir_version_for(
            [onnx.helper.make_opsetid("", self.target)], ignore_unknown=True
        )
        model.ir_version = max(model.ir_version, wanted)
        note = f"opset {version} to {self.target}"
        return PassOutcome(model, modified=True, count=count, notes=(note,))


def default_opset(imports: dict[str, int]) -> int | None:
    """Version of the default domain under either of its names."""
    return next((v for d, v in imports.items() if d in DEFAULT_DOMAINS), None)


def set_default_opset(imports: dict[str, int], version: int) -> None:
    """Write the version under the short name only."""
    imports.pop("ai.onnx", None)
    imports[""] = version


def raise_graphs(model: ir.Model, graphs: Iterable[ir.Graph], old: int, new: int) -> int:
    """Raise the nodes of some graphs of a model; returns how many nodes were rewritten.

    Raises:
        CannotRaiseError: a node has no equal; the graphs may be changed in part.
    """
    return _raise_nodes(model, [n for g in graphs for n in g], old, new)


def _raise_nodes(model: ir.Model, nodes: list[ir.Node], old: int, new: int) -> int:
    """Take the nodes through the versions one by one."""
    namer, count = Namer(model), 0
    touched: set[str] = {op for op, version in STEPS if old < version <= new}
    current = [n for n in nodes if n.domain in DEFAULT_DOMAINS and n.op_type in touched]
    for version in range(old + 1, new + 1):
        following: list[ir.Node] = []
        for node in current:
            step = STEPS.get((node.op_type, version))
            if step is None:
                following.append(node)
                continue
            edit = Edit(node, namer)
            step(node, edit)
            count += 1
            following.extend(_after(node, edit))
        current = following
    return count


def _after(node: ir.Node, edit: Edit) -> Iterator[ir.Node]:
    """The nodes that stand where ``node`` stood."""
    if node.graph is not None:
        yield node
    yield from (n for n in edit.nodes if n.graph is not None)
