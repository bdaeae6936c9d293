"""Models from before opset 7, in which broadcasting was another thing."""

from __future__ import annotations

import onnx
import onnx.version_converter

from edgeinfer.errors import Remarks, SourceError

OLDEST_OPSET = 7
"""Below this, operators broadcast by attribute and ONNX Runtime makes no promises."""


_SAME = frozenset(
    {
        *("Abs", "AveragePool", "Ceil", "Clip", "Elu", "Exp", "Floor", "HardSigmoid"),
        *("InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Neg", "Reciprocal"),
        *("Relu", "Selu", "Sigmoid", "Sqrt", "Sum", "Tanh"),
    }
)
"""Operators whose newer version takes more types, or drops a hint or adds an attribute only."""

_BROADCAST = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Gemm", "Greater", "Less", "Mul", "Or", "Pow", "PRelu"),
        *("Sub", "Xor"),
    }
)
"""Operators whose operands were stretched by attribute, which the converter rewrites or refuses."""

_TRAINED = frozenset(("BatchNormalization", "Dropout"))
"""Operators that trained unless an attribute said otherwise; the newer ones never do."""


def raised(model: onnx.ModelProto, version: int, name: str, notes: Remarks) -> onnx.ModelProto:
    """Return a copy of an older model at the oldest opset that the passes know.

    Raises:
        SourceError: onnx's converter does not know an operator of it.
    """
    if problems := sorted({p for n in model.graph.node if (p := _changed(n, version))}):
        raise SourceError(
            f"{name}: opset {version} cannot be raised to {OLDEST_OPSET}: {'; '.join(problems)}; "
            "export the model again with a newer opset"
        )
    own = onnx.ModelProto()
    own.CopyFrom(model)
    # The converter takes initializers for inputs, as models of that age have them.
    known = {v.name for v in own.graph.input}
    for tensor in own.graph.initializer:
        if tensor.name not in known:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            own.graph.input.append(info)
    try:
        newer = onnx.version_converter.convert_version(own, OLDEST_OPSET)
        _spread_slopes(newer, version, name)
    except SourceError:
        raise
    except Exception as e:  # the converter raises whatever its C++ side does
        raise SourceError(
            f"{name}: opset {version} cannot be raised to {OLDEST_OPSET} by onnx's converter: "
            f"{' '.join(str(e).split())}; export the model again with a newer opset"
        ) from e
    constants = {t.name for t in newer.graph.initializer}
    kept = [v for v in newer.graph.input if v.name not in constants]
    del newer.graph.input[:]
    newer.graph.input.extend(kept)
    notes.add(f"opset {version} to {OLDEST_OPSET} by onnx's converter, then to the present one")
    return newer


def _changed(node: onnx.NodeProto, version: int) -> str:
    """Say what the converter would pass over; it leaves many operators as they are."""
    if any(a.HasField("g") or a.graphs for a in node.attribute):
        return f"{node.op_type} has a body"
    if node.domain not in ("", "ai.onnx"):
        return ""
    try:
        before, after = (onnx.defs.get_schema(node.op_type, v) for v in (version, OLDEST_OPSET))
    except onnx.defs.SchemaError:
        return f"{node.op_type} is no operator of both"
    if before.since_version == after.since_version or node.op_type in _SAME | _BROADCAST:
        return ""
    if node.op_type not in _TRAINED:
        return f"{node.op_type} was another operator"
    tests = any(a.name == "is_test" and a.i for a in node.attribute)
    return "" if tests else f"{node.op_type} without is_test=1 is for training"


def _spread_slopes(model: onnx.ModelProto, version: int, name: str) -> None:
    """Slopes were one a channel, which onnx's converter passes over."""
    found = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        v.name: len(v.type.tensor_type.shape.dim)
        for v in (*found.input, *found.value_info, *found.output)
    }
    tensors = {t.name: t for t in model.graph.initializer}
    given = {v.name: v for v in model.graph.input}
    spread: set[str] = set()
    for node in model.graph.node:
        if node.op_type != "PRelu" or node.input[1] in spread:
            continue
        slope, size = tensors.get(node.input[1]), ranks.get(node.input[0])
        if slope is None or size is None:
            raise SourceError(
                f"{name}: opset {version} cannot be raised to {OLDEST_OPSET}: the slope of PRelu "
                f"{node.output[0]!r} is not constant; "
                "export the model again with a newer opset"
            )
        if len(slope.dims) == 1 and slope.dims[0] > 1:
            slope.dims.extend([1] * (size - 2))
            shape = given[slope.name].type.tensor_type.shape
            for _ in range(size - 2):
                shape.dim.add().dim_value = 1
            spread.add(slope.name)
