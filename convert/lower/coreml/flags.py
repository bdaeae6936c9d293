"""Flags made of integers of 64 bits, without the numbers in between that int32 may not hold."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, all_nodes, attr, is_op, remove_node, replace_node


def read_flags(model: ir.Model) -> int:
    """Make flags of the factors and terms themselves, in place; returns how many.

    Given: ``y = Cast<to=bool>(Mul(a, b))`` and ``z = Cast<to=bool>(Sub(a, b))`` of int64
    Result: ``y = And(Cast<to=bool>(a), Cast<to=bool>(b))`` and ``z = Not(Equal(a, b))``

    Factors are within int32 in a package, so no product of two is a multiple of 2^64. A flag of a
    product of products stays one of their numbers, which are proven.
    """
    namer = Namer(model)
    found = [(node, maker) for node in all_nodes(model) if (maker := _arithmetic(node))]
    for node, maker in found:
        _read(node, maker, namer)
        if not any(v.uses() or v.is_graph_output() for v in maker.outputs):
            remove_node(maker)
    return len(found)


def _arithmetic(node: ir.Node) -> ir.Node | None:
    x = node.inputs[0] if is_op(node, "Cast") and attr(node, "to") == ir.DataType.BOOL else None
    if x is None or x.dtype != ir.DataType.INT64:
        return None
    maker = x.producer()
    return maker if maker is not None and is_op(maker, "Mul", "Sub") else None


def _read(node: ir.Node, maker: ir.Node, namer: Namer) -> None:
    made: list[ir.Node] = []

    def flag(op: str, *inputs: ir.Value | None, to: ir.DataType | None = None) -> ir.Value:
        value = ir.Value(name=namer.fresh("flag"), type=ir.TensorType(ir.DataType.BOOL))
        attributes = {} if to is None else {"to": to}
        name = namer.fresh(f"{node.name}_{len(made)}")
        made.append(ir.node(op, inputs, attributes, outputs=[value], name=name))
        return value

    a, b = maker.inputs
    if maker.op_type == "Sub":
        same = flag("Equal", a, b)
        same.shape = node.outputs[0].shape
        result = flag("Not", same)
    else:
        flags = []
        for factor in (a, b):
            flags.append(flag("Cast", factor, to=ir.DataType.BOOL))
            flags[-1].shape = None if factor is None else factor.shape
        result = flag("And", *flags)
    replace_node(node, made, [result])
