"""Half precision on ONNX Runtime.

Its CPU provider computes most half-precision operators in single precision between casts of its
own; what is gained there is the size of the file and of the weights in memory, on devices with
half-precision units also time. There each cast costs as much as a small operator: what its kernels
compute well is data of the profile, and nothing else is an island.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

import onnx_ir as ir

from edgeinfer.convert.lower import halve as anywhere
from edgeinfer.errors import Remarks

# fmt: off
ISLANDS = frozenset({
    "Exp", "Log", "Pow", "Reciprocal", "Sinh", "Cosh", "Tan", "Softplus", "Mish", "LogSoftmax",
    "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare", "Sum", "Mean", "CumSum", "CumProd", "Det",
    "GlobalAveragePool", "GlobalLpPool", "LpPool", "LpNormalization", "LayerNormalization",
    "RMSNormalization", "GroupNormalization", "InstanceNormalization",
    "MeanVarianceNormalization", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss",
    "NonMaxSuppression", "TopK", "ArgMax", "ArgMin", "RoiAlign", "GridSample", "AffineGrid",
    "Resize", "Upsample", "DFT", "STFT", "MelWeightMatrix", "HannWindow", "HammingWindow",
    "BlackmanWindow", "LSTM", "GRU", "RNN", "If", "Loop", "Scan",
    "Cast", "CastLike", "ConstantOfShape", "EyeLike", "OneHot", "Range", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
    "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement",
})
# fmt: on
"""Sums, exponentials and powers overflow or lose their small terms; positions and indices need more
than eleven bits; the rest makes or takes a type by attribute, or holds a graph of its own."""


_LEAST = 2.0**-24
"""The smallest half above zero: every other half is above it, so that as a lower bound it moves
zero alone, as any smaller bound does."""

_ROUNDINGS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def halve(
    model: ir.Model,
    keep: AbstractSet[str],
    notes: Remarks,
    *,
    joined: bool = False,
    ops: AbstractSet[str] = frozenset(),
) -> None:
    """Convert the main graph, in place; nodes named in ``keep`` stay in single precision.

    Args:
        model: normalised.
        keep: names of nodes.
        notes: gets what stayed.
        joined: roundings will read and give half precision too, so that what stands between two
            of them need not stay in single precision.
        ops: operators that the engine computes so, adding up in single precision; empty for those
            that any engine computes well enough.
    """
    bridges = _ROUNDINGS if joined else frozenset[str]()
    if not ops:
        anywhere.halve(model, ISLANDS, keep, notes, bridges=bridges)
        return
    islands = {n.op_type for n in model.graph if n.op_type not in ops}
    kind = replace(anywhere.FP16, long_sum=0, least=_LEAST)
    anywhere.halve(model, islands, keep, notes, bridges=bridges, kind=kind)
