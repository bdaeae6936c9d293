"""Where OpenVINO's CPU plugin loses NaN and infinity, as a constraint on the inputs."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.bundle.values import BELOW_INFINITY, FINITE, KEY, LEVELS, NOT_NAN
from edgeinfer.convert.lower.openvino.rewrites import SETTLED
from edgeinfer.convert.lower.single import has_subgraph, walk


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
    Abs Acos Acosh Add ArgMax Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Conv Cos
    Cosh CumSum Div Einsum Elu Equal Erf Floor GRU Gemm InstanceNormalization IsInf IsNaN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log MatMul MaxPool Mean Mish Mul Neg PRelu Pow
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceMean ReduceProd ReduceSum ReduceSumSquare
    Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh
""")
_LOSE_NAN = _ops("""
    ArgMin Celu Clip Exp GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Hardmax Max
    Min ReduceLogSumExp Relu TopK
""")
# A row with one infinity is zeros there and NaN by the standard.
_TAKE_NEGATIVE = frozenset({"Attention", "Gelu", "LogSoftmax", "Softmax"})
_LEVELS = {
    **dict.fromkeys(_MOVES | _RIGHT, ""),
    **dict.fromkeys(_LOSE_NAN, NOT_NAN),
    **dict.fromkeys(_TAKE_NEGATIVE, BELOW_INFINITY),
}
_FLOATS = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)
# float64 is computed in float32, and infinity comes out as its largest number.
_NARROW = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_ORDER = ("", *LEVELS)


def input_constraint(model: ir.Model) -> dict[str, str]:
    """Return ``{"inputs": level}`` for the strictest operator; nothing where all are right."""
    if not any(v.dtype in _FLOATS for v in model.graph.inputs):
        return {}
    reached = _reached(model)
    levels = {_level(n) for _, n in walk(model) if n.graph is not model.graph or n in reached}
    if any(v.dtype == ir.DataType.DOUBLE for v in (*model.graph.inputs, *model.graph.outputs)):
        levels.add(FINITE)
    level = max(levels, key=_ORDER.index, default="")
    return {KEY: level} if level else {}


def _reached(model: ir.Model) -> set[ir.Node]:
    """Nodes of the main graph that floats of an input flow into.

    What is only compared, or picked out of a table by what was compared, holds none of them: trees
    ask whether a sample is NaN, and then it is gone.
    """
    held = {v for v in model.graph.inputs if v.dtype in _FLOATS or v.dtype is None}
    found: set[ir.Node] = set()
    for node in model.graph:
        if not held.intersection(v for v in node.inputs if v is not None) and not has_subgraph(
            node
        ):
            continue
        found.add(node)
        held.update(v for v in node.outputs if v.dtype in _FLOATS or v.dtype is None)
    return found


def _level(node: ir.Node) -> str:
    if node.domain:
        return FINITE
    if node.op_type in ("ReduceMax", "ReduceMin"):
        return NOT_NAN if SETTLED in node.meta else FINITE
    if node.op_type in ("Cast", "CastLike"):
        return _cast(node)
    if any(v.dtype == ir.DataType.DOUBLE for v in node.outputs):
        return FINITE
    floats = any(v is not None and v.dtype in (*_FLOATS, None) for v in node.inputs)
    return _LEVELS.get(node.op_type, FINITE) if floats else ""


def _cast(node: ir.Node) -> str:
    source, to = node.inputs[0], node.attributes.get("to")
    result = node.outputs[0].dtype if to is None else ir.DataType(to.as_int())
    if source is not None and source.dtype is not None and source.dtype not in _FLOATS:
        return ""
    return "" if result in _NARROW else FINITE
