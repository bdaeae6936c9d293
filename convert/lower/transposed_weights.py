"""Matrices that are each other's transposes are stored once: an embedding and the last product.

The other one is transposed when the file is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, attr, constant
from edgeinfer.convert.passes.transposed_constants import twins

_READERS = {
    **dict.fromkeys(("MatMul", "Gemm", "MatMulInteger", "Conv", "ConvTranspose"), (1,)),
    "DequantizeLinear": (0,),
}
"""Operators whose operands may be transposed: what engines fold when they open a file."""


def share_transposed(model: ir.Model, *, floats: bool) -> int:
    """Replace matrices by the transposes of others, in place; return how many.

    Given::

        e = Gather(table, ids)
        y = MatMul(x, w)

    Result::

        e = Gather(table, ids)
        y = MatMul(x, Transpose(table))

    Args:
        model: as it is to be written.
        floats: integers are transposed after floats were made of them, not before: some
            engines know weights by the integers they are made of.
    """
    graph, namer, count = model.graph, Namer(model), 0
    operands = [v for n in graph for v in n.inputs if v is not None and constant(v) is not None]
    found = twins([v for v in operands if v.is_initializer() and not v.is_graph_output()])
    done: set[ir.Value] = set()
    for value, other in found.items():
        # One of the two stays what it is.
        if value in done or other in done or not may_turn(value):
            continue
        done |= {value, other}
        _turn(graph, namer, value, other, floats=floats)
        name = value.name or ""
        if name in graph.initializers and not list(value.uses()):
            graph.initializers.pop(name)
        count += 1
    return count


def may_turn(value: ir.Value) -> bool:
    """Whether all that reads a constant takes it as the transpose of another one too."""
    uses = list(value.uses())
    # Equal transposes become one, and of that ONNX Runtime takes one product only (``tied.py``).
    if len(uses) > 1 and any(user.op_type == "MatMulInteger" for user, _ in uses):
        return False
    return all(
        not user.domain
        and index in _READERS.get(user.op_type, ())
        and not attr(user, "block_size", 0)
        for user, index in uses
    )


def _turn(graph: ir.Graph, namer: Namer, value: ir.Value, kept: ir.Value, *, floats: bool) -> None:
    for user, index in list(value.uses()):
        if user.op_type == "DequantizeLinear" and floats:
            made = _dequantized(graph, namer, user, kept)
            for reader, place in list(user.outputs[0].uses()):
                reader.replace_input_with(place, made)
            graph.remove(user, safe=True)
        else:
            user.replace_input_with(index, transposed(graph, namer, kept, value, graph[0]))


def _dequantized(graph: ir.Graph, namer: Namer, old: ir.Node, kept: ir.Value) -> ir.Value:
    attributes = dict(old.attributes)
    if len(old.inputs) > 1 and old.inputs[1] is not None and old.inputs[1].shape:
        axis = int(attr(old, "axis", 1)) % 2
        attributes["axis"] = ir.AttrInt64("axis", 1 - axis)
    node = ir.node("DequantizeLinear", [kept, *old.inputs[1:]], attributes)
    out, like = node.outputs[0], old.outputs[0]
    node.name = out.name = namer.fresh(f"{like.name}.transposed")
    node.metadata_props.update(old.metadata_props)
    out.type, out.shape = like.type, kept.shape
    graph.insert_before(old, node)
    return transposed(graph, namer, out, like, old)


def transposed(
    graph: ir.Graph,
    namer: Namer,
    kept: ir.Value,
    like: ir.Value,
    place: ir.Node,
    perm: Sequence[int] = (1, 0),
) -> ir.Value:
    """Return the transpose of a value, which is what another one is; made before a node."""
    node = ir.node("Transpose", [kept], {"perm": [*perm]})
    out = node.outputs[0]
    node.name = out.name = namer.fresh(f"{like.name}.t")
    out.type, out.shape = like.type, like.shape
    graph.insert_before(place, node)
    return out
