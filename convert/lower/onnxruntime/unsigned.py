"""Activations of 8 bits without a sign: the same numbers, 128 steps higher.

On x86-64 ONNX Runtime (1.32) does this itself, but forgets ``output_dtype`` on the pairs that its
transpose optimiser has added before, and then refuses the model ("output_dtype INT8 does not match
y_zero_point type UINT8"). Its integer kernels take unsigned activations on every processor.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, is_op, walk

_ZERO_POINT = 2
_SHIFT = 128


def store_unsigned(model: ir.Model) -> int:
    """Shift what stands between QuantizeLinear and DequantizeLinear, in place; returns how many."""
    namer, points, count = Namer(model), dict[bytes, ir.Value](), 0
    for graph in walk(model.graph):
        for node in graph:
            readers = _readers(node)
            zero = node.inputs[_ZERO_POINT] if readers else None
            if not readers or zero is None or zero.const_value is None:
                continue
            shifted = (zero.const_value.numpy().astype(np.int16) + _SHIFT).astype(np.uint8)
            key = repr(shifted.shape).encode() + shifted.tobytes()
            if key not in points:
                points[key] = add_initializer(model.graph, namer.fresh("zero_point"), shifted)
            for user in (node, *readers):
                user.replace_input_with(_ZERO_POINT, points[key])
            node.attributes.pop("output_dtype", None)
            node.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
            count += 1
    return count


def _readers(node: ir.Node) -> list[ir.Node]:
    """The DequantizeLinear nodes that alone read a signed result; none where others do too."""
    if not is_op(node, "QuantizeLinear") or node.outputs[0].is_graph_output():
        return []
    uses = node.outputs[0].uses()
    if any(not is_op(u.node, "DequantizeLinear") or u.idx != 0 for u in uses):
        return []
    found = [u.node for u in uses]
    zeros = [n.inputs[_ZERO_POINT] if len(n.inputs) > _ZERO_POINT else None for n in (node, *found)]
    signed = all(
        z is not None and z.const_value is not None and z.const_value.dtype == ir.DataType.INT8
        for z in zeros
    )
    # Each keeps the zero point it has; equal ones only are moved together.
    arrays = [z.const_value.numpy() for z in zeros if z is not None and z.const_value is not None]
    equal = signed and all(np.array_equal(a, arrays[0]) for a in arrays)
    return found if equal else []
