"""Roundings to bytes move up through what only moves values: less is read, to the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from edgeinfer.convert.lower.rules import attribute, given
from edgeinfer.convert.passes.infra import Namer
from edgeinfer.errors import Remarks

_MOVES = frozenset({"Concat", "MaxPool", "Resize", "Split"})
"""Operators that choose among values: their results are rounded as their inputs are.

The largest of rounded values is the largest value, rounded, since rounding keeps the order.
"""

_CROPS = "tf_crop_and_resize"

Key = tuple[float, int]
"""Scale and zero point of all of a value."""


def round_early(model: ir.Model, notes: Remarks) -> None:
    """Round to bytes before values are moved, in place; equal roundings of a value become one.

    NudeNet joins 13 times (0.95 of the time, bit by bit the same; n = 12, processor time). What is
    split for a layer with a scale of its own is rounded whole for it, if it is an activation
    between bytes, which then needs no floats.

    Given::

        x = Concat(a, b); y = QuantizeLinear(x, scale, zero)

    Result::

        y = Concat(QuantizeLinear(a, scale, zero), QuantizeLinear(b, scale, zero))
    """
    moved = 0
    namer = Namer(model)
    for graph in model.graphs():
        # A rounding that has moved up may move on: those who read stand behind those who make.
        for node in reversed(list(graph)):
            if node.op_type in _MOVES and not node.domain:
                moved += _move(node, namer)
    if moved:
        plural = "operators" if moved > 1 else "operator"
        notes.add(f"QuantizeLinear: {moved} {plural} before it read and write bytes: rewritten")


def _move(node: ir.Node, namer: Namer) -> bool:
    found = [roundings(out) for out in node.outputs]
    if not _keeps_values(node) or any(each is None for each in found) or node.graph is None:
        return False
    users = {out: each for out, each in zip(node.outputs, found, strict=True) if each}
    keys = {key: each[key][0] for each in users.values() for key in each}
    if not keys or (len(keys) > 1 and not _splits_activation(node)):
        return False
    for key, like in keys.items():
        made = _moved(node, like, namer)
        for out, each in users.items():
            for user in each.get(key, ()):
                old, new = user.outputs[0], made.outputs[node.outputs.index(out)]
                ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
                node.graph.remove(user, safe=True)
    node.graph.remove(node, safe=True)
    return True


def _keeps_values(node: ir.Node) -> bool:
    """Whether results are some of the inputs, and only the values are requested."""
    if node.op_type == "MaxPool":
        return len(node.outputs) == 1
    if node.op_type == "Resize":
        crops = attribute(node, "coordinate_transformation_mode", "half_pixel") == _CROPS
        return attribute(node, "mode", "nearest") == "nearest" and not crops
    return True


def _splits_activation(node: ir.Node) -> bool:
    """Whether what is split is an activation of bytes, for which a second rounding costs little."""
    x = given(node, 0)
    maker = None if x is None else x.producer()
    if node.op_type != "Split" or x is None or maker is None or maker.op_type != "Swish":
        return False
    above = given(maker, 0)
    stored = None if above is None else above.producer()
    return stored is not None and stored.op_type == "DequantizeLinear" and len(x.uses()) == 1


def roundings(value: ir.Value) -> dict[Key, list[ir.Node]] | None:
    """Return who rounds a value, by scale; None where somebody else reads it."""
    found: dict[Key, list[ir.Node]] = {}
    if value.is_graph_output():
        return None
    for user, index in value.uses():
        key = _key(user) if index == 0 and user.graph is _graph_of(value) else None
        if key is None:
            return None
        found.setdefault(key, []).append(user)
    return found


def _graph_of(value: ir.Value) -> ir.Graph | None:
    maker = value.producer()
    return None if maker is None else maker.graph


def _key(node: ir.Node) -> Key | None:
    """Return the scale and the zero of a rounding of all of a value to unsigned bytes."""
    scale, zero = given(node, 1), given(node, 2)
    if node.op_type != "QuantizeLinear" or node.domain or scale is None or zero is None:
        return None
    # Signed ones become unsigned later, where a result is read as it is stored.
    if zero.dtype != ir.DataType.UINT8:
        return None
    if scale.const_value is None or zero.const_value is None:
        return None
    if scale.const_value.size != 1 or zero.const_value.size != 1:
        return None
    return float(scale.const_value.numpy().item()), int(zero.const_value.numpy().item())


def _moved(node: ir.Node, like: ir.Node, namer: Namer) -> ir.Node:
    """Put an operator on rounded inputs next to the one on floats."""
    graph = node.graph
    if graph is None:
        raise ValueError(f"node {node.name!r} is in no graph")
    inputs = list(node.inputs)
    for index in _values(node):
        inputs[index] = _rounded(graph, node, inputs[index], like, namer)
    made = ir.node(
        node.op_type,
        inputs,
        {name: found.value for name, found in node.attributes.items()},
        num_outputs=len(node.outputs),
        version=node.version,
    )
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name = namer.fresh(f"{old.name}.bytes")
        new.type, new.shape = ir.TensorType(ir.DataType.UINT8), old.shape
    graph.insert_before(node, made)
    return made


def _values(node: ir.Node) -> Iterator[int]:
    """Where the inputs are that hold values."""
    yield from range(len(node.inputs) if node.op_type == "Concat" else 1)


def _rounded(
    graph: ir.Graph, before: ir.Node, value: ir.Value | None, like: ir.Node, namer: Namer
) -> ir.Value:
    """Return a value rounded as another one is; one that is rounded so already serves all."""
    if value is None:
        raise ValueError(f"node {before.name!r} lacks an input")
    own = {name: found.value for name, found in like.attributes.items() if name != "axis"}
    made = ir.node("QuantizeLinear", [value, *like.inputs[1:]], own, version=like.version)
    out = made.outputs[0]
    out.name = namer.fresh(f"{value.name}.rounded")
    out.type, out.shape = ir.TensorType(ir.DataType.UINT8), value.shape
    maker = value.producer()
    if maker is None or maker.graph is not graph:
        graph.insert_before(before, made)
        return out
    # Behind its maker it stands before all who round it likewise.
    graph.insert_after(maker, made)
    key = _key(made)
    for user, index in list(value.uses()):
        if user is not made and index == 0 and user.graph is graph and _key(user) == key:
            ir.convenience.replace_all_uses_with(user.outputs[0], out, replace_graph_outputs=True)
            graph.remove(user, safe=True)
    return out
