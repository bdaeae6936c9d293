"""Rewrites of patterns that a compute unit is known to get wrong; ``quirks`` has the list."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.rules import attribute
from edgeinfer.convert.passes.infra import Namer, add_initializer, static_shape

_PRODUCTS = frozenset({"MatMul", "Gemm"})


def flat_product(node: ir.Node) -> list[ir.Node] | None:
    """The product of two matrices, with its addition, that a HardSwish alone reads.

    Returns:
        The product, and the addition where it is a node of its own; None for any other pattern.
    """
    x = node.inputs[0] if node.op_type == "HardSwish" and not node.domain else None
    if x is None or x.shape is None or len(x.shape) != 2:
        return None
    chain: list[ir.Node] = []
    maker = _only_maker(x)
    if maker is not None and maker.op_type == "Add":
        sources = [v for v in maker.inputs if v is not None and v.const_value is None]
        if len(sources) != 1:
            return None
        chain, maker = [maker], _only_maker(sources[0])
    if maker is None or maker.op_type not in _PRODUCTS or maker.domain:
        return None
    plain = all(
        attribute(maker, name, default) == default
        for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))
    )
    operand = maker.inputs[0]
    if not plain or operand is None or operand.shape is None or len(operand.shape) != 2:
        return None
    return [maker, *chain]


def _only_maker(value: ir.Value) -> ir.Node | None:
    alone = len(value.uses()) == 1 and not value.is_graph_output()
    return value.producer() if alone else None


def deepen(model: ir.Model) -> int:
    """Compute products that a HardSwish reads with four axes, in place; returns how many.

    Given: ``y = HardSwish(Gemm(x, w, b))`` of matrices
    Result: ``y = Squeeze(HardSwish(MatMul(Unsqueeze(x), w) + b))``
    """
    found = [(node, chain) for node in model.graph if (chain := flat_product(node)) is not None]
    if not found:
        return 0
    namer = Namer(model)
    axes = add_initializer(model.graph, namer.fresh("axes"), np.array([0, 1], np.int64))
    for swish, chain in found:
        _deepen(model.graph, namer, axes, swish, chain)
    return len(found)


def _deepen(
    graph: ir.Graph, namer: Namer, axes: ir.Value, swish: ir.Node, chain: list[ir.Node]
) -> None:
    product = chain[0]
    x, weight = product.inputs[0], product.inputs[1]
    result = swish.outputs[0]
    if x is None or weight is None or x.shape is None or result.shape is None:
        return
    made: list[ir.Node] = []

    def add(op: str, inputs: list[ir.Value], dims: list[ir.SymbolicDim | int]) -> ir.Value:
        value = ir.Value(name=namer.fresh(op), type=result.type, shape=ir.Shape(dims))
        made.append(ir.node(op, inputs, outputs=[value], name=namer.fresh(op)))
        return value

    wide: list[ir.SymbolicDim | int] = [1, 1, *result.shape]
    if attribute(product, "transB", 0):
        shape = static_shape(weight) or weight.shape
        if shape is None:
            return
        transposed = ir.Value(
            name=namer.fresh("transposed"), type=weight.type, shape=ir.Shape(shape[::-1])
        )
        made.append(
            ir.node(
                "Transpose",
                [weight],
                {"perm": [1, 0]},
                outputs=[transposed],
                name=namer.fresh("turn"),
            )
        )
        weight = transposed
    deep = add("Unsqueeze", [x, axes], [1, 1, *x.shape])
    value = add("MatMul", [deep, weight], wide)
    addends = [v for v in product.inputs[2:] if v is not None]
    addends += [v for n in chain[1:] for v in n.inputs if v is not None and v.const_value]
    for addend in addends:
        value = add("Add", [value, addend], wide)
    value = add("HardSwish", [value], wide)
    flat = ir.node("Squeeze", [value, axes], num_outputs=1, name=namer.fresh("flat"))
    flat.outputs[0].type, flat.outputs[0].shape = result.type, result.shape
    graph.insert_before(swish, [*made, flat])
    name = result.name
    result.replace_all_uses_with(flat.outputs[0], replace_graph_outputs=True)
    graph.remove([swish, *reversed(chain)], safe=True)
    flat.outputs[0].name = name
