"""MatMul, Gemm and ReduceMean of integers, in products, sums and quotients, which are exact."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, attribute, input_at, sizes

_LARGEST = 1 << 20
"""Products that a product of matrices may be spread to, where its sizes are known."""


def matmul(node: ir.Node) -> onnx.FunctionProto | None:
    """Multiply every element with every other, and sum: ``sum(a[..., i, k, 1] * b[..., 1, k, j])``.

    None of floats, of unknown ranks, and of what would be more than a million products.
    """
    a, b = input_at(node, 0), input_at(node, 1)
    if not _is_whole(node) or a is None or b is None or a.shape is None or b.shape is None:
        return None
    made, shared = sizes(node.outputs[0]), a.shape[-1] if len(a.shape) else 0
    if made is not None and isinstance(shared, int) and math.prod(made) * shared > _LARGEST:
        return None
    body = Body(node)
    left = body.op("Unsqueeze", "i0", body.const([0])) if len(a.shape) == 1 else "i0"
    right = body.op("Unsqueeze", "i1", body.const([1])) if len(b.shape) == 1 else "i1"
    left, right = (body.op("Unsqueeze", v, body.const([at])) for v, at in ((left, -1), (right, -3)))
    gone = [-2] if len(a.shape) > 1 else [-3, -2]
    gone += [-1] if len(b.shape) == 1 else []
    total = body.op("ReduceSum", body.op("Mul", left, right), body.const(gone), keepdims=0)
    body.give(0, total)
    return body.function()


def gemm(node: ir.Node) -> onnx.FunctionProto | None:
    """Multiply matrices, then by whole factors, and add; None of floats and of other factors."""
    alpha, beta = (attribute(node, name, 1.0) for name in ("alpha", "beta"))
    if not _is_whole(node) or any(f != round(f) for f in (alpha, beta)):
        return None
    body = Body(node)
    a, b = (
        body.op("Transpose", f"i{i}", perm=[1, 0]) if attribute(node, name, 0) else f"i{i}"
        for i, name in enumerate(("transA", "transB"))
    )
    made = _times(body, body.op("MatMul", a, b), alpha)
    added = body.given(2)
    if added and beta:
        made = body.op("Add", made, _times(body, added, beta))
    body.give(0, made)
    return body.function()


def _times(body: Body, x: str, factor: float) -> str:
    if factor == 1:
        return x
    return body.op("Mul", x, body.op("CastLike", body.const(np.array(int(factor), np.int64)), "i0"))


def reduce_mean(node: ir.Node) -> onnx.FunctionProto | None:
    """Divide the sum by how many elements it is of, cut toward zero; None of floats."""
    if not _is_whole(node):
        return None
    body, keep = Body(node), attribute(node, "keepdims", 1)
    noop = attribute(node, "noop_with_empty_axes", 0)
    given = ["i0"] + [body.given(1)] * bool(body.given(1))
    total = body.op("ReduceSum", *given, keepdims=keep, noop_with_empty_axes=noop)
    body.give(0, body.op("Div", total, body.op("CastLike", _count(body, node, total), "i0")))
    return body.function()


def _count(body: Body, node: ir.Node, total: str) -> str:
    """Return how many elements each sum is of."""
    before, after = sizes(node.inputs[0]), sizes(node.outputs[0])
    if before is None or after is None or not math.prod(after):
        return body.op("Div", body.op("Size", "i0"), body.op("Size", total))
    return body.const(np.array(math.prod(before) // math.prod(after), np.int64))


def _is_whole(node: ir.Node) -> bool:
    x = input_at(node, 0)
    return x is not None and x.dtype is not None and x.dtype.is_integer()
