"""Made-up integers that ordinary ones say nothing of: ids, time stamps, negatives, ends of types.

Integers of which nothing else is known are mostly ids and times, beyond what float32 counts to.
They are made up where the graph only computes with them: what bounds sizes or indices stays small.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edgeinfer.types import Array, Feeds

_COUNTED = (
    *(1790000031, 1790000001, 16777217, 16777219, 123456789, 33554433, 5, 0, 1790000123456),
    *(1 << 31, (1 << 53) + 1),
)
"""Time stamps in seconds and milliseconds, and what has one digit more than float32, or float64."""

_COMPUTING = frozenset({
    *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Max", "Min", "Clip", "Relu"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Where", "Cast", "Identity"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift", "ReduceMax", "ReduceMin"),
    *("ReduceSum", "ArgMax", "ArgMin", "Concat", "Flatten", "Transpose", "Unsqueeze", "Squeeze"),
})  # fmt: skip
"""Operators that only compute with integers; an axis, a shape or an index is none of their data."""


def free_integers(model: ir.Model) -> frozenset[str]:
    """Return the integer inputs that only arithmetic reads, by name."""
    whole = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64)
    return frozenset(
        v.name for v in model.graph.inputs if v.name and v.dtype in whole and _is_computed(v)
    )


def _is_computed(value: ir.Value) -> bool:
    seen: set[int] = set()
    left = [value]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for node, index in value.uses():
            if node.domain or node.op_type not in _COMPUTING or not _is_data(node, index):
                return False
            made = node.outputs[0]
            if made.dtype is None or made.dtype in _INTEGERS:
                left.append(made)
    return True


def _is_data(node: ir.Node, index: int) -> bool:
    """Whether an operand is data, and no axis or divisor; nothing may be divided by -1 either."""
    if node.op_type in ("Div", "Mod"):
        divisor = node.inputs[1].const_value if node.inputs[1] is not None else None
        return index == 0 and divisor is not None and not np.any(np.isin(divisor.numpy(), (0, -1)))
    return index == 0 or node.op_type not in ("Unsqueeze", "Squeeze", "ReduceSum")


_INTEGERS = frozenset(
    d for d in ir.DataType if d.name.startswith(("INT", "UINT")) and not d.name.endswith("4")
)


def unusual(base: Feeds, computed: frozenset[str]) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield feeds with a name for each kind.

    Args:
        base: feeds that the model runs with.
        computed: integer inputs that only arithmetic reads.
    """
    wide = {n: _counted(a) for n, a in base.items() if n in computed and a.ndim}
    if wide:
        yield "ids", {**base, **wide}
        yield "ends", {**base, **{n: _ends(a) for n, a in wide.items()}}


def _counted(like: Array) -> Array:
    limits = np.iinfo(like.dtype)
    values = [v for v in _COUNTED if v <= limits.max]
    if limits.min < 0:
        values += [-v for v in values]
    return np.resize(np.array(values, like.dtype), like.shape)


def _ends(like: Array) -> Array:
    limits = np.iinfo(like.dtype)
    near = [limits.max, limits.min, limits.max - 1, limits.min + 1, 1, 0]
    return np.resize(np.array(near, like.dtype), like.shape)
