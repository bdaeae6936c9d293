"""Constants in a row that may not become one, because of what lies between them.

``(x + 12582912) - 12582912`` rounds to whole numbers, and ``(x + c) - c`` to the digits that are
left of x compared with c. Who adds up the two constants, or starts the sum of a product with the
first, computes another function.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import constant, is_op
from edgeinfer.records import dataclass
from edgeinfer.types import Array

_FLOATS = frozenset({
    ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE,
})  # fmt: skip

_LEFT = 1 / 256
"""The part of a constant that is left of it where it is taken away."""

_HANDED_ON = frozenset({
    *("Clip", "Flatten", "Identity", "Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
})  # fmt: skip
"""Operators that leave what was added in its place, where it is one number."""

_FAR = 8
"""Operators in a row that are looked at."""


@dataclass(frozen=True, slots=True)
class Affine:
    """``y = scale * x + shift`` by constants, in float64.

    Attributes:
        scale: Factor, of any shape that broadcasts to that of x.
        shift: Constant that is added, likewise.
    """

    scale: Array
    shift: Array


def is_taken_away(node: ir.Node) -> bool:
    """Whether nearly all of the constant that a node adds is subtracted again behind it."""
    return bool(takers(node))


def takers(node: ir.Node) -> list[ir.Node]:
    """List the nodes that subtract nearly all of the constant again that a node adds."""
    step = next(filter(None, (affine_of(node, i) for i in range(len(node.inputs)))), None)
    if step is None or not np.any(step.shift):
        return []
    return list(_takers(node.outputs[0], step.shift, _FAR))


def leaves_range(node: ir.Node) -> bool:
    """Whether a factor and those behind it, all constants, are beyond a float's range together."""
    step = next(filter(None, (affine_of(node, i) for i in range(len(node.inputs)))), None)
    if step is None or np.any(step.shift):
        return False
    return _is_beyond(node.outputs[0], step.scale, _FAR)


def affine_of(node: ir.Node, index: int) -> Affine | None:
    """Return what a node does to one of its operands, where the other is a constant."""
    one, zero = np.ones(()), np.zeros(())
    if node.outputs[0].dtype not in _FLOATS:
        return None
    if is_op(node, "Neg"):
        return Affine(-one, zero)
    if not is_op(node, "Add", "Sub", "Mul", "Div") or index > 1:
        return None
    known = constant(node.inputs[1 - index])
    if known is None or (node.op_type == "Div" and index == 1):
        return None
    c = known.numpy().astype(np.float64)
    if node.op_type == "Div":
        return Affine(1 / c, zero) if np.all(c) else None
    if node.op_type == "Sub" and index == 1:
        return Affine(-one, c)
    return {"Mul": Affine(c, zero), "Add": Affine(one, c), "Sub": Affine(one, -c)}[node.op_type]


def cancels(before: Array, after: Array) -> bool:
    """Whether an addition leaves next to nothing of what was added before."""
    return bool(np.any((before != 0) & (np.abs(after) < np.abs(before) * _LEFT)))


def _takers(value: ir.Value, shift: Array, far: int) -> Iterator[ir.Node]:
    for reader, index in value.uses() if far else ():
        if is_op(reader, "BitCast"):
            # Who looks at the bits wants those of the sum.
            yield reader
        if is_op(reader, *_HANDED_ON) and index == 0 and shift.size == 1:
            step: Affine | None = Affine(np.ones(()), np.zeros(()))
        else:
            step = affine_of(reader, index)
        if step is None:
            continue
        scaled = step.scale * shift
        after = scaled + step.shift
        if cancels(scaled, after):
            yield reader
        else:
            yield from _takers(reader.outputs[0], after, far - 1)


def _is_beyond(value: ir.Value, scale: Array, far: int) -> bool:
    limits = np.finfo(np.float32)
    for reader, index in value.uses() if far else ():
        step = affine_of(reader, index)
        if step is None or np.any(step.shift):
            continue
        after = scale * step.scale
        size = np.abs(after[after != 0])
        if np.any(size > limits.max) or np.any(size < limits.tiny):
            return True
        if _is_beyond(reader.outputs[0], after, far - 1):
            return True
    return False
