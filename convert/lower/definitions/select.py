"""Compress and Unique: elements that a condition, or their neighbour when sorted, lets through."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at, sizes


def compress(node: ir.Node) -> onnx.FunctionProto | None:
    """Gather what a known condition chooses."""
    condition = input_at(node, 1)
    if condition is None or condition.const_value is None:
        return None
    if node.outputs[0].is_graph_output() and sizes(node.outputs[0]) is None:
        # A result of the model whose size is declared as open stays so.
        return None
    body = Body(node)
    places = body.const([int(i) for i in np.flatnonzero(condition.const_value.numpy())])
    axis = attribute(node, "axis", None)
    x = "i0" if axis is not None else body.reshape("i0", -1)
    body.give(0, body.op("Gather", x, places, axis=0 if axis is None else axis))
    return body.function()


def unique(node: ir.Node) -> onnx.FunctionProto | None:
    """Sort, and keep what differs from the element before; of sorted results without an axis."""
    shape = sizes(node.inputs[0])
    if shape is None or "axis" in node.attributes or not attribute(node, "sorted", 1):
        return None
    count = math.prod(shape)
    if not count:
        return None
    body = Body(node)
    flat = body.reshape("i0", -1)
    if count == 1:
        body.give(0, flat)
        for index in range(1, len(node.outputs)):
            body.give(index, body.const([int(index == 3)]))
        return body.function()
    rows, order = body.ops("TopK", 2, flat, body.const([count]), axis=0, largest=0, sorted=1)
    before, after = _cut(body, rows, 0, count - 1), _cut(body, rows, 1, count)
    other = body.op("Not", body.op("Equal", before, after))
    differs = body.op("Concat", body.const(np.ones(1, np.bool_)), other, axis=0)
    wanted = [bool(v.name) for v in node.outputs] + [False] * 3
    body.give(0, body.op("Compress", rows, differs, axis=0))
    if wanted[1]:
        body.give(1, body.op("Compress", order, differs, axis=0))
    whole = body.op("Cast", differs, to=ir.DataType.INT64.value)
    if wanted[2]:
        running = body.op("CumSum", whole, body.const(np.array(0)))
        rank = body.op("Sub", running, body.const([1]))
        zeros = body.const(np.zeros(count, np.int64))
        body.give(2, body.op("ScatterElements", zeros, order, rank, axis=0))
    if wanted[3]:
        starts = body.op("Compress", body.const(np.arange(count)), differs, axis=0)
        later = _cut(body, starts, 1, count)
        ends = body.op("Concat", later, body.const([count]), axis=0)
        body.give(3, body.op("Sub", ends, starts))
    return body.function()


def _cut(body: Body, x: str, start: int, end: int) -> str:
    return body.op("Slice", x, *(body.const([v]) for v in (start, end, 0)))
