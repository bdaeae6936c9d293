"""Transposes next to attention that OpenVINO's fused kernel takes the wrong way round.

The plugin makes one kernel of the products around a softmax and of the transposes before and after
them. Where two axes that a transpose moves have one size, as heads and queries can, it takes one
for the other: heads = queries = 4, 6, 8, 12 and 16 came out 0.4 to 1.7 of the largest value off,
with the scale on either operand, with masks and without (openvino 2026.4.1). The kernel takes no
transpose of five axes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import attribute, given

_STEPS = frozenset(
    {"Mul", "Div", "Add", "Sub", "Where", "Reshape", "Transpose", "Cast", "Identity"}
)
_REACH = 6
"""Operators between a transpose and the product."""


def equal_axes(node: ir.Node) -> str:
    """Whether a transpose of four axes next to a product swaps axes of one size."""
    x, perm = given(node, 0), attribute(node, "perm", None)
    if x is None or x.shape is None or len(x.shape) != 4 or not isinstance(perm, (list, tuple)):
        return ""
    order = [int(p) for p in perm]
    moved = [x.shape[i] for i in range(4) if order[i] != i]
    if order[0] != 0 or order[1:] == [1, 3, 2]:
        return ""
    sizes = [s for s in moved if isinstance(s, int) and s != 1]
    if len(set(sizes)) == len(sizes):
        return ""
    return "axes of one size are mixed up next to attention" if _is_beside(node) else ""


def _is_beside(node: ir.Node) -> bool:
    """Whether it leads to a product of two computed operands, or comes from one."""
    return _leads(node.outputs[0], _REACH) or _comes(node.inputs[0], _REACH)


def _leads(value: ir.Value, steps: int) -> bool:
    for user, _ in value.uses():
        if _is_product(user):
            return True
        if steps and user.op_type in _STEPS and _leads(user.outputs[0], steps - 1):
            return True
    return False


def _comes(value: ir.Value | None, steps: int) -> bool:
    node = value.producer() if value is not None else None
    if node is None:
        return False
    if _is_product(node):
        return True
    return bool(steps) and node.op_type in _STEPS and _comes(node.inputs[0], steps - 1)


def _is_product(node: ir.Node) -> bool:
    if node.op_type == "Attention":
        return True
    return node.op_type == "MatMul" and all(
        v is not None and v.const_value is None for v in node.inputs
    )


def transpose_five(model: ir.Model, node: ir.Node) -> bool:
    """Transpose with a fifth axis of size 1, which keeps the transpose out of the kernel.

    Given::

        y = Transpose<perm=[0, 2, 1, 3]>(x)

    Result::

        y = Reshape(Transpose<perm=[0, 2, 1, 3, 4]>(Reshape(x, [0, 0, 0, 1, -1])), [0, 0, 0, -1])
    """
    x, perm = given(node, 0), attribute(node, "perm", None)
    if x is None or not isinstance(perm, (list, tuple)):
        return False
    build = builder(model, node)
    order = [4 if p == 3 else int(p) for p in perm]
    order.insert(3, 3)
    wide = build.op("Reshape", x, build.const(np.asarray([0, 0, 0, 1, -1], np.int64), "wide"))
    moved = build.op("Transpose", wide, perm=order)
    build.op("Reshape", moved, build.const(np.asarray([0, 0, 0, -1], np.int64), "narrow"))
    build.commit(model.graph, node)
    return True
