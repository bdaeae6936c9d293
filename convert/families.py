"""Families of ONNX operators by what they do to values, for whoever follows values."""

from __future__ import annotations

import onnx_ir as ir

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that give all elements of their first operand in the same order."""

MOVES = frozenset({
    *(*VIEWS, "Identity", "Transpose", "DepthToSpace", "SpaceToDepth", "ReverseSequence"),
    *("Slice", "Split", "Compress", "Gather", "GatherElements", "GatherND", "Expand", "Tile"),
})  # fmt: skip
"""Operators whose results are elements of their first operand, as they are."""

REDUCTIONS = frozenset({
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
})  # fmt: skip

COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")

RECURRENT = ("LSTM", "GRU", "RNN")

RANDOM = frozenset({
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
    "RandomUniformLike",
})  # fmt: skip
"""Operators that draw."""


def rounds_to_integers(node: ir.Node) -> bool:
    """Whether a run rounds numbers to integers at a node, or may do so."""
    if node.op_type == "MatMulNBits":
        level = node.attributes.get("accuracy_level")
        # From 4 on, ONNX Runtime may round what is multiplied by the weights to 8 bits.
        return level is not None and level.as_int() >= 4
    return node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul")
