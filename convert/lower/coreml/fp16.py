"""Half precision in ML Programs.

The Neural Engine computes in half precision only, and leaves everything else to the other units. So
fewer operators stay in single precision than elsewhere: those whose results or inner sums leave
what half precision holds, and positions. Norms, means, softmax, pools and resizing are one operator
each to Core ML and keep their sums to themselves.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import onnx_ir as ir

from edgeinfer.convert.lower import halve as anywhere
from edgeinfer.errors import Notes

# fmt: off
_ISLANDS = frozenset({
    "Exp", "Log", "Pow", "Reciprocal", "Sinh", "Cosh", "Tan", "Asinh", "Acosh", "Atanh",
    "LogSoftmax", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare", "Sum", "Mean", "CumSum", "CumProd", "Det",
    "GlobalLpPool", "LpPool", "LpNormalization", "RMSNormalization", "LRN",
    "MeanVarianceNormalization", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
    "NonMaxSuppression", "TopK", "ArgMax", "ArgMin", "RoiAlign", "GridSample", "AffineGrid",
    "DFT", "STFT", "MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow",
    "LSTM", "GRU", "RNN", "If", "Loop", "Scan", "Cast", "CastLike", "ConstantOfShape", "EyeLike",
    "OneHot", "Range", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Mod",
})
# fmt: on
"""Sums, exponentials and powers overflow or lose their small terms; positions need more than eleven
bits; recurrent layers add up their errors; the rest makes or takes a type by attribute, or holds a
graph of its own. What some unit is known to get wrong beyond that is in ``quirks``."""


def halve(model: ir.Model, keep: AbstractSet[str], notes: Notes) -> None:
    """Convert the main graph, in place; nodes named in ``keep`` stay in single precision."""
    anywhere.halve(model, _ISLANDS, keep, notes)
