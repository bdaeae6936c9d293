"""Operators of ONNX Runtime's own that our files have, as those of the standard they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeinfer.records import dataclass

DOMAIN = "com.microsoft"

_LSTM_INPUTS = 8
"""Scales and zero points of ``DynamicQuantizeLSTM`` come after them."""


@dataclass(frozen=True, slots=True)
class StandardForm:
    """What an operator is in the standard.

    Attributes:
        op_type: there.
        since: the first opset that has it.
        inputs: how many of the inputs it takes.
        fit: what these are made of.
        usual: attributes that have another default there.
    """

    op_type: str
    since: int
    inputs: int
    fit: Callable[[Sequence[Any]], Sequence[Any]]
    usual: tuple[ir.Attr, ...] = ()

    def standard(self, node: ir.Node, opset: int) -> ir.Node:
        """Return the standard's node for one of ONNX Runtime's, in no graph.

        Args:
            node: one of ``KNOWN``.
            opset: that of the model; one that has the operator is taken where this has not.
        """
        missing = (a for a in self.usual if a.name not in node.attributes)
        attributes = [*node.attributes.values(), *missing]
        inputs = [None if v is None else ir.Value(name=v.name) for v in node.inputs]
        outputs = [ir.Value(name=v.name) for v in node.outputs]
        return ir.Node(
            *("", self.op_type, inputs[: self.inputs], attributes),
            outputs=outputs,
            version=max(self.since, opset),
        )


def _float_weights(inputs: Sequence[Any]) -> Sequence[Any]:
    """Weights and recurrent weights of an LSTM as it takes them.

    What the operator rounds to 8 bits in each run stays as it is: that is its error, not its
    meaning.
    """
    x, w, r, *rest = inputs[:_LSTM_INPUTS]
    w_scale, w_zero, r_scale, r_zero = inputs[_LSTM_INPUTS:]
    found = []
    for values, scale, zero in ((w, w_scale, w_zero), (r, r_scale, r_zero)):
        # (directions, inputs, gates), scales for each direction or for each gate.
        by_gate = (len(scale), 1, -1)
        whole = values.astype(x.dtype) - zero.reshape(by_gate).astype(x.dtype)
        scaled = whole * scale.reshape(by_gate).astype(x.dtype)
        found.append(np.ascontiguousarray(scaled.transpose(0, 2, 1)))
    return [x, *found, *rest]


KNOWN = {
    "Gelu": StandardForm("Gelu", 20, 1, lambda inputs: inputs),
    "QuickGelu": StandardForm(
        "Swish", 24, 1, lambda inputs: inputs, (ir.AttrFloat32("alpha", 1.702),)
    ),
    "DynamicQuantizeLSTM": StandardForm("LSTM", 14, _LSTM_INPUTS, _float_weights),
}
"""All that our files for ONNX Runtime can have, besides what the source has already."""
