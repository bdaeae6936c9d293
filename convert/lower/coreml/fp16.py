"""Half precision in ML Programs.

The Neural Engine computes in half precision only, and leaves everything else to the other units. So
fewer operators stay in single precision than elsewhere: those whose results or inner sums leave
what half precision holds, and positions. Norms, means, softmax, pools and resizing are one operator
each to Core ML and keep their sums to themselves.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower import halve as anywhere
from edgeinfer.convert.lower.halve import LARGEST, SMALLEST_NORMAL
from edgeinfer.convert.passes.infra import Namer, add_initializer
from edgeinfer.errors import Remarks
from edgeinfer.types import Array

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


_INTEGERS = frozenset({"QuantizeLinear", "DequantizeLinear"})


def halve(model: ir.Model, keep: AbstractSet[str], notes: Remarks) -> None:
    """Convert the main graph, in place; nodes named in ``keep`` stay in single precision."""
    kept = keep | statistics(model)
    anywhere.halve(model, _ISLANDS, kept, notes, bridges=_INTEGERS)
    _meet_integers(model)


def statistics(model: ir.Model) -> frozenset[str]:
    """Results that lead from the elements of a norm, written out, to its standard deviation.

    A variance as the mean of squares less the square of the mean is the difference of two large
    numbers, and squares leave half precision from 256 on. Given by name.
    """
    found: set[str] = set()
    for node in model.graph:
        if not _is_root(node) or node.inputs[0] is None:
            continue
        way = _way_back(node.inputs[0])
        if any(n.op_type in _SUMS for n in way):
            found |= {v.name or "" for n in (node, *way) for v in n.outputs}
    return frozenset(found - {""})


def _way_back(value: ir.Value) -> list[ir.Node]:
    """Nodes between sums of squares, or of elements, and a value made of them alone."""
    way: list[ir.Node] = []
    open_ = [value]
    while open_ and len(way) < _LONGEST:
        node = open_.pop().producer()
        if node is None or node.domain or node in way:
            continue
        if node.op_type in _SUMS:
            way.append(node)
            square = node.inputs[0].producer() if node.inputs[0] is not None else None
            if square is not None and _is_square(square):
                way.append(square)
        elif node.op_type in _STEPS:
            way.append(node)
            open_ += [v for v in node.inputs if v is not None]
    return way


def _is_root(node: ir.Node) -> bool:
    exponent = node.inputs[1] if node.op_type == "Pow" else None
    if exponent is not None and exponent.const_value is not None:
        return not node.domain and abs(float(exponent.const_value.numpy().flat[0])) == 0.5
    return node.op_type == "Sqrt" and not node.domain


def _is_square(node: ir.Node) -> bool:
    return node.op_type == "Pow" or (node.op_type == "Mul" and node.inputs[0] is node.inputs[1])


_SUMS = frozenset({"ReduceMean", "ReduceSum", "ReduceSumSquare", "GlobalAveragePool"})
_STEPS = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Max", "Abs", "Relu", "Reshape", "Squeeze", "Unsqueeze"),
        *("Identity", "Clip"),
    }
)
_LONGEST = 24
"""Nodes of a norm that is written out; what is longer is something else."""


def _meet_integers(model: ir.Model) -> None:
    """Let quantizing take and give half precision where all around it is in half precision.

    Given: ``a = Cast<FLOAT16>(DequantizeLinear(q, s))``, ``q = QuantizeLinear(Cast<FLOAT>(a), s)``
    Result: ``a = DequantizeLinear(q, s.fp16)``, ``q = QuantizeLinear(a, s.fp16)``
    """
    namer = Namer(model)
    scales: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        if node.domain or node.op_type not in _INTEGERS:
            continue
        scale = node.inputs[1]
        if scale is None or scale.const_value is None or scale.dtype != ir.DataType.FLOAT:
            continue
        if not _holds(scale.const_value.numpy()):
            continue
        meet = _quantize if node.op_type == "QuantizeLinear" else _dequantize
        if not meet(model.graph, node):
            continue
        if scale not in scales:
            array = scale.const_value.numpy().astype(np.float16)
            scales[scale] = add_initializer(model.graph, namer.fresh(f"{scale.name}.fp16"), array)
        node.replace_input_with(1, scales[scale])


def _holds(scale: Array) -> bool:
    """Whether half precision has eleven bits for every scale."""
    size = np.abs(scale)
    return bool(((size >= SMALLEST_NORMAL) & (size <= LARGEST)).all())


def _quantize(graph: ir.Graph, node: ir.Node) -> bool:
    """Take the half-precision value behind a cast."""
    value = node.inputs[0]
    cast = value.producer() if value is not None else None
    if cast is None or cast.op_type != "Cast":
        return False
    source = cast.inputs[0]
    if source is None or source.dtype != ir.DataType.FLOAT16:
        return False
    node.replace_input_with(0, source)
    _drop(graph, cast)
    return True


def _dequantize(graph: ir.Graph, node: ir.Node) -> bool:
    """Give half precision, if that is what everyone wants."""
    made = node.outputs[0]
    users = [user for user, _ in made.uses()]
    halves = all(u.op_type == "Cast" and u.outputs[0].dtype == ir.DataType.FLOAT16 for u in users)
    if not users or not halves or made.is_graph_output() or "output_dtype" in node.attributes:
        return False
    made.type = ir.TensorType(ir.DataType.FLOAT16)
    for cast in users:
        if cast.outputs[0].is_graph_output():
            continue
        cast.outputs[0].replace_all_uses_with(made)
        _drop(graph, cast)
    return True


def _drop(graph: ir.Graph, node: ir.Node) -> None:
    unused = not any(v.uses() or v.is_graph_output() for v in node.outputs)
    if unused:
        graph.remove(node, safe=True)
