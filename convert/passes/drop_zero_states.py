"""Leave out first states of recurrent layers that are zero, as they are without them."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import (
    PassOutcome,
    all_nodes,
    attr,
    constant,
    input_at,
    is_op,
    outcome,
)

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
_MOVES = frozenset({
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
})  # fmt: skip
"""Operators that give nothing but values of their first operand (of all, for ``Concat``)."""

_DEPTH = 16
"""Operators between a layer and its zeros."""


class DropZeroStates(ir.passes.InPlacePass):
    """Drop the first states of an LSTM, GRU or RNN where every run has zeros in them.

    Given: ``n = Gather(Shape(x), 1); h = ConstantOfShape(Concat([1], n, [8])); y = RNN(x, w, r, , , h)``
    Result: ``y = RNN(x, w, r)``

    Exporters fill states of the batch's size, which makes a shape that only the run knows. A state
    that does not fit the input is refused by every engine, so leaving it out loses no check of a
    model that runs.
    """  # noqa: E501

    def call(self, model: ir.Model) -> PassOutcome:
        """Look at every recurrent layer, subgraphs included."""
        count = 0
        for node in all_nodes(model):
            if not is_op(node, *_STATES):
                continue
            for index in _STATES[node.op_type]:
                value = input_at(node, index)
                if value is not None and _is_zero(value, _DEPTH):
                    node.replace_input_with(index, None)
                    count += 1
        return outcome(model, count)


def _is_zero(value: ir.Value, depth: int) -> bool:
    tensor = constant(value)
    if tensor is not None:
        return _is_zero_tensor(tensor)
    maker = value.producer()
    if maker is None or not depth:
        return False
    if is_op(maker, "ConstantOfShape"):
        filled = attr(maker, "value")
        return filled is None or _is_zero_tensor(filled)
    if not is_op(maker, *_MOVES):
        return False
    sources = maker.inputs if is_op(maker, "Concat") else maker.inputs[:1]
    return all(v is not None and _is_zero(v, depth - 1) for v in sources)


def _is_zero_tensor(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype.is_floating_point() and not tensor.numpy().any()
