"""Models that contradict themselves: axes that an operand does not have."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from edgeinfer.convert.families import REDUCTIONS
from edgeinfer.convert.passes.infra import attr, constant, dims_of, input_at, ints, is_op, rank
from edgeinfer.errors import SourceError

# By operator, the value of ``axis`` where it is left out.
_AXIS = {
    **{"ArgMax": 0, "ArgMin": 0, "Gather": 0, "GatherElements": 0, "ScatterElements": 0},
    **{"Concat": 0, "Hardmax": -1, "LogSoftmax": -1, "LpNormalization": -1, "Softmax": -1},
    **{"Split": 0, "TopK": -1},
}

# By operator, the operand that names axes.
_AXES = {
    **dict.fromkeys(REDUCTIONS, 1),
    **{"CumSum": 1, "Squeeze": 1, "Pad": 3, "Slice": 3},
}

_WEIGHTED = ("Conv", "ConvTranspose")


def check_axes(graph: Iterable[ir.Node]) -> None:
    """Look at every operator whose axes the layout depends on.

    Raises:
        SourceError: says which node, and what it wants of what.
    """
    for node in graph:
        x = input_at(node, 0)
        size = rank(x)
        if x is None or size is None:
            continue
        found = _fault(node, x, size)
        if found:
            shape = ", ".join(str(d) for d in dims_of(x))
            raise SourceError(
                f"the model contradicts itself: {node.op_type} {node.name!r}: {found}, "
                f"but its operand {x.name!r} is [{shape}]"
            )


def _fault(node: ir.Node, x: ir.Value, size: int) -> str:
    if is_op(node, "Transpose"):
        perm = attr(node, "perm")
        fits = perm is None or sorted(perm) == list(range(size))
        return "" if fits else f"perm={list(perm)}"
    if is_op(node, *_AXIS):
        axis = attr(node, "axis", _AXIS[node.op_type])
        return "" if -size <= axis < size or not size else f"axis={axis}"
    if is_op(node, *_AXES):
        axes = ints(input_at(node, _AXES[node.op_type])) or []
        return "" if all(-size <= a < size for a in axes) or not size else f"axes={axes}"
    if is_op(node, *_WEIGHTED) and constant(node.inputs[1]) is not None:
        wanted = rank(node.inputs[1])
        return "" if wanted == size else f"weights of {wanted} axes"
    return ""
