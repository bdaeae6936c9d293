"""Recurrent operators whose weights are stored as integers.

The standard operator would have its weights made floats again in each run; the contrib kernel
multiplies with the stored bytes, and rounds what it is given to 8 bits with a scale of each run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import Namer, add_initializer, constant
from edgeinfer.types import Array

_DOMAIN = "com.microsoft"
_INPUTS = 8
"""Of ``LSTM``; scales and zero points come after them."""


def multiply_stored(model: ir.Model) -> int:
    """Rewrite, in place, each LSTM whose weights are stored as integers; return how many.

    Given::

        y = LSTM(x, DequantizeLinear<axis=1>(w, ws), DequantizeLinear<axis=1>(r, rs), b)

    Result::

        y = com.microsoft.DynamicQuantizeLSTM(x, transposed w, transposed r, b, .., ws, 0, rs, 0)
    """
    count = 0
    namer = Namer(model)
    for graph in model.graphs():
        for node in list(graph):
            if node.domain or node.op_type != "LSTM":
                continue
            stored = [_stored(node.inputs[index]) for index in (1, 2)]
            if any(s is None for s in stored):
                continue
            _rewrite(graph, node, [s for s in stored if s is not None], namer)
            count += 1
    if count:
        model.graph.opset_imports.setdefault(_DOMAIN, 1)
    return count


def _stored(value: ir.Value | None) -> tuple[Array, Array] | None:
    """Return integers (directions, gates, inputs) and their scales (directions, gates)."""
    maker = None if value is None else value.producer()
    if maker is None or maker.domain or maker.op_type != "DequantizeLinear":
        return None
    arrays = [constant(v) for v in maker.inputs]
    axis = maker.attributes.get("axis")
    if any(a is None for a in arrays) or axis is None or axis.as_int() != 1:
        return None
    values, scale, *zero = (a.numpy() for a in arrays if a is not None)
    if values.dtype != np.int8 or scale.ndim != 1 or any(z.any() for z in zero):
        return None
    return values, np.broadcast_to(scale.astype(np.float32), values.shape[:2])


def _rewrite(
    graph: ir.Graph, node: ir.Node, stored: list[tuple[Array, Array]], namer: Namer
) -> None:
    inputs = [*node.inputs, *[None] * (_INPUTS - len(node.inputs))]
    name = node.name or "lstm"
    for place, (values, scale) in enumerate(stored, 1):
        transposed = np.ascontiguousarray(values.transpose(0, 2, 1))
        inputs[place] = add_initializer(graph, namer.fresh(f"{name}.int"), transposed)
        inputs.append(add_initializer(graph, namer.fresh(f"{name}.scale"), np.array(scale)))
        zero = np.zeros(scale.shape, np.int8)
        inputs.append(add_initializer(graph, namer.fresh(f"{name}.zero"), zero))
    attributes = [a for a in node.attributes.values() if a.name != "layout"]
    made = ir.Node(
        *(_DOMAIN, "DynamicQuantizeLSTM", inputs, attributes),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    graph.insert_before(node, made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name, new.type, new.shape = old.name, old.type, old.shape
        new_users = list(old.uses())
        for user, index in new_users:
            user.replace_input_with(index, new)
        outputs = graph.outputs
        for index, output in enumerate(list(outputs)):
            if output is old:
                outputs[index] = new
    graph.remove(node, safe=True)
