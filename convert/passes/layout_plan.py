"""Choose, for every operator, whether it computes in ONNX's order of axes or in the other one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import onnx_ir as ir

from edgeinfer.convert.passes.infra import attr, constant, dims_of, is_op, rank
from edgeinfer.convert.passes.layout_cut import FIRST, INFINITE, LAST, Labelling
from edgeinfer.convert.passes.layout_moves import Move, Perm, identity, weight
from edgeinfer.convert.passes.layout_rules import RULES, undone

RESHAPED = 8
"""Cost of an order that only moves axes of size 1: nothing but a new shape."""

# Operators of which any operand may be the one whose order is known.
_ONE_OPERAND = frozenset(
    {
        *("Gather", "Pad", "Slice", "Tile", "Expand", "Resize", "Reshape", "Squeeze", "Unsqueeze"),
        *("Flatten", "Split", "TopK", "CumSum", "QuantizeLinear", "DequantizeLinear", "Clip"),
        "Einsum",
    }
)


class LayoutLabels:
    """The labels of one graph.

    Args:
        graph: to be planned.
        seeds: operators that compute in another order in any case.
        ends: inputs and outputs of the graph that are stored in another order in any case.

    Attributes:
        moves: the operators that compute in another order.
    """

    def __init__(
        self,
        graph: ir.Graph,
        seeds: Mapping[ir.Node, Move],
        ends: Mapping[ir.Value, Perm],
    ) -> None:
        self.graph, self.ends = graph, dict(ends)
        self._seeds = seeds
        self._candidates: dict[ir.Node, Move] = dict(seeds)
        self._labelling = Labelling()
        self._spread(deque(seeds))
        # Where nothing else decides, transposes of the model may still meet their inverses.
        for node in graph:
            if is_op(node, "Transpose") and node not in self._candidates:
                move = undone(node)
                if move is not None:
                    self._candidates[node] = move
                    self._spread(deque([node]))
        self._variables = {
            n: LAST if n in seeds else self._labelling.variable() for n in self._candidates
        }
        self._charge()
        labels = self._labelling.solve()
        self.moves = {n: m for n, m in self._candidates.items() if labels[self._variables[n]]}

    def _spread(self, queue: deque[ir.Node]) -> None:
        """Give each operator near a seed its order; the nearest seed decides."""
        for value, perm in self.ends.items():
            queue.extend(self._readers_of(value, perm))
            queue.extend(self._producer_of(value, perm))
        while queue:
            move = self._candidates[node := queue.popleft()]
            for value in node.outputs:
                if rank(value) == len(move.output) and not identity(move.output):
                    queue.extend(self._readers_of(value, move.output))
            for index, perm in move.inputs.items():
                operand = node.inputs[index]
                if operand is not None and not identity(perm):
                    queue.extend(self._producer_of(operand, perm))

    def _readers_of(self, value: ir.Value, perm: Perm) -> list[ir.Node]:
        found = []
        for node, index in value.uses():
            rule = RULES.get(node.op_type) if node.domain == "" else None
            if rule is None or node in self._candidates or node.graph is not self.graph:
                continue
            if index > 0 and node.op_type in _ONE_OPERAND:
                continue
            move = rule(node, perm, False)
            if move is not None and move.inputs.get(index) == perm:
                self._candidates[node] = move
                found.append(node)
        return found

    def _producer_of(self, value: ir.Value, perm: Perm) -> list[ir.Node]:
        node = value.producer()
        rule = RULES.get(node.op_type) if node is not None and node.domain == "" else None
        if rule is None or node is None or node in self._candidates or node.graph is not self.graph:
            return []
        move = rule(node, perm, True)
        if move is None or move.output != perm:
            return []
        self._candidates[node] = move
        return [node]

    def _charge(self) -> None:
        for value in self.graph.inputs:
            self._charge_value(value)
        for node in self.graph:
            move = self._candidates.get(node)
            if move is not None:
                variable = self._variables[node]
                lifted = sum(weight(v) for i in move.lifted if (v := node.inputs[i]) is not None)
                self._labelling.cost(variable, LAST, move.first)
                self._labelling.cost(FIRST, variable, move.last + lifted)
            for value in node.outputs:
                self._charge_value(value)

    def _order_of(self, value: ir.Value) -> tuple[int, Perm | None]:
        """The variable that says how a value is stored, and its other order."""
        node = value.producer()
        if node is None:
            return (LAST, self.ends[value]) if value in self.ends else (FIRST, None)
        move = self._candidates.get(node)
        if move is None or identity(move.output) or rank(value) != len(move.output):
            return FIRST, None
        return self._variables[node], move.output

    def _charge_value(self, value: ir.Value) -> None:
        """Charge the transposes between a value and its readers, each once however many read it."""
        if constant(value) is not None:
            return
        variable, order = self._order_of(value)
        by_order: dict[Perm, list[int]] = {}
        as_is: list[int] = []
        for node, index in value.uses():
            if is_op(node, "Shape", "Size"):
                continue
            move = self._candidates.get(node)
            if move is not None and is_op(node, "Transpose"):
                self._charge_transpose(node, move, variable, order)
                continue
            perm = None if move is None else move.inputs.get(index)
            if perm is None or identity(perm):
                as_is.append(FIRST)
                continue
            as_is.append(self._variables[node])
            by_order.setdefault(perm, []).append(self._variables[node])
        if value.is_graph_output():
            perm = self.ends.get(value) if value.producer() is not None else None
            as_is += [] if perm else [FIRST]
            if perm:
                by_order.setdefault(perm, []).append(LAST)
        for perm, readers in by_order.items():
            source = variable if perm == order else FIRST
            self._share(source, readers, _cost(value, perm))
        if order is not None and as_is:
            gate = self._labelling.variable()
            for reader in as_is:
                self._labelling.cost(reader, gate, INFINITE)
            self._labelling.cost(gate, variable, _cost(value, order))

    def _share(self, source: int, readers: list[int], amount: int) -> None:
        gate = self._labelling.variable()
        self._labelling.cost(source, gate, amount)
        for reader in readers:
            self._labelling.cost(gate, reader, INFINITE)

    def _charge_transpose(
        self, node: ir.Node, move: Move, variable: int, order: Perm | None
    ) -> None:
        """What a Transpose of the model costs depends on how its operand and result are stored."""
        own = _perm(node)
        plain = tuple(range(len(own)))
        ways = [
            [_cost_of(node, between(own, a, b)) for b in (plain, move.output)]
            for a in (plain, order or plain)
        ]
        result = FIRST if identity(move.output) else self._variables[node]
        self._lean(variable, ways[1][0] - ways[0][0])
        self._lean(result, ways[1][1] - ways[1][0])
        extra = ways[0][1] + ways[1][0] - ways[0][0] - ways[1][1]
        self._labelling.cost(variable, result, extra)

    def _lean(self, variable: int, amount: int) -> None:
        """Charge LAST, or FIRST where the amount is negative."""
        if amount > 0:
            self._labelling.cost(FIRST, variable, amount)
        else:
            self._labelling.cost(variable, LAST, -amount)


def _perm(node: ir.Node) -> Perm:
    return tuple(attr(node, "perm") or reversed(range(rank(node.inputs[0]) or 0)))


def between(own: Perm, source: Perm, target: Perm) -> Perm:
    """What a Transpose does to a stored operand to give a stored result."""
    return tuple(source.index(own[t]) for t in target)


def _cost(value: ir.Value, perm: Perm) -> int:
    dims = dims_of(value)
    kept = [p for p in perm if dims[p] != 1]
    return RESHAPED if kept == sorted(kept) else weight(value)


def _cost_of(node: ir.Node, perm: Perm) -> int:
    """The cost of a Transpose; which of its axes have size 1 is not looked at."""
    return 0 if identity(perm) else weight(node.outputs[0])
