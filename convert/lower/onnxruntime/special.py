"""Where ONNX Runtime's CPU provider loses NaN and the sign of zero."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.lower.nan import FLOATS
from edgeinfer.convert.lower.rules import attribute
from edgeinfer.convert.lower.zeros import Form

_LOSING = frozenset({
    *("ArgMax", "ArgMin", "GlobalMaxPool", "Hardmax", "LRN", "MaxPool", "MaxRoiPool"),
    *("ReduceMax", "ReduceMin"),
})  # fmt: skip
"""Operators that keep a NaN only where it stands first, or have it in what lies next to it.

Each was run alone (1.32). Of two or more tensors ``Max`` and ``Min`` keep it.
"""


def loses_nan(node: ir.Node) -> bool:
    """Whether a NaN becomes a number, or a place that is not its own."""
    if node.domain or not any(v is not None and v.dtype in FLOATS for v in node.inputs):
        return False
    if node.op_type in ("ScatterElements", "ScatterND"):
        return attribute(node, "reduction", "none") in ("max", "min")
    if node.op_type == "RoiAlign":
        return attribute(node, "mode", "avg") == "max"
    return node.op_type in _LOSING


def zero_form(node: ir.Node) -> Form:
    """How zeros get back a sign that is lost: what is chosen is joined by what is not zero."""
    return "chosen" if node.op_type == "Where" else ""
