"""Rows of loops that make no turn."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.passes.infra import Namer, small
from edgeinfer.errors import Remarks
from edgeinfer.types import Array

_SEEN = "rows without turns are cut"
"""Metadata of a loop that was looked at."""

_EVERY = 1 << 30
"""More rows than memory holds; openvino 2026.4.1 takes the largest int32 for an end to be none."""


def cut_unturned(model: ir.Model, notes: Remarks) -> None:
    """Take the rows from loops that made no turn, which the engine leaves from its run before.

    Given: ``last, rows = Loop(trips, go, first)``
    Result: ``last, all = Loop(trips, go, first); rows = Slice(all, 0, trips > 0 and go ? all : 0)``

    The CPU plugin of openvino 2026.4.1 does not touch the results of a loop without turns; carried
    values it copies, rows it leaves as they were. Changed in place.
    """
    namer = Namer(model)
    for name, node in list(walk(model)):
        if node.op_type != "Loop" or node.domain or _SEEN in node.meta or _turns_surely(node):
            continue
        node.meta[_SEEN] = True
        rows = [o for o in node.outputs[len(node.inputs) - 2 :] if o.uses() or o.is_graph_output()]
        if not rows:
            continue
        made = _Nodes(namer)
        zero = made.constant(np.array([0], np.int64))
        conditions = [made.add("Greater", node.inputs[0], zero)] if node.inputs[0] else []
        conditions += [node.inputs[1]] if node.inputs[1] else []
        go = conditions[0] if len(conditions) == 1 else made.add("And", *conditions)
        end = made.add("Where", go, made.constant(np.array([_EVERY], np.int64)), zero)
        for old in rows:
            new = made.add("Slice", old, zero, end, zero)
            new.type, new.shape = old.type, old.shape
            new.name, old.name = old.name, f"{old.name}/reversed"
            slicing = new.producer()
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            if slicing is not None:
                slicing.replace_input_with(0, old)
        if node.graph is not None:
            node.graph.insert_after(node, made.nodes)
        notes.add(f"{name}: its rows are cut to none where it makes no turn")


def _turns_surely(node: ir.Node) -> bool:
    """Whether a loop makes at least one turn whatever its inputs are."""
    trips, go = (None if v is None else small(v) for v in node.inputs[:2])
    return (node.inputs[0] is None or (trips is not None and trips.item() > 0)) and (
        node.inputs[1] is None or (go is not None and bool(go.item()))
    )


class _Nodes:
    """New nodes, in order."""

    def __init__(self, namer: Namer) -> None:
        self.nodes: list[ir.Node] = []
        self._namer = namer

    def constant(self, array: Array) -> ir.Value:
        return self._added(ir.node("Constant", [], attributes={"value": ir.tensor(array)}))

    def add(self, op: str, *inputs: ir.Value | None) -> ir.Value:
        return self._added(ir.node(op, inputs))

    def _added(self, node: ir.Node) -> ir.Value:
        self.nodes.append(node)
        node.outputs[0].name = self._namer.fresh("turns")
        return node.outputs[0]
