"""Sums and products by constants that the plugin may not join with those behind them.

It adds up constants that follow each other, multiplies them, and moves them into weights. Behind an
activation that changes nothing it leaves them where they are.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.openvino.rewrites import SETTLED
from edgeinfer.convert.passes.cancellation import (
    cancels,
    is_taken_away,
    leaves_range,
    takers,
)
from edgeinfer.convert.passes.infra import constant, is_op

_JOINED = frozenset({
    *("Add", "BatchNormalization", "Conv", "ConvTranspose", "Div", "Gemm", "MatMul", "Mul", "Sub"),
})  # fmt: skip
"""Operators whose constants those behind them are joined with."""


def joined(node: ir.Node) -> str:
    """Say what is wrong with a sum or a product by a constant."""
    if SETTLED in node.meta:
        return ""
    if is_taken_away(node):
        return "constants are added up, and what the sum rounds off comes back"
    if leaves_range(node):
        return "constants are multiplied, and what they make together leaves the type"
    return ""


def part(model: ir.Model, node: ir.Node) -> bool:
    """Put activations that change nothing around a node, and behind what takes its part away.

    Given: ``y = Sub(Add(x + b, 12582912), 12582912)``
    Result: ``y = PRelu(Sub(PRelu(Add(PRelu(x + b, [1]), 12582912), [1]), 12582912), [1])``
    """
    return all(_part(model, n) for n in [node, *takers(node)] if SETTLED not in n.meta)


def _part(model: ir.Model, node: ir.Node) -> bool:
    out = node.outputs[0]
    if out.dtype is None or is_op(node, "BitCast"):
        return out.dtype is not None
    build = builder(model, node)
    one = build.const(np.ones(1, out.dtype.numpy()), "one")

    def same(x: ir.Value) -> ir.Value:
        if not is_op(x.producer(), *_JOINED):
            return x
        made = build.op("PRelu", x, one)
        made.type, made.shape = x.type, x.shape
        return made

    made = build.op(node.op_type, *(same(v) for v in node.inputs if v is not None))
    made.type, made.shape = out.type, out.shape
    build.nodes[-1].meta[SETTLED] = True
    build.op("PRelu", made, one)
    build.commit(model.graph, node)
    return True


def summed_up(node: ir.Node) -> str:
    """Say what is wrong with a ``Sum`` of several constants."""
    known = [constant(v) for v in node.inputs]
    arrays = [k.numpy().astype(np.float64) for k in known if k is not None]
    found = any(cancels(a, a + b) for i, a in enumerate(arrays) for b in arrays[i + 1 :])
    return "constants are added up, and what the sum rounds off comes back" if found else ""


def add_in_turn(model: ir.Model, node: ir.Node) -> bool:
    """Add one after the other.

    Given: ``y = Sum(a, b, c)``
    Result: ``y = Add(Add(a, b), c)``
    """
    build, out = builder(model, node), node.outputs[0]
    made = node.inputs[0]
    for value in node.inputs[1:]:
        made = build.op("Add", made, value)
        made.type = out.type
    build.commit(model.graph, node)
    return True
