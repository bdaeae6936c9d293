"""Compress and Unique: elements that a condition, or their neighbour when sorted, lets through."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at, sizes

_INT64, _FLOAT = ir.DataType.INT64.value, ir.DataType.FLOAT.value

_END = np.iinfo(np.int64).max

_PAIRS = 1 << 24
"""Comparisons that slices of a Unique may need; single precision counts so far."""


def compress(node: ir.Node) -> onnx.FunctionProto | None:
    """Gather what a condition chooses, known now or in a run."""
    condition = input_at(node, 1)
    if condition is None:
        return None
    body = Body(node)
    known = condition.const_value
    if known is None or (node.outputs[0].is_graph_output() and sizes(node.outputs[0]) is None):
        # A result of the model whose size is declared as open stays so.
        positions = body.reshape(body.op("NonZero", "i1"), -1)
    else:
        positions = body.const([int(i) for i in np.flatnonzero(known.numpy())])
    axis = attribute(node, "axis", None)
    x = "i0" if axis is not None else body.reshape("i0", -1)
    body.give(0, body.op("Gather", x, positions, axis=0 if axis is None else axis))
    return body.function()


def unique(node: ir.Node) -> onnx.FunctionProto | None:
    """Sort, and keep what differs from the element before; or compare each slice with each."""
    shape = sizes(node.inputs[0])
    axis, in_order = attribute(node, "axis", None), attribute(node, "sorted", 1)
    by_sorting, body = axis is None and in_order, Body(node)
    if shape is None:
        if by_sorting:
            _sorted(body, node, body.reshape(body.op("Size", "i0"), 1))
        elif node.inputs[0] is None or node.inputs[0].shape is None:
            return None
        else:
            _compared(body, node, None, axis, in_order)
        return body.function()
    count = math.prod(shape)
    if not count:
        return None
    if count == 1:
        body.give(0, "i0" if axis is not None else body.reshape("i0", -1))
        for index in range(1, len(node.outputs)):
            body.give(index, body.const([int(index == 3)]))
    elif by_sorting:
        _sorted(body, node, body.const([count]))
    else:
        rows = count if axis is None else shape[axis]
        if rows * count > _PAIRS:
            return None
        _compared(body, node, rows, axis, in_order)
    return body.function()


def _wanted(node: ir.Node) -> list[bool]:
    """Which results anyone reads."""
    return [*(bool(v.name) for v in node.outputs), False, False, False]


def _sorted(body: Body, node: ir.Node, count: str) -> None:
    """Sort the elements, ``count`` of them; the first of its kind differs from the one before."""
    flat = body.reshape("i0", -1)
    rows, order = body.ops("TopK", 2, flat, count, axis=0, largest=0, sorted=1)
    before, after = (_cut(body, rows, *ends) for ends in ((0, -1), (1, _END)))
    other = body.op("Not", body.op("Equal", before, after))
    differs = body.op("Concat", body.const(np.ones(1, np.bool_)), other, axis=0)
    wanted, positions = _wanted(node), body.reshape(body.op("NonZero", differs), -1)
    body.give(0, body.op("Gather", rows, positions, axis=0))
    if wanted[1]:
        body.give(1, body.op("Gather", order, positions, axis=0))
    if wanted[2]:
        running = body.op("CumSum", body.op("Cast", differs, to=_INT64), body.const(np.array(0)))
        rank, zeros = body.op("Sub", running, body.const([1])), body.op("Sub", order, order)
        body.give(2, body.op("ScatterElements", zeros, order, rank, axis=0))
    if wanted[3]:
        following = body.op("Concat", _cut(body, positions, 1, _END), count, axis=0)
        body.give(3, body.op("Sub", following, positions))


def _compared(body: Body, node: ir.Node, rows: int | None, axis: int | None, in_order: int) -> None:
    """Number slices by those before them: among the first of their kind, or in their order."""
    source = input_at(node, 0)
    rank = len(source.shape or ()) if source is not None else 0
    x = "i0" if axis is not None else body.reshape("i0", -1)
    at = 0 if axis is None else axis % rank
    perm = [at, *(a for a in range(rank) if a != at)]
    lying = body.op("Transpose", x, perm=perm) if at else x
    # A zero keeps the size.
    lying = body.reshape(lying, *((rows or 0, -1) if axis is not None else (-1, 1)))
    mine, other = (body.op("Unsqueeze", lying, body.const([a])) for a in (1, 0))
    equal = body.op("Cast", body.op("Equal", mine, other), to=_FLOAT)
    same = body.op("ReduceMin", equal, body.const([2]), keepdims=0)
    first = body.op("ArgMax", same, axis=1, keepdims=0)
    count, most = _positions(body, lying, rows), rows or 1 << 24
    is_first = body.op("Equal", first, count)
    if in_order:
        # The first place where two differ decides; where none does, the first one says no.
        place = body.op("ArgMin", equal, axis=2, keepdims=1)
        below = body.op("Cast", body.op("Less", mine, other), to=_FLOAT)
        below = body.op("GatherElements", below, place, axis=2)
        below = body.op("Squeeze", below, body.const([2]))
        chosen = body.op("Unsqueeze", body.op("Cast", is_first, to=_FLOAT), body.const([1]))
        earlier = body.op("Mul", below, chosen)
        number = body.op("ReduceSum", earlier, body.const([0]), keepdims=0)
        number = _counted(body, number, most)
        none = body.op("Sub", body.op("Sub", count, count), body.const([1]))
        listed = body.op("ScatterElements", none, number, first, axis=0)
        kept = body.op("Greater", listed, none)
    else:
        running = body.op("CumSum", body.op("Cast", is_first, to=_INT64), body.const(np.array(0)))
        number = body.op("Gather", body.op("Sub", running, body.const([1])), first, axis=0)
        listed, kept = count, is_first
    indices = body.op("Compress", listed, kept, axis=0)
    body.give(0, body.op("Gather", x, indices, axis=at))
    wanted = _wanted(node)
    if wanted[1]:
        body.give(1, indices)
    if wanted[2]:
        body.give(2, number)
    if wanted[3]:
        many = body.op("ReduceSum", same, body.const([1]), keepdims=0)
        body.give(3, body.op("Gather", _counted(body, many, most), indices, axis=0))


def _positions(body: Body, x: str, rows: int | None) -> str:
    """Count along the first axis, from 0 on."""
    if rows is not None:
        return body.const(np.arange(rows))
    size = body.op("Squeeze", body.op("Shape", x, end=1), body.const([0]))
    return body.op("Range", body.const(np.array(0)), size, body.const(np.array(1)))


def _counted(body: Body, x: str, most: int) -> str:
    """Whole numbers of floats, with the bound that a format without int64 asks for."""
    held = body.op("Clip", x, body.const(0.0), body.const(float(most)))
    return body.op("Cast", held, to=_INT64)


def _cut(body: Body, x: str, start: int, end: int) -> str:
    return body.op("Slice", x, *(body.const([v]) for v in (start, end, 0)))
