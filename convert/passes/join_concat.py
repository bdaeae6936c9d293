"""One concatenation in the place of several that feed each other."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import PassOutcome, all_nodes, is_op, outcome, remove_node


class JoinConcat(ir.passes.InPlacePass):
    """Concatenate at once what is put together piece by piece; each piece then moves once.

    For formats whose kernels take any number of inputs: XNNPACK's, for one, end at five.

    Given: ``y = Concat<axis=1>(a, t); t = Concat<axis=1>(b, c)``
    Result: ``y = Concat<axis=1>(a, b, c)``
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Join in topological order, so that a chain becomes one node."""
        count = 0
        for node in list(all_nodes(model)):
            if not is_op(node, "Concat"):
                continue
            inner = {id(v): p for v in node.inputs if v is not None and (p := _joined(v, node))}
            if not inner:
                continue
            pieces = [
                piece
                for value in node.inputs
                for piece in (inner[id(value)].inputs if id(value) in inner else (value,))
            ]
            node.resize_inputs(len(pieces))
            for index, piece in enumerate(pieces):
                node.replace_input_with(index, piece)
            for done in inner.values():
                remove_node(done)
            count += len(inner)
        return outcome(model, count)


def _joined(value: ir.Value, reader: ir.Node) -> ir.Node | None:
    """Return what makes a value by the same concatenation, if it has no other reader."""
    maker = value.producer()
    if maker is None or not is_op(maker, "Concat") or maker.graph is not reader.graph:
        return None
    if value.is_graph_output() or len(value.uses()) != 1:
        return None
    same = maker.attributes["axis"].as_int() == reader.attributes["axis"].as_int()
    return maker if same else None
