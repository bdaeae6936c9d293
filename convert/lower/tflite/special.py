"""Where LiteRT loses NaN, as a constraint on the inputs."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.bundle.values import KEY, NOT_NAN
from edgeinfer.convert.lower.single import walk

_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


_LOSING = frozenset(
    {
        *("ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp", "LpNormalization", "Exp"),
        *("Cosh", "HardSigmoid"),
    }
)
"""Operators that make a number of NaN, by their extremes, or by XNNPACK's exponential."""


def input_constraint(model: ir.Model) -> dict[str, str]:
    """Return ``{"inputs": "not_nan"}`` where a NaN would become a number.

    Each was run alone on LiteRT 2.3.0: MAXIMUM and MINIMUM of two computed tensors keep only a NaN
    that comes first, and REDUCE_MAX and REDUCE_MIN drop it or take what stands behind it. With one
    constant operand, as a bound is, and in RELU it survives.
    """
    if not any(v.dtype in _FLOATS for v in model.graph.inputs):
        return {}
    return {KEY: NOT_NAN} if any(_loses(node) for _, node in walk(model)) else {}


def _loses(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if not any(v is not None and v.dtype in _FLOATS for v in node.inputs):
        return False
    if node.op_type in _LOSING:
        return True
    computed = [v for v in node.inputs if v is not None and v.const_value is None]
    return node.op_type in ("Max", "Min") and len(computed) > 1
