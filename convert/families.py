"""Families of ONNX operators by what they do to values, for whoever follows values."""

from __future__ import annotations

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
