"""A zero point of its own for every quantized weight.

ONNX Runtime (1.32), told to be exact on processors without VNNI, turns signed weights into
unsigned ones and names the new zero points after the old ones; where two weights share one, the
second name is taken and the model is refused ("Attempt to replace the existing tensor").
"""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, is_op, walk

_ZERO_POINT = 2


def unshare_zero_points(model: ir.Model) -> int:
    """Give later weights copies of a shared zero point, in place; returns how many."""
    namer, seen, count = Namer(model), set[int](), 0
    for graph in walk(model.graph):
        for node in graph:
            if not is_op(node, "DequantizeLinear") or len(node.inputs) <= _ZERO_POINT:
                continue
            weight, zero = node.inputs[0], node.inputs[_ZERO_POINT]
            if weight is None or zero is None or zero.const_value is None:
                continue
            if not weight.is_initializer() or not zero.is_initializer():
                continue
            if id(zero) not in seen:
                seen.add(id(zero))
                continue
            copy = ir.Value(
                name=namer.fresh(zero.name or "zero_point"),
                type=zero.type,
                shape=zero.shape,
                const_value=zero.const_value,
            )
            model.graph.register_initializer(copy)
            node.replace_input_with(_ZERO_POINT, copy)
            count += 1
    return count
