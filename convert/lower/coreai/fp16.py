"""Half precision in Core AI assets."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import onnx_ir as ir

from edgeinfer.convert.lower import halve as anywhere
from edgeinfer.errors import Remarks

# fmt: off
_ISLANDS = frozenset({
    "Exp", "Log", "Pow", "Reciprocal", "Sinh", "Cosh", "Tan", "Asinh", "Acosh", "Atanh",
    "Softmax", "LogSoftmax", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "Sum", "Mean", "CumSum", "CumProd", "Det",
    "AveragePool", "GlobalAveragePool", "LpPool", "GlobalLpPool", "RoiAlign", "LpNormalization",
    "BatchNormalization",
    "InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization", "LRN",
    "TopK", "ArgMax", "ArgMin", "GridSample", "DFT", "STFT", "Resize",
    "LSTM", "GRU", "RNN", "If", "Loop", "Scan", "Cast", "CastLike", "ConstantOfShape", "EyeLike",
    "OneHot", "Range", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Mod",
    "Attention", "Softplus", "Mish", "Gelu",
})
# fmt: on
"""Norms, means and softmax are written as arithmetic here, whose sums half precision would spoil;
positions need more than eleven bits; recurrent layers add up their errors."""


def halve(model: ir.Model, keep: AbstractSet[str], notes: Remarks) -> None:
    """Convert the main graph, in place.

    Args:
        model: normalised.
        keep: names of nodes, or of their results, that stay in single precision.
        notes: gets the names of those that did.
    """
    anywhere.halve(model, _ISLANDS, keep | _scaled_sums(model), notes)


def _scaled_sums(model: ir.Model) -> frozenset[str]:
    """Means that are written as a sum and a factor: the sum alone may not fit half precision."""
    found = [
        node
        for node in model.graph
        if node.op_type in ("Mul", "Div")
        and any(v is not None and v.const_value is not None for v in node.inputs)
        and any(_is_sum(v) for v in node.inputs)
    ]
    return frozenset(v.name for n in found for v in n.outputs if v.name)


def _is_sum(value: ir.Value | None) -> bool:
    maker = value.producer() if value is not None else None
    return maker is not None and maker.op_type in ("ReduceSum", "ReduceSumSquare")
