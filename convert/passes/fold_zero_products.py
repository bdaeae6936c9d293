"""Fold products of integers and zero, which older code writes for zeros of some shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    Namer,
    PassOutcome,
    all_nodes,
    input_at,
    is_op,
    outcome,
    rank,
    small,
)
from edgeinfer.convert.passes.rewrite import ReplacementBuilder


class FoldZeroProducts(ir.passes.InPlacePass):
    """Replace a product of integers and zero by zeros.

    Given: ``a = Cast<to=int64>(x); y = Mul(a, 0)``
    Result: ``y = Expand(0, Shape(a))``

    Nothing computes ``a`` any more where it had the shape of another value: a cast of floats that
    nothing bounds is in the way of formats without 64 bits. Of floats such a product may be NaN.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Fold wherever the constant has one element."""
        namer, count = Namer(model), 0
        for node in all_nodes(model):
            for index in (0, 1) if is_op(node, "Mul") else ():
                if (x := _other(node, index)) is not None:
                    _replace(model, node, x, namer)
                    count += 1
                    break
        return outcome(model, count)


def _other(node: ir.Node, index: int) -> ir.Value | None:
    """The operand next to a zero, if the product has its shape."""
    zero, x = small(input_at(node, index)), input_at(node, 1 - index)
    width = rank(x)
    if zero is None or zero.size != 1 or zero.dtype.kind not in "iu" or zero.any():
        return None
    return x if width is not None and width >= zero.ndim else None


def _replace(model: ir.Model, node: ir.Node, x: ir.Value, namer: Namer) -> None:
    cast = x.producer()
    # A cast has the shape of what it reads.
    shaped = cast.inputs[0] if cast is not None and is_op(cast, "Cast") else x
    kind = node.outputs[0].dtype or x.dtype
    build = ReplacementBuilder(namer, node.name or "zeros")
    zero = build.const(np.zeros((), kind.numpy() if kind else np.int64), "zero")
    build.op("Expand", zero, build.op("Shape", shaped))
    build.nodes[0].outputs[0].type = ir.TensorType(ir.DataType.INT64)
    build.nodes[1].outputs[0].type = node.outputs[0].type
    build.commit(model.graph, node)
