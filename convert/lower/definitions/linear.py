"""Det: the determinant of small matrices, by elimination with the largest element of a column."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body

_MOST = 16
"""Rows of a matrix: each takes a dozen operators."""


def det(node: ir.Node) -> onnx.FunctionProto | None:
    """Eliminate one column after the other; rows are exchanged so that nothing small divides.

    What is left of two rows is ``a d - b c``.
    """
    x = node.inputs[0]
    shape = [] if x is None or x.shape is None else list(x.shape)
    count = shape[-1] if len(shape) > 1 else 0
    if not isinstance(count, int) or not 0 < count <= _MOST or 0 in shape:
        return None
    body = Body(node)
    matrix, found = body.reshape("i0", -1, count, count), ""
    for rows in range(count, 2, -1):
        matrix, pivot = _eliminated(body, matrix, rows)
        found = body.op("Mul", found, pivot) if found else pivot
    if count > 1:
        columns = [_cut(body, matrix, 2, i, i + 1) for i in range(2)]
        (a, c), (b, d) = ([_cut(body, x, 1, i, i + 1) for i in range(2)] for x in columns)
        matrix = body.op("Sub", body.op("Mul", a, d), body.op("Mul", b, c))
    found = body.op("Mul", found, matrix) if found else matrix
    body.give(0, body.op("Reshape", found, body.op("Shape", "i0", end=-2)))
    return body.function()


def _eliminated(body: Body, matrix: str, count: int) -> tuple[str, str]:
    """Return what is left without one row and column, and the factor with its sign."""
    column = _cut(body, matrix, 2, 0, 1)
    place = body.op("ArgMax", body.op("Abs", column), axis=1, keepdims=1)
    rows = body.const(np.arange(count).reshape(1, count, 1))
    chosen = body.op("Equal", rows, place)
    zero, one = (body.op("CastLike", body.const(v), "i0") for v in (0.0, 1.0))
    row = body.op("ReduceSum", body.op("Where", chosen, matrix, zero), body.const([1]), keepdims=1)
    # The first row takes the place of the chosen one.
    first, rest = _cut(body, matrix, 1, 0, 1), _cut(body, matrix, 1, 1, count)
    rest = body.op("Where", _cut(body, chosen, 1, 1, count), first, rest)
    pivot = _cut(body, row, 2, 0, 1)
    stays = body.op("Equal", place, body.const(np.zeros((1, 1, 1), np.int64)))
    factor = body.op("Where", stays, pivot, body.op("Neg", pivot))
    # A column of zeros makes the whole product zero, whatever is left.
    divisor = body.op("Where", body.op("Equal", pivot, zero), one, pivot)
    share = body.op("Div", _cut(body, rest, 2, 0, 1), divisor)
    taken = body.op("Mul", share, _cut(body, row, 2, 1, count))
    return body.op("Sub", _cut(body, rest, 2, 1, count), taken), factor


def _cut(body: Body, x: str, axis: int, start: int, end: int) -> str:
    ends = (body.const([v]) for v in (start, end, axis))
    return body.op("Slice", x, *ends)
