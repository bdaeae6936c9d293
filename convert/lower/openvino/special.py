"""Where OpenVINO's CPU plugin loses NaN, infinity and the sign of zero."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.bundle.values import (
    BELOW_INFINITY,
    FINITE,
    KEY,
    LEVELS,
    NOT_INFINITE,
    NOT_NAN,
    stricter,
)
from edgeinfer.convert.lower.nan import FLOATS, WEIGHED, reached
from edgeinfer.convert.lower.openvino.rewrites import SETTLED
from edgeinfer.convert.lower.single import walk
from edgeinfer.convert.lower.zeros import Form, of_sum


def _ops(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Each operator was run alone with NaN and both infinities and compared with ONNX Runtime,
# openvino 2026.4.1. What is in no list was not, or loses infinity too.
_MOVES = _ops("""
    And Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather GatherElements
    GatherND Identity If Loop Not Or Pad Range Reshape ReverseSequence Scan ScatterElements
    ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where Xor
""")
_RIGHT = _ops("""
    Abs Acos Acosh Add Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Conv Cos
    Cosh CumSum Div Einsum Elu Equal Erf Floor GRU Gemm InstanceNormalization IsInf IsNaN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log MatMul Mean Mish Mul Neg PRelu Pow
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceMean ReduceProd ReduceSum ReduceSumSquare
    Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh
""")
_LOSE_NAN = _ops("""
    ArgMax ArgMin Celu Clip Exp GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Hardmax
    Max MaxPool Min ReduceLogSumExp Relu TopK
""")
# A row with one infinity is zeros there and NaN by the standard.
_TAKE_NEGATIVE = frozenset({"Attention", "Gelu", "LogSoftmax", "Softmax"})
_LEVELS = {
    **dict.fromkeys(_MOVES | _RIGHT, ""),
    **dict.fromkeys(_LOSE_NAN, NOT_NAN),
    **dict.fromkeys(_TAKE_NEGATIVE, BELOW_INFINITY),
}
# float64 is computed in float32, and infinity comes out as its largest number.
_NARROW = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_ORDER = ("", *LEVELS)


def input_constraint(model: ir.Model) -> dict[str, str]:
    """Return ``{"inputs": level}`` for the strictest operator; nothing where all are right."""
    if not any(v.dtype in FLOATS for v in model.graph.inputs):
        return {}
    missing, filled = reached(model)
    levels = {_level(n) for _, n in walk(model) if n.graph is not model.graph or n in missing}
    if any(v.dtype == ir.DataType.DOUBLE for v in (*model.graph.inputs, *model.graph.outputs)):
        levels.add(FINITE)
    level = max(levels, key=_ORDER.index, default="")
    if any(_level(n) for n in filled):
        level = stricter(level, NOT_INFINITE)
    return {KEY: level} if level else {}


def loses_nan(node: ir.Node) -> bool:
    """Whether the plugin makes a number of NaN."""
    return _level(node) == NOT_NAN or node.op_type in ("ReduceMax", "ReduceMin")


def _level(node: ir.Node) -> str:
    if node.domain or WEIGHED in node.meta:
        return FINITE
    if node.op_type in ("ReduceMax", "ReduceMin"):
        return NOT_NAN if SETTLED in node.meta else FINITE
    if node.op_type in ("Cast", "CastLike"):
        return _cast(node)
    if any(v.dtype == ir.DataType.DOUBLE for v in node.outputs):
        return FINITE
    floats = any(v is not None and v.dtype in (*FLOATS, None) for v in node.inputs)
    return _LEVELS.get(node.op_type, FINITE) if floats else ""


def _cast(node: ir.Node) -> str:
    source, to = node.inputs[0], node.attributes.get("to")
    result = node.outputs[0].dtype if to is None else ir.DataType(to.as_int())
    if source is not None and source.dtype is not None and source.dtype not in FLOATS:
        return ""
    return "" if result in _NARROW else FINITE


def zero_form(node: ir.Node) -> Form:
    """How zeros get back a sign that is lost (2026.4.1)."""
    if node.op_type in ("Add", "Sub"):
        return of_sum(node)
    return "plus" if node.op_type in ("ThresholdedRelu", "Shrink") else ""
