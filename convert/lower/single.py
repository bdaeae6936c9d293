"""One node as a model of its own, to ask an engine whether it takes it.

Engines stop at the first node they lack. Asking about each distinct node by itself gives all of
them at once, and needs none of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

CONST_LIMIT = 64
"""Operands up to this many elements go in with their values: engines want axes, pads and the like
to be known; weights they only need the type of."""


ORIGIN = "edgeinfer.node"
"""Metadata of a node that took part in the place of another one: the name that the user knows."""

WHOLE = "edgeinfer.single"
"""Metadata of a node that counts on every digit of single precision."""


def walk(model: ir.Model) -> Iterator[tuple[str, ir.Node]]:
    """Yield every node, of subgraphs too, with the name to show for it."""
    for index, node in enumerate(ir.traversal.RecursiveGraphIterator(model.graph)):
        yield node.metadata_props.get(ORIGIN) or node.name or f"#{index}", node


def forget_origins(model: ir.Model) -> None:
    """Drop, in place, what is said of nodes for this conversion alone."""
    for _, node in walk(model):
        node.metadata_props.pop(ORIGIN, None)
        node.metadata_props.pop(WHOLE, None)


def op_name(node: ir.Node) -> str:
    """Return the operator, with its domain when it is not the default one."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def has_subgraph(node: ir.Node) -> bool:
    """Whether an attribute holds a graph (``If``, ``Loop``, ``Scan``)."""
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(a.type in kinds for a in node.attributes.values())


def single(node: ir.Node, model: ir.Model, *, ranked: bool = False) -> bytes | None:
    """Return a serialized model of this node only; equal nodes give equal bytes.

    None when the node has a subgraph (its inner nodes are asked about themselves) or when the type
    of an operand is not known, nor, with ``ranked``, its rank: an engine that works ranks out by
    itself would stumble over a node that is fine in its place.
    """
    if ranked and any(v is not None and v.shape is None for v in node.inputs):
        return None
    if has_subgraph(node) or any(v is not None and v.type is None for v in node.inputs):
        return None
    names: dict[ir.Value, ir.Value] = {}
    constants = []
    for value in node.inputs:
        if value is None or value in names:
            continue
        fresh = ir.Value(name=f"x{len(names)}", type=value.type, shape=value.shape)
        const = value.const_value
        if const is not None and const.size <= CONST_LIMIT:
            fresh.const_value = _inline(const, fresh.name)
            constants.append(fresh)
        names[value] = fresh
    outputs = [
        ir.Value(name=f"y{i}" if v.name else "", type=v.type, shape=v.shape)
        for i, v in enumerate(node.outputs)
    ]
    alone = ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else names[v] for v in node.inputs],
        list(node.attributes.values()),
        overload=node.overload,
        outputs=outputs,
        name="n",
    )
    graph = ir.Graph(
        [v for v in names.values() if v.const_value is None],
        [v for v in outputs if v.name],
        nodes=[alone],
        initializers=constants,
        opset_imports=dict(model.opset_imports),
        name="g",
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=model.ir_version))
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _inline(const: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    if isinstance(const, ir.StringTensor):
        return ir.StringTensor(const.string_data(), shape=const.shape, name=name)
    return ir.Tensor(const.numpy(), dtype=const.dtype, name=name)
