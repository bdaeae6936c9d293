"""Where LiteRT loses NaN and the sign of zero."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.nan import FLOATS
from edgeinfer.convert.lower.rules import attribute
from edgeinfer.convert.lower.zeros import Form, of_remainder

_LOSING = frozenset({
    *("ArgMax", "ArgMin", "AveragePool", "Cosh", "Exp", "GlobalMaxPool", "HardSigmoid", "Hardmax"),
    *("LRN", "LpNormalization", "MaxPool", "MaxRoiPool", "ReduceL2", "ReduceLogSumExp"),
    *("ReduceMax", "ReduceMin", "TopK"),
})  # fmt: skip
"""Operators that make a number of NaN, by their extremes, or by XNNPACK's exponential."""


def loses_nan(node: ir.Node) -> bool:
    """Whether a NaN becomes a number, or a place that is not its own.

    Each was run alone on LiteRT 2.3.0: MAXIMUM and MINIMUM of two computed tensors keep only a NaN
    that comes first, pools, REDUCE_MAX and REDUCE_MIN drop it or take what stands behind it. Behind
    a constant operand, as a bound is, and in RELU it survives.
    """
    if node.domain not in ("", "ai.onnx"):
        return False
    if not any(v is not None and v.dtype in FLOATS for v in node.inputs):
        return False
    if node.op_type in ("ScatterElements", "ScatterND"):
        return attribute(node, "reduction", "none") in ("max", "min")
    if node.op_type == "RoiAlign":
        return attribute(node, "mode", "avg") == "max"
    if node.op_type in ("Clip", "Max", "Min"):
        computed = [v for v in node.inputs if v is not None and v.const_value is None]
        return len(computed) > 1
    return node.op_type in _LOSING


def weighs(node: ir.Node) -> bool:
    """Whether it is written as a product with weights, or as a sum of elements by weights."""
    if node.op_type != "Resize" or attribute(node, "mode", "nearest") == "nearest":
        return False
    return attribute(node, "mode", "") == "cubic" or bool(attribute(node, "antialias", 0))


def zero_form(node: ir.Node) -> Form:
    """How zeros get back a sign that is lost: XNNPACK's NEG is a difference (2.3.0)."""
    if node.op_type == "Mod":
        return of_remainder(node)
    signed = node.op_type in ("Asinh", "Atanh", "Sin", "Sinh", "Tan")
    return "product" if node.op_type == "Neg" else "operand" if signed else ""
