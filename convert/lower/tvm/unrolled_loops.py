"""Turns of loops whose number is known: each is written out, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.loops import ScanForm
from edgeinfer.convert.passes.control_flow import connect
from edgeinfer.convert.passes.infra import (
    Namer,
    add_initializer,
    all_nodes,
    bodies,
    input_at,
    is_op,
    small,
)

MOST = 2048
"""Operators that a loop may become."""


def unroll(model: ir.Model) -> int:
    """Write out each Loop and Scan of a known number of turns; return how many.

    Given::

        y, s = Loop(2, true, x) <body = (i, c, v) => (c, w = Add(v, v), w)>

    Result::

        v1 = Add(x, x); y = Add(v1, v1); s = Concat(Unsqueeze(v1, 0), Unsqueeze(y, 0))

    What ``obstacle`` names stays.
    """
    count = 0
    while found := next((n for n in all_nodes(model) if _is_loop(n) and not obstacle(n)), None):
        _Turns(model, found).write()
        count += 1
    return count


def obstacle(node: ir.Node) -> str:
    """Say why turns cannot be written out; empty if they can."""
    body = node.attributes["body"].as_graph()
    extra = 0 if is_op(node, "Loop") else len(node.inputs) - len(body.inputs)
    if extra:
        return "a Scan of opset 8, whose batch has an axis of its own"
    count = _turns(node)
    if count is None:
        return "how many turns it makes is known only at run time"
    if any(bodies(inner) for inner in body):
        return "branches or loops inside of its turns"
    if is_op(node, "Loop") and not _goes_on(node):
        return "a condition that may end it"
    if not count:
        return "no turn is made"
    if count * max(len(body), 1) > MOST:
        return f"{count} turns of {len(body)} operators are more than {MOST}"
    return ""


def _is_loop(node: ir.Node) -> bool:
    return is_op(node, "Loop", "Scan")


def _turns(node: ir.Node) -> int | None:
    if is_op(node, "Loop"):
        limit = small(input_at(node, 0))
        return None if limit is None or limit.size != 1 else max(int(limit.ravel()[0]), 0)
    scan = ScanForm(node)
    size = None
    for value, axis in zip(node.inputs[scan.states :], scan.axes, strict=True):
        found = None if value is None or value.shape is None else value.shape[axis]
        if not isinstance(found, int):
            return None
        size = found
    return size


def _goes_on(node: ir.Node) -> bool:
    """Whether a loop ends by its trip count alone."""
    start = input_at(node, 1)
    first = small(start)
    if start is not None and (first is None or not bool(first.ravel()[0])):
        return False
    body = node.attributes["body"].as_graph()
    value: ir.Value | None = body.outputs[0]
    while value is not None and is_op(value.producer(), "Identity"):
        producer = value.producer()
        value = producer.inputs[0] if producer is not None else None
    known = small(value)
    return value is body.inputs[1] or (known is not None and bool(known.ravel()[0]))


class _Turns:
    """Writes the turns of one node before it."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        if node.graph is None:
            raise ValueError(f"node {node.name!r} is in no graph")
        self.node, self.graph, self.namer = node, node.graph, Namer(model)
        self.body = node.attributes["body"].as_graph()
        self.known = {
            value: self.constant(value.const_value, name)
            for name, value in self.body.initializers.items()
            if value.const_value is not None
        }

    def constant(self, array: object, name: str = "turn") -> ir.Value:
        """Register a constant."""
        return add_initializer(self.graph, self.namer.fresh(name), array)  # type: ignore[arg-type]

    def op(self, kind: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        """Add an operator before the loop."""
        made = ir.node(kind, list(inputs), attributes, name=self.namer.fresh(f"turn_{kind}"))
        made.outputs[0].name = self.namer.fresh("turn_value")
        made.outputs[0].type = inputs[0].type
        self.graph.insert_before(self.node, made)
        return made.outputs[0]

    def write(self) -> None:
        """Write all of them and connect the results."""
        if is_op(self.node, "Loop"):
            self._loop()
        else:
            self._scan()

    def _loop(self) -> None:
        given = [v for v in self.node.inputs[2:] if v is not None]
        pieces: list[list[ir.Value]] = [[] for _ in self.body.outputs[1 + len(given) :]]
        going = self.constant(np.asarray(True), "going")
        for turn in range(_turns(self.node) or 0):
            results = self._turn([self.constant(np.asarray(turn, np.int64)), going, *given])[1:]
            given = results[: len(given)]
            for piece, value in zip(pieces, results[len(given) :], strict=True):
                piece.append(value)
        stacks = [self._stack(p, 0) for p in pieces]
        connect(self.node, [*given, *stacks], self.namer)

    def _scan(self) -> None:
        scan = ScanForm(self.node)
        given = [v for v in self.node.inputs[: scan.states] if v is not None]
        rows = [v for v in self.node.inputs[scan.states :] if v is not None]
        count = _turns(self.node) or 0
        pieces: list[list[ir.Value]] = [[] for _ in scan.out_axes]
        for turn in range(count):
            turns = [np.asarray(count - 1 - turn if b else turn) for b in scan.back]
            taken = [
                self.op("Gather", x, self.constant(place), axis=axis)
                for x, place, axis in zip(rows, turns, scan.axes, strict=True)
            ]
            results = self._turn([*given, *taken])
            given = results[: len(given)]
            for piece, value in zip(pieces, results[len(given) :], strict=True):
                piece.append(value)
        made = [p[::-1] if b else p for p, b in zip(pieces, scan.out_back, strict=True)]
        stacks = [self._stack(p, a) for p, a in zip(made, scan.out_axes, strict=True)]
        connect(self.node, [*given, *stacks], self.namer)

    def _turn(self, given: Sequence[ir.Value]) -> list[ir.Value]:
        """Write one turn; return what the body gives."""
        values = {**self.known, **dict(zip(self.body.inputs, given, strict=True))}
        for inner in self.body:
            made = ir.Node(
                inner.domain,
                inner.op_type,
                [None if v is None else values.get(v, v) for v in inner.inputs],
                list(inner.attributes.values()),
                num_outputs=len(inner.outputs),
                name=self.namer.fresh(inner.name or inner.op_type),
            )
            for old, new in zip(inner.outputs, made.outputs, strict=True):
                # Left out where the body leaves it out; sizes may differ from turn to turn.
                new.name = self.namer.fresh(old.name) if old.name else ""
                new.type = old.type
                values[old] = new
            self.graph.insert_before(self.node, made)
        return [values.get(v, v) for v in self.body.outputs]

    def _stack(self, pieces: Sequence[ir.Value], axis: int) -> ir.Value:
        at = self.constant(np.asarray([axis], np.int64), "axis")
        rows = [self.op("Unsqueeze", piece, at) for piece in pieces]
        return rows[0] if len(rows) == 1 else self.op("Concat", *rows, axis=axis)
