"""A Scan of opset 8, which has a batch and lengths of sequences, as one of opset 9 in another."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, attr


def by_sequence(node: ir.Node, namer: Namer) -> list[ir.Value]:
    """Return the results of a Scan over the batch whose body is the scan of one sequence.

    Given::

        s, y = Scan<num_scan_inputs=1>(lengths, s0, x) <body = (v, row) => (w, o)>

    Result::

        s, y = Scan<num_scan_inputs=3>(lengths, s0, x) <body = (n, v0, rows) => (vn, o) {
            i, vn, o = Scan<num_scan_inputs=1>(n, v0, rows) <body = (i, v, row) => (j, u, p) {
                ...; going = i > 0; u = Where(going, w, v); p = Where(going, o, 0); j = i - 1 }> }>
    """
    body, scanned = node.attributes["body"].as_graph(), attr(node, "num_scan_inputs")
    lengths, given = node.inputs[0], [v for v in node.inputs[1:] if v is not None]
    states = len(given) - scanned
    node.attributes.pop("body")
    taken = [_one(v, namer) for v in given]
    length = None if lengths is None else _one(lengths, namer)
    first = [] if length is None else [length]
    if first:
        _count(body, states, namer)
    own = ir.Graph([*filter(None, [length]), *taken], [], nodes=[], name=namer.fresh("sequence"))
    attributes = {"body": body, "num_scan_inputs": scanned}
    if directions := attr(node, "directions"):
        attributes["scan_input_directions"] = list(directions)
    count = len(first) + len(node.outputs)
    inner = ir.node(
        "Scan", [*first, *taken], attributes, num_outputs=count, name=namer.fresh("scan")
    )
    for made, inside in zip(inner.outputs, body.outputs, strict=True):
        made.name, made.type = namer.fresh("scanned"), inside.type
    own.append(inner)
    own.outputs.extend(inner.outputs[len(first) :])
    rows = [*filter(None, [lengths]), *given]
    outer = ir.node(
        "Scan", rows, {"body": own, "num_scan_inputs": len(rows)},
        num_outputs=len(node.outputs), name=namer.fresh("batch"),
    )  # fmt: skip
    for made, old in zip(outer.outputs, node.outputs, strict=True):
        made.name, made.type = namer.fresh(f"{old.name}_rows"), old.type
    return list(outer.outputs)


def _one(value: ir.Value, namer: Namer) -> ir.Value:
    """The operand of one sequence: without the axis of the batch."""
    shape = None if value.shape is None else ir.Shape(list(value.shape)[1:])
    return ir.Value(name=namer.fresh(f"{value.name}_one"), type=value.type, shape=shape)


def _count(body: ir.Graph, states: int, namer: Namer) -> None:
    """Have a body count down, and keep its states and give zeros once a sequence has ended."""
    kind = ir.TensorType(ir.DataType.INT64)
    left = ir.Value(name=namer.fresh("left"), type=kind, shape=ir.Shape(()))
    before = list(body.inputs[:states])
    body.inputs.insert(0, left)
    none = add_initializer(body, namer.fresh("none"), np.asarray(0))
    going = _add(body, namer, "Greater", left, none)
    going.type = ir.TensorType(ir.DataType.BOOL)
    for index, value in enumerate(list(body.outputs)):
        if value.dtype is None:
            raise ValueError(f"no element type of {value.name!r}")
        zero = add_initializer(body, namer.fresh("zero"), np.zeros((), value.dtype.numpy()))
        kept = before[index] if index < states else zero
        made = _add(body, namer, "Where", going, value, kept)
        made.type, made.shape = value.type, value.shape
        body.outputs[index] = made
    one = add_initializer(body, namer.fresh("one"), np.asarray(1))
    following = _add(body, namer, "Sub", left, one)
    following.type = kind
    body.outputs.insert(0, following)


def _add(graph: ir.Graph, namer: Namer, op: str, *inputs: ir.Value) -> ir.Value:
    node = ir.node(op, list(inputs), name=namer.fresh(op))
    node.outputs[0].name = namer.fresh(op.lower())
    graph.append(node)
    return node.outputs[0]
