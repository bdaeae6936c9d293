"""Rounding to integers of 16 bits, written out for OpenVINO."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import given

_WIDE = frozenset({ir.DataType.INT16, ir.DataType.UINT16})


def _kind(node: ir.Node) -> ir.DataType | None:
    zero = given(node, 2)
    return node.outputs[0].dtype if zero is None else zero.dtype


def unbounded(node: ir.Node) -> str:
    """Say what is wrong with a ``QuantizeLinear`` to 16 bits."""
    if _kind(node) not in _WIDE:
        return ""
    return "16 bits do not saturate: beyond them a value comes back as it was"


def write_out(model: ir.Model, node: ir.Node) -> bool:
    """Round and clip in floats, then cast.

    Given: ``y = QuantizeLinear(x, scale, zero)`` with one float32 scale
    Result: ``y = Cast(Clip(Add(Round(Div(x, scale)), zero), least, most))``
    """
    x, scale, zero = (given(node, place) for place in range(3))
    kind = _kind(node)
    plain = x is not None and scale is not None and x.dtype == scale.dtype == ir.DataType.FLOAT
    if x is None or scale is None or kind is None or not plain or scale.shape is None:
        return False
    if any(size != 1 for size in scale.shape):
        return False
    build = builder(model, node)
    limits = np.iinfo(kind.numpy())
    ends = (
        build.const(np.asarray(end, np.float32), name)
        for end, name in ((limits.min, "least"), (limits.max, "most"))
    )
    made = build.op("Round", build.op("Div", x, scale))
    if zero is not None:
        made = build.op("Add", made, build.op("Cast", zero, to=ir.DataType.FLOAT))
    build.op("Cast", build.op("Clip", made, *ends), to=kind)
    build.commit(model.graph, node)
    return True
