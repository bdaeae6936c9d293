"""Optional values: a tensor is one that is there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from edgeinfer.convert.lower.definitions.body import Body, input_at


def _is_tensor(value: ir.Value | None) -> bool:
    return value is None or isinstance(value.type, ir.TensorType)


def has_element(node: ir.Node) -> onnx.FunctionProto | None:
    """Whether there is an input."""
    given = input_at(node, 0)
    if not _is_tensor(given):
        return None
    body = Body(node)
    body.give(0, body.const(np.array(given is not None)))
    return body.function()


def get_element(node: ir.Node) -> onnx.FunctionProto | None:
    """The tensor itself."""
    if input_at(node, 0) is None or not _is_tensor(input_at(node, 0)):
        return None
    body = Body(node)
    body.give(0, "i0")
    return body.function()
