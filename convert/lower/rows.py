"""Turns of a Scan that know nothing of each other, made all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import REDUCTIONS
from edgeinfer.convert.lower.loops import ScanForm
from edgeinfer.convert.passes.control_flow import connect
from edgeinfer.convert.passes.infra import Namer, attr, bodies, is_op, small
from edgeinfer.convert.passes.rewrite import ReplacementBuilder

_PAIRED = frozenset({
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max"),
    *("Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"),
})  # fmt: skip
"""Operators of elements whose operands are broadcast."""

_PLAIN = frozenset({
    *("Abs", "Cast", "Ceil", "Erf", "Exp", "Floor", "Identity", "IsInf", "IsNaN", "Log", "Neg"),
    *("Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sqrt", "Tanh"),
})  # fmt: skip
"""Operators of each element for itself."""


def at_once(model: ir.Model, node: ir.Node) -> bool:
    """Write a Scan, in place, as operators with one more axis; False where turns need each other.

    Given, the distances of samples ``(n, f)`` from each of ``k`` rows::

        s, y = Scan<num_scan_inputs=1>(x, rows)
            <body = (v, row) => (v, ReduceSumSquare(Sub(v, row), [1]))>

    Result::

        apart = Sub(x, Unsqueeze(rows, [1])); y = ReduceSumSquare(apart, [2]); s = x
    """
    if not is_op(node, "Scan") or node.graph is None:
        return False
    turns = _Turns(model, node)
    results = turns.results()
    if results is None:
        return False
    turns.build.insert(model.graph, node)
    connect(node, results, turns.namer)
    return True


class _Turns:
    """Writes what a body says of one row for all rows."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.node, self.namer = node, Namer(model)
        self.build = ReplacementBuilder(self.namer, node.name or "scan")
        self.body = node.attributes["body"].as_graph()
        self.same: dict[ir.Value, ir.Value] = {}
        """What is the same in every turn."""
        self.stacked: dict[ir.Value, ir.Value] = {}
        """What differs from turn to turn, with the turns as first axis."""
        self.ranks: dict[ir.Value, int] = {}
        """Of one turn's values; a body's own shapes are often not stated."""

    def results(self) -> list[ir.Value] | None:
        """Return what the Scan gives; None where it has no such form."""
        scan = ScanForm(self.node)
        given = list(self.node.inputs)
        if len(given) != len(self.body.inputs) or any(scan.back) or any(scan.out_back):
            return None
        states = range(scan.states)
        if any(_origin(self.body.outputs[i]) is not self.body.inputs[i] for i in states):
            return None
        for inner, value in zip(self.body.inputs[: scan.states], given, strict=False):
            if value is None:
                return None
            self._know(inner, value)
            self.same[inner] = value
        rows = zip(self.body.inputs[scan.states :], given[scan.states :], scan.axes, strict=True)
        for inner, value, axis in rows:
            if value is None or value.shape is None:
                return None
            self.ranks[inner] = len(value.shape) - 1
            self.stacked[inner] = self._moved(value, axis % len(value.shape), 0)
        for value in self.body.initializers.values():
            if value.const_value is None:
                return None
            self.same[value] = self.build.const(value.const_value.numpy(), "row")
        if not all(self._write(inner) for inner in self.body):
            return None
        made = [self.stacked.get(v) for v in self.body.outputs[scan.states :]]
        ranks = [self._rank(v) for v in self.body.outputs[scan.states :]]
        found = [self.same[self.body.inputs[i]] for i in states]
        for value, rank, axis in zip(made, ranks, scan.out_axes, strict=True):
            if value is None or rank is None:
                return None
            found.append(self._moved(value, 0, axis % (rank + 1), rank + 1))
        return found

    def _know(self, inner: ir.Value, value: ir.Value) -> None:
        if value.shape is not None:
            self.ranks[inner] = len(value.shape)

    def _rank(self, value: ir.Value | None) -> int | None:
        if value is None or value in self.ranks:
            return None if value is None else self.ranks[value]
        return None if value.shape is None else len(value.shape)

    def _moved(self, value: ir.Value, axis: int, to: int, rank: int = 0) -> ir.Value:
        if axis == to:
            return value
        axes = list(range(rank or len(value.shape or ())))
        axes.insert(to, axes.pop(axis))
        return self.build.op("Transpose", value, perm=axes)

    def _write(self, inner: ir.Node) -> bool:
        """Write one operator of the body; False where it has no form for all rows."""
        if inner.domain or bodies(inner) or len(inner.outputs) != 1:
            return False
        read = [v for v in inner.inputs if v is not None]
        self._note_rank(inner, read)
        attributes, out = dict(inner.attributes), inner.outputs[0]
        if not any(v in self.stacked for v in read):
            alike = [None if v is None else self.same.get(v, v) for v in inner.inputs]
            self.same[out] = self.build.op(inner.op_type, *alike, **attributes)
            return True
        operands = self._operands(inner, read)
        if operands is None:
            return False
        self.stacked[out] = self.build.op(inner.op_type, *operands, **attributes)
        return True

    def _note_rank(self, inner: ir.Node, read: Sequence[ir.Value]) -> None:
        ranks = [self._rank(v) for v in read]
        if inner.op_type in _PLAIN | _PAIRED and None not in ranks:
            self.ranks[inner.outputs[0]] = max(r for r in ranks if r is not None)

    def _operands(
        self, inner: ir.Node, read: Sequence[ir.Value]
    ) -> Sequence[ir.Value | None] | None:
        """Return what an operator reads of all rows."""
        if inner.op_type in _PLAIN:
            return [self.stacked[read[0]]]
        if inner.op_type in _PAIRED:
            return self._paired(read)
        if inner.op_type in REDUCTIONS and read[0] in self.stacked:
            return self._reduced(inner)
        return None

    def _paired(self, values: Sequence[ir.Value]) -> list[ir.Value | None] | None:
        """Put axes of one before a row that has fewer than another operand."""
        ranks = [self._rank(v) for v in values]
        if None in ranks:
            return None
        most = max(r for r in ranks if r is not None)
        found: list[ir.Value | None] = []
        for value, rank in zip(values, ranks, strict=True):
            made = self.stacked.get(value)
            if made is not None and rank is not None and rank < most:
                axes = np.arange(1, 1 + most - rank, dtype=np.int64)
                made = self.build.op("Unsqueeze", made, self.build.const(axes, "axes"))
            found.append(self.same.get(value, value) if made is None else made)
        return found

    def _reduced(self, inner: ir.Node) -> list[ir.Value | None] | None:
        value, rank = inner.inputs[0], self._rank(inner.inputs[0])
        given = inner.inputs[1] if len(inner.inputs) > 1 else None
        axes = small(given)
        if value is None or rank is None or (given is not None and axes is None):
            return None
        if axes is None or not axes.size:
            axes = np.arange(0 if attr(inner, "noop_with_empty_axes", 0) else rank)
        reduced = np.asarray([int(a) % rank + 1 for a in axes], np.int64)
        if not reduced.size:
            return None
        kept = attr(inner, "keepdims", 1)
        self.ranks[inner.outputs[0]] = rank if kept else rank - len(reduced)
        return [self.stacked[value], self.build.const(reduced, "axes")]


def _origin(value: ir.Value) -> ir.Value:
    """Return what a value is a copy of."""
    while (producer := value.producer()) is not None and is_op(producer, "Identity"):
        (source,) = producer.inputs
        if source is None:
            break
        value = source
    return value
