"""Integers of floats that nothing bounds, where it does not matter how large they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.families import COMPARISONS, MOVES
from edgeinfer.convert.passes.infra import Namer, constant, is_op
from edgeinfer.convert.passes.rewrite import ReplacementBuilder

_LAST = 2147483520
"""The largest integer of int32 that single precision holds."""


def hold(model: ir.Model) -> int:
    """Hold floats within int32 before they become int64, in place; returns how many.

    Given: ``i = Cast<int64>(x)``, which is only compared with constants, or says where to read
    Result: ``i = Cast<int64>(Clip(Where(IsNaN(x), -2147483520, x), -2147483520, 2147483520))``

    A number beyond is as little one of the constants, or a place, as the last one is; NaN becomes a
    very small integer elsewhere too.
    """
    found = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if _is_held(node)]
    namer = Namer(model)
    for node in found:
        x = node.inputs[0]
        if x is None or x.dtype is None:
            continue
        build = ReplacementBuilder(namer, f"{node.name}_held")
        ends = [build.const(np.asarray(v, x.dtype.numpy()), "end") for v in (-_LAST, _LAST)]
        for value in ends:
            value.shape = ir.Shape([])
        within = build.op("Where", build.op("IsNaN", x), ends[0], x)
        clipped = build.op("Clip", within, *ends)
        build.insert(model.graph, node)
        for made, kind in zip(build.nodes, (ir.DataType.BOOL, x.dtype, x.dtype), strict=True):
            made.outputs[0].type, made.outputs[0].shape = ir.TensorType(kind), x.shape
        node.replace_input_with(0, clipped)
    return len(found)


def _is_held(node: ir.Node) -> bool:
    x = node.inputs[0] if is_op(node, "Cast") else None
    if x is None or x.dtype != ir.DataType.FLOAT or constant(x) is not None:
        return False
    return node.outputs[0].dtype == ir.DataType.INT64 and _only_told_apart(node.outputs[0])


def _only_told_apart(value: ir.Value) -> bool:
    """Whether all that is read of integers is which of some constants they are, or a place."""
    if value.is_graph_output():
        return False
    return all(_is_told_apart(use.node, use.idx) for use in value.uses())


def _is_told_apart(node: ir.Node, index: int) -> bool:
    if is_op(node, "Gather", "GatherElements"):
        return index == 1 or _only_told_apart(node.outputs[0])
    if is_op(node, *MOVES):
        return index == 0 and _only_told_apart(node.outputs[0])
    if not is_op(node, *COMPARISONS):
        return False
    other = node.inputs[1 - index]
    known = None if other is None else constant(other)
    return known is not None and bool((np.abs(known.numpy().astype(np.float64)) < _LAST).all())
