"""Which products are added to something, in the graph that is lowered."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.families import MOVES
from edgeinfer.convert.passes.infra import is_op

_SUMS = ("Add", "Sub", "Sum", "Mean")
_KEPT = (*MOVES, "Abs", "Clip", "Concat", "Max", "Min", "Neg", "Pad", "Relu", "Where")
"""Operators that give elements on as they are, or with another sign."""

_DEEP = 8


def is_added(node: ir.Node | None, depth: int = _DEEP) -> bool:
    """Whether something is added to what a node gives, moved or not."""
    if node is None:
        return False
    readers = [reader for value in node.outputs for reader, _ in value.uses()]
    if any(is_op(reader, *_SUMS) for reader in readers):
        return True
    return depth > 0 and any(is_added(r, depth - 1) for r in readers if is_op(r, *_KEPT))
