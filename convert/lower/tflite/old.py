"""Models from before opset 7, in which broadcasting was another thing."""

from __future__ import annotations

import onnx
import onnx.version_converter
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.passes import normalise
from edgeinfer.convert.passes.opset import OLDEST, default_opset
from edgeinfer.errors import Notes, Problem, UnsupportedError


def raised(model: ir.Model, target: str, notes: Notes) -> ir.Model:
    """Return the model at an opset that the passes know; the same one where it is.

    Raises:
        UnsupportedError: onnx's converter does not know an operator of it.
    """
    version = default_opset(model.opset_imports)
    if version is None or version >= OLDEST:
        return model
    try:
        made = normalise(_converted(model, version)).model
    except Refusal as e:
        raise UnsupportedError(target, [Problem("", "model", e.reason, e.detail, e.hint)]) from e
    notes.add(f"opset {version} to {OLDEST} by onnx's converter, then to the present one")
    return made


def _converted(model: ir.Model, version: int) -> ir.Model:
    proto = ir.to_proto(model)
    # The converter takes initializers for inputs, as models of that age have them.
    known = {v.name for v in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in known:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            proto.graph.input.append(info)
    try:
        newer = onnx.version_converter.convert_version(proto, OLDEST)
    except Exception as e:  # the converter raises whatever its C++ side does
        raise Refusal(
            f"opset {version}: onnx's converter cannot raise it to {OLDEST}: {e}",
            "unsupported_op",
            "export the model anew with a newer opset",
        ) from e
    _spread_slopes(newer)
    constants = {t.name for t in newer.graph.initializer}
    kept = [v for v in newer.graph.input if v.name not in constants]
    del newer.graph.input[:]
    newer.graph.input.extend(kept)
    made: ir.Model = ir.from_proto(newer)
    return made


def _spread_slopes(model: onnx.ModelProto) -> None:
    """Slopes were one a channel, which onnx's converter passes over."""
    found = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        v.name: len(v.type.tensor_type.shape.dim)
        for v in (*found.input, *found.value_info, *found.output)
    }
    tensors = {t.name: t for t in model.graph.initializer}
    given = {v.name: v for v in model.graph.input}
    for node in model.graph.node:
        if node.op_type != "PRelu":
            continue
        slope, size = tensors.get(node.input[1]), ranks.get(node.input[0])
        if slope is None or size is None:
            raise Refusal(f"PRelu {node.output[0]!r}: its slope is not constant", "unsupported_op")
        if len(slope.dims) == 1 and slope.dims[0] > 1:
            slope.dims.extend([1] * (size - 2))
            shape = given[slope.name].type.tensor_type.shape
            for _ in range(size - 2):
                shape.dim.add().dim_value = 1
