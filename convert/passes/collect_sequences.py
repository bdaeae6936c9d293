"""A sequence that every turn of a loop makes longer by one is what the loop collects."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    all_nodes,
    attr,
    input_at,
    is_op,
    outcome,
    replace_node,
    static_shape,
)


class CollectSequences(ir.passes.InPlacePass):
    """Write a list that a loop appends to as an output of its turns.

    Given: ``e = SequenceEmpty(); s = Loop(n, c, e) <body = (i, d, q) => {v = Relu(u);
        r = SequenceInsert(q, v)}>; y = ConcatFromSequence<axis=0, new_axis=1>(s)``
    Result: ``y = Loop(n, c) <body = (i, d) => {v = Relu(u)}>`` with ``v`` collected

    TorchScript writes ``list.append`` so; few engines have sequences. Pieces have one known shape.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Look at every value that a loop carries."""
        namer, count, again = Namer(model), 0, True
        while again:
            again = any(
                _collected(model, namer, node, index)
                for node in list(all_nodes(model))
                if is_op(node, "Loop")
                for index in range(len(node.inputs) - 2)
            )
            count += again
        return outcome(model, count)


def _collected(model: ir.Model, namer: Namer, loop: ir.Node, index: int) -> bool:
    """Collect what the value carried at an index is a list of; False where it is none."""
    start, body = loop.inputs[2 + index], loop.attributes["body"].as_graph()
    maker = None if start is None else start.producer()
    if maker is None or not is_op(maker, "SequenceEmpty") or len(body.inputs) <= 2 + index:
        return False
    inner, longer = body.inputs[2 + index], body.outputs[1 + index]
    insert, result = longer.producer(), loop.outputs[index]
    if insert is None or not is_op(insert, "SequenceInsert") or insert.inputs[0] is not inner:
        return False
    piece, only = insert.inputs[1], len(inner.uses()) == 1 and not longer.uses()
    readers = [use.node for use in result.uses()]
    if piece is None or input_at(insert, 2) is not None or not only or result.is_graph_output():
        return False
    shape = static_shape(piece)
    joins = all(is_op(n, "ConcatFromSequence", "SequenceLength", "SequenceAt") for n in readers)
    if shape is None or not joins or not readers:
        return False
    rows = _without(loop, body, index, piece, namer)
    for reader in readers:
        _read(model, namer, reader, rows, shape)
    if loop.graph is not None:
        loop.graph.remove(loop, safe=True)
    return True


def _without(loop: ir.Node, body: ir.Graph, index: int, piece: ir.Value, namer: Namer) -> ir.Value:
    """Make the loop anew, with a piece collected instead of a list carried; returns the pieces."""
    insert = body.outputs[1 + index].producer()
    outputs = [v for i, v in enumerate(body.outputs) if i != 1 + index]
    copy = ir.node("Identity", [piece])
    copy.outputs[0].name = namer.fresh("piece")
    copy.outputs[0].type, copy.outputs[0].shape = piece.type, piece.shape
    body.append(copy)
    body.outputs.clear()
    body.outputs.extend([*outputs, copy.outputs[0]])
    if insert is not None:
        body.remove(insert, safe=True)
    del body.inputs[2 + index]
    given = [v for i, v in enumerate(loop.inputs) if i != 2 + index]
    kept = [v for i, v in enumerate(loop.outputs) if i != index]
    made = ir.node("Loop", given, {"body": body}, num_outputs=len(kept) + 1, name=loop.name)
    if loop.graph is not None:
        loop.graph.insert_before(loop, made)
    for old, new in zip(kept, made.outputs, strict=False):
        new.type, new.shape, new.name = old.type, old.shape, old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
    rows = made.outputs[-1]
    rows.name, rows.type = namer.fresh("pieces"), piece.type
    return rows


def _read(
    model: ir.Model, namer: Namer, reader: ir.Node, rows: ir.Value, shape: tuple[int, ...]
) -> None:
    """Read the pieces, with the turns as first axis, as a node reads the list of them."""

    def const(values: list[int] | int) -> ir.Value:
        return add_initializer(model.graph, namer.fresh("indices"), np.array(values, np.int64))

    if is_op(reader, "SequenceAt"):
        made = [ir.node("Gather", [rows, reader.inputs[1]], {"axis": 0})]
    elif is_op(reader, "SequenceLength"):
        made = [ir.node("Shape", [rows], {"start": 0, "end": 1})]
        made.append(ir.node("Squeeze", [made[0].outputs[0], const([0])]))
    else:
        fresh = bool(attr(reader, "new_axis", 0))
        rank = len(shape) + fresh
        axis = int(attr(reader, "axis", 0)) % max(rank, 1)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
        made = [ir.node("Transpose", [rows], {"perm": order})]
        if not fresh:
            sizes = [*shape[:axis], -1, *shape[axis + 1 :]]
            made.append(ir.node("Reshape", [made[0].outputs[0], const(sizes)]))
    kind = ir.TensorType(ir.DataType.INT64) if is_op(reader, "SequenceLength") else rows.type
    for node in made:
        node.outputs[0].name, node.outputs[0].type = namer.fresh("collected"), kind
    replace_node(reader, made, [made[-1].outputs[0]])
