"""Write down the attributes whose default onnx's shape inference has wrong."""

from __future__ import annotations

import onnx_ir as ir

from edgeinfer.convert.passes.infra import DEFAULT_DOMAINS, PassOutcome, all_nodes, outcome

_DEFAULTS = {"STFT": ("onesided", 1)}
"""Its inference takes an absent ``onesided`` for 0, where the operator's definition says 1, so that
the result had twice the frequencies (onnx 1.23.2)."""


class StateDefaults(ir.passes.InPlacePass):
    """Add what a node leaves to a default that one reader misunderstands.

    Given: ``y = STFT(x, step, window)``
    Result: ``y = STFT<onesided=1>(x, step, window)``
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Look at every node, subgraphs included."""
        count = 0
        for node in all_nodes(model):
            name, value = _DEFAULTS.get(node.op_type, ("", 0))
            if name and node.domain in DEFAULT_DOMAINS and name not in node.attributes:
                node.attributes[name] = ir.AttrInt64(name, value)
                count += 1
        return outcome(model, count)
