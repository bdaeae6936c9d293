"""Padding for maxima in a form that XNNPACK takes: it takes PAD, but not PADV2.

A maximum must not see its padding. Zeros will do where nothing is below zero, or where the result
is clamped there; elsewhere the edge is repeated, which every window over the padding has anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.convert.lower.tflite.graph import Graph, Op, Tensor
from edgeinfer.convert.lower.tflite.simplify import Wiring, part_of

_NOT_NEGATIVE = frozenset({"ABS", "EXP", "LOGISTIC", "RELU", "RELU6", "SOFTMAX", "SQRT", "SQUARE"})

_KEEPS_SIGN = frozenset(
    {"AVERAGE_POOL_2D", "CONCATENATION", "MAX_POOL_2D", "PAD", "RESHAPE", "TRANSPOSE"}
)


def pad_for_maxima(graph: Graph) -> None:
    """Rewrite, in place, the padding with minus infinity before MAX_POOL_2D."""
    wiring = Wiring(graph)
    ops: list[Op] = []
    for op in graph.ops:
        if op.code != "PADV2" or not _is_lowest(op.inputs[2]):
            ops.append(op)
            continue
        readers = wiring.readers.get(id(op.outputs[0]), [])
        x = op.inputs[0]
        if not readers or x is None or any(r.code != "MAX_POOL_2D" for r in readers):
            ops.append(op)
        elif _is_positive(wiring, x) or all(_clamps(r) for r in readers):
            ops.append(Op("PAD", op.inputs[:2], op.outputs))
        else:
            ops.extend(_with_edges(graph, op, x) or [op])
    graph.ops = ops


def _with_edges(graph: Graph, op: Op, x: Tensor) -> list[Op]:
    """Repeat the first and last element of each axis; nothing where sizes are open."""
    pads = op.inputs[1]
    if pads is None or pads.data is None or None in x.shape[1:]:
        return []
    made: list[Op] = []
    amounts = [(int(lo), int(hi)) for lo, hi in pads.data]
    padded = [axis for axis, amount in enumerate(amounts) if any(amount)]
    for axis in padded:
        before, after = amounts[axis]
        last = (x.shape[axis] or 1) - 1
        first = _edge(graph, made, x, axis, 0) if before else x
        final = _edge(graph, made, x, axis, last) if after else x
        shape = [*x.shape]
        shape[axis] = last + 1 + before + after
        out = op.outputs[0] if axis == padded[-1] else graph.tensor(shape, x.dtype)
        parts: list[Tensor | None] = [*[first] * before, x, *[final] * after]
        made.append(Op("CONCATENATION", parts, [out], {"axis": axis, **_PLAIN}))
        x = out
    # Delegates take up to four operands.
    return made if all(len(o.inputs) <= 4 for o in made) else []


_PLAIN = {"fused_activation_function": 0}


def _edge(graph: Graph, made: list[Op], x: Tensor, axis: int, at: int) -> Tensor:
    shape = [1 if i == axis else s for i, s in enumerate(x.shape)]
    edge = graph.tensor(shape, x.dtype)
    begin = [at if i == axis else 0 for i in range(x.rank)]
    made.append(part_of(graph, x, begin, shape, edge))
    return edge


def _starts_at_zero(tensor: Tensor | None) -> bool:
    """Whether the least integer stands for zero."""
    q = None if tensor is None else tensor.quantization
    if tensor is None or q is None or tensor.dtype.kind not in "iu":
        return False
    return bool(np.all(q.zero_point == np.iinfo(tensor.dtype).min))


def _clamps(op: Op) -> bool:
    """Whether an activation inside the operator leaves nothing below zero."""
    return op.options.get("fused_activation_function", 0) in {1, 3}


def _is_lowest(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.data is not None and bool(np.all(np.isneginf(tensor.data)))


def _is_positive(wiring: Wiring, tensor: Tensor | None, depth: int = 16) -> bool:
    """Whether no value is below zero."""
    op: Any = None if tensor is None else wiring.makers.get(id(tensor))
    if op is None or depth == 0:
        return False
    if op.code in _NOT_NEGATIVE or _clamps(op):
        return True
    if op.code == "DEQUANTIZE":
        return _starts_at_zero(op.inputs[0])
    if op.code not in _KEEPS_SIGN:
        return False
    data = op.inputs if op.code == "CONCATENATION" else op.inputs[:1]
    return all(_is_positive(wiring, i, depth - 1) for i in data)
