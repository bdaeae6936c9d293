"""Models from before opset 7, in which broadcasting was another thing."""

from __future__ import annotations

import onnx
import onnx.version_converter

from edgeinfer.errors import Notes, SourceError

OLDEST_OPSET = 7
"""Below this, operators broadcast by attribute and ONNX Runtime makes no promises."""


def raised(model: onnx.ModelProto, version: int, name: str, notes: Notes) -> onnx.ModelProto:
    """Return a copy of an older model at the oldest opset that the passes know.

    Raises:
        SourceError: onnx's converter does not know an operator of it.
    """
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
    except Exception as e:  # the converter raises whatever its C++ side does
        raise SourceError(
            f"{name}: opset {version}: onnx's converter cannot raise it to {OLDEST_OPSET}: "
            f"{' '.join(str(e).split())}; export the model again with a newer opset"
        ) from e
    _spread_slopes(newer, version, name)
    constants = {t.name for t in newer.graph.initializer}
    kept = [v for v in newer.graph.input if v.name not in constants]
    del newer.graph.input[:]
    newer.graph.input.extend(kept)
    notes.add(f"opset {version} to {OLDEST_OPSET} by onnx's converter, then to the present one")
    return newer


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
                f"{name}: opset {version}: the slope of PRelu {node.output[0]!r} is not constant; "
                "export the model again with a newer opset"
            )
        if len(slope.dims) == 1 and slope.dims[0] > 1:
            slope.dims.extend([1] * (size - 2))
            shape = given[slope.name].type.tensor_type.shape
            for _ in range(size - 2):
                shape.dim.add().dim_value = 1
            spread.add(slope.name)
