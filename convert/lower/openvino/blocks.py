"""Weights in blocks of which the last one is cut short: OpenVINO has whole blocks alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.faults import builder
from edgeinfer.convert.lower.rules import Rule, attribute, given


def _short(node: ir.Node) -> str:
    return "its last block is cut short" if _missing(node) else ""


def _missing(node: ir.Node) -> int:
    """How many elements are missing from the last block."""
    x, size = given(node, 0), int(str(attribute(node, "block_size", 0)))
    if x is None or x.shape is None or not size:
        return 0
    count = x.shape[_axis(node, len(x.shape))]
    return -count % size if isinstance(count, int) else 0


def _axis(node: ir.Node, rank: int) -> int:
    return int(str(attribute(node, "axis", 1))) % rank


def fill_last_block(model: ir.Model, node: ir.Node) -> bool:
    """Give the last block its missing elements, and take them away again.

    Given: ``y = DequantizeLinear<block_size=16>(w, s, z)``, w of [24, 8]
    Result: ``y = Slice<axis=0>(DequantizeLinear<block_size=16>(Concat(w, 0), s, z), 0, 24)``
    """
    x = given(node, 0)
    if x is None or x.const_value is None:
        return False
    weights, build = x.const_value.numpy(), builder(model, node)
    axis = _axis(node, weights.ndim)
    count, rest = weights.shape[axis], list(weights.shape)
    rest[axis] = _missing(node)
    full = np.concatenate([weights, np.zeros(rest, weights.dtype)], axis)
    options = {a.name: a.value for a in node.attributes.values()}
    filled = build.op("DequantizeLinear", build.const(full, "filled"), *node.inputs[1:], **options)
    ends = [
        build.const(np.asarray([n], np.int64), f"at{i}") for i, n in enumerate((0, count, axis))
    ]
    build.op("Slice", filled, *ends)
    build.commit(model.graph, node)
    return True


RULES = (
    Rule(
        ops=frozenset({"DequantizeLinear"}),
        fault=_short,
        source="openvino 2026.4.1: 'src_x.get_shape()[axis] % block_size == 0'",
        repair=fill_last_block,
    ),
)
