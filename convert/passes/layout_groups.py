"""Group normalisation that was written as instance normalisation of other shapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    add_initializer,
    constant,
    dims_of,
    is_op,
    outcome,
    remove_node,
    same_dim,
    same_shape,
    static_shape,
    walk,
)
from edgeinfer.types import Array


class FuseGroups(ir.passes.InPlacePass):
    """Normalise groups of channels where they are, whatever the layout is.

    Given::

        r = Reshape(x, [0, G, -1]); n = InstanceNormalization(r, s, b); q = Reshape(n, Shape(x))
        m = Mul(q, scale); y = Add(m, bias)

    Result::

        y = GroupNormalization<num_groups=G>(x, repeat(s) * scale, repeat(b) * scale + bias)

    PyTorch's exporter writes the former.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Rewrite in all graphs."""
        namer, count = Namer(model), 0
        for graph in walk(model.graph):
            for node in list(graph):
                count += is_op(node, "InstanceNormalization") and _fuse(graph, node, namer)
        return outcome(model, count)


def _fuse(graph: ir.Graph, node: ir.Node, namer: Namer) -> bool:
    first, last = _reshapes(node)
    if first is None or last is None or first.inputs[0] is None:
        return False
    picture, groups = last.outputs[0], dims_of(first.outputs[0])[1]
    channels = dims_of(picture)[1]
    scale, bias = (constant(v) for v in node.inputs[1:3])
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return False
    if scale is None or bias is None:
        return False
    factor, shift = (np.repeat(t.numpy(), channels // groups) for t in (scale, bias))
    gone, end = [last, node, first], last
    for op in ("Mul", "Add"):
        found = _constant_after(end, op, channels)
        if found is None:
            continue
        end, values = found
        gone.insert(0, end)
        factor, shift = (
            (factor * values, shift * values) if op == "Mul" else (factor, shift + values)
        )
    x = _as_picture(graph, first, picture, namer)
    operands = [
        add_initializer(graph, namer.fresh(f"{node.name}_{what}"), np.ascontiguousarray(values))
        for what, values in (("scale", factor), ("bias", shift))
    ]
    attributes = {"num_groups": groups, "epsilon": node.attributes.get_float("epsilon", 1e-5)}
    made = ir.node("GroupNormalization", [x, *operands], attributes)
    made.name = namer.fresh(f"{node.name}_groups")
    graph.insert_before(end, made)
    old, new = end.outputs[0], made.outputs[0]
    new.type, new.shape, name = old.type, old.shape, old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name, new.name = None, name
    for one in gone:
        remove_node(one)
    return True


def _reshapes(node: ir.Node) -> tuple[ir.Node | None, ir.Node | None]:
    """The reshape before and the one after, which gives back the image."""
    operand, result = node.inputs[0], node.outputs[0]
    first = None if operand is None else operand.producer()
    last = _only_reader(result)
    if first is None or last is None or not is_op(first, "Reshape") or not is_op(last, "Reshape"):
        return None, None
    x, picture, grouped = first.inputs[0], last.outputs[0], first.outputs[0]
    if x is None or len(dims_of(picture)) < 3 or len(dims_of(grouped)) < 3:
        return None, None
    # Other reshapes may have joined the first one; its elements are in the image's order still.
    known = same_shape(x, picture) or static_shape(picture) is not None
    fits = known and same_dim(dims_of(picture)[0], dims_of(grouped)[0])
    return (first, last) if fits and _only_reader(grouped) is node else (None, None)


def _as_picture(graph: ir.Graph, first: ir.Node, picture: ir.Value, namer: Namer) -> ir.Value:
    """What is normalised, in the shape of the result."""
    x = first.inputs[0]
    if x is None:
        raise ValueError(f"{first.name!r} has no operand")
    if same_shape(x, picture):
        return x
    sizes = np.array(static_shape(picture), np.int64)
    shape = add_initializer(graph, namer.fresh(f"{first.name}_picture"), sizes)
    made = ir.node("Reshape", [x, shape])
    made.name = namer.fresh(f"{first.name}_to_picture")
    made.outputs[0].name = namer.fresh(f"{x.name}_picture")
    made.outputs[0].type, made.outputs[0].shape = x.type, picture.shape
    graph.insert_before(first, made)
    return made.outputs[0]


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _constant_after(node: ir.Node, op: str, channels: int) -> tuple[ir.Node, Array] | None:
    """The next operator, if it has a constant with one value or one a channel."""
    result = node.outputs[0]
    reader = _only_reader(result)
    if reader is None or not is_op(reader, op):
        return None
    (other,) = [v for v in reader.inputs if v is not result] or [None]
    tensor, size = constant(other), len(dims_of(result))
    if tensor is None or not same_shape(result, reader.outputs[0]):
        return None
    shape = (1,) * (size - len(tensor.shape)) + tuple(tensor.shape.numpy())
    if len(shape) != size or shape[1] not in (1, channels) or np.prod(shape) != shape[1]:
        return None
    return reader, tensor.numpy().reshape(-1)
