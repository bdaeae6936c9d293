"""Sums, squares and exponentials of half-precision models in single precision."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    DEFAULT_DOMAINS,
    Namer,
    PassOutcome,
    add_initializer,
    constant,
    outcome,
)

INNER = frozenset({
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("MeanVarianceNormalization", "LpNormalization", "BatchNormalization", "LRN"),
    *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"),
    *("ReduceLogSumExp", "CumSum", "GlobalAveragePool", "AveragePool", "LpPool", "GlobalLpPool"),
    *("Softmax", "LogSoftmax", "Softplus", "Mish", "Gelu"),
})  # fmt: skip
"""Operators that compute something larger than what they give, or add many up.

A square of 300 is beyond half precision though the deviation that it is for is not. Operators of
one element each give what they compute, so there the model itself says that it is rounded.
"""

_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


class WidenHalves(ir.passes.InPlacePass):
    """Let operators with large inner results compute in single precision.

    Given: ``float16 y = InstanceNormalization(float16 x, s, b)``
    Result: ``y = Cast<float16>(InstanceNormalization(Cast<float>(x), Cast<float>(s), ...))``

    Engines differ in what they add up in: some take each operator apart and round every step.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Wrap each such operator of the main graph; constants are widened at once."""
        namer, count = Namer(model), 0
        for node in list(model.graph):
            if node.domain not in DEFAULT_DOMAINS or node.op_type not in INNER:
                continue
            if any(v is not None and v.dtype == _HALF for v in node.inputs):
                _widen(model.graph, node, namer)
                count += 1
        note = f"{count} operators of half precision add up in fp32" if count else ""
        return outcome(model, count, *filter(None, [note]))


def _widen(graph: ir.Graph, node: ir.Node, namer: Namer) -> None:
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype != _HALF:
            continue
        tensor = constant(value)
        if tensor is not None:
            name = namer.fresh(f"{value.name}.fp32")
            wide = add_initializer(graph, name, tensor.numpy().astype(np.float32))
        else:
            cast = _cast(value, _SINGLE, namer.fresh(f"{value.name}.fp32"))
            graph.insert_before(node, cast)
            wide = cast.outputs[0]
        node.replace_input_with(index, wide)
    for value in list(node.outputs):
        if not value.name or value.dtype != _HALF:
            continue
        # A new type: a clone shares its types with the source.
        value.type = ir.TensorType(_SINGLE)
        users, outputs = list(value.uses()), [i for i, o in enumerate(graph.outputs) if o is value]
        cast = _cast(value, _HALF, namer.fresh(f"{value.name}.fp16"))
        graph.insert_after(node, cast)
        made = cast.outputs[0]
        for user, index in users:
            user.replace_input_with(index, made)
        for index in outputs:
            graph.outputs[index] = made
        if outputs:
            made.name, value.name = value.name, made.name
            cast.name = made.name


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": to.value}, name=name)
    made = cast.outputs[0]
    made.name, made.type, made.shape = name, ir.TensorType(to), value.shape
    return cast
