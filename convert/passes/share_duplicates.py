"""Compute equal things once and store equal constants once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.passes.constants import NEVER
from edgeinfer.convert.passes.infra import (
    PassOutcome,
    has_subgraph,
    outcome,
    remove_node,
    replace_value,
    walk,
)
from edgeinfer.types import Array

PROBE_BYTES = 4096
"""Two tensors are compared in full only when their first bytes are equal."""


class ShareInitializers(ir.passes.InPlacePass):
    """Keep one of several initializers with the same bytes.

    Given: ``y = Add(Mul(x, a), b)`` with equal ``a`` and ``b``
    Result: ``y = Add(Mul(x, a), a)``
    """

    def __init__(self, least: int = 0, apart: AbstractSet[str] = frozenset()) -> None:
        """Record what is looked at.

        Args:
            least: elements of a constant.
            apart: operators whose constants stay their own.
        """
        super().__init__()
        self._least, self._apart = least, apart

    def call(self, model: ir.Model) -> PassOutcome:
        """Compare tensors of one type and shape; most are distinguished by their first bytes."""
        groups: dict[Hashable, list[ir.Value]] = {}
        for value in list(model.graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or value.is_graph_input() or value.is_graph_output():
                continue
            if tensor.dtype == ir.DataType.STRING or tensor.size < self._least:
                continue
            if self._apart and any(user.op_type in self._apart for user, _ in value.uses()):
                continue
            groups.setdefault((tensor.dtype, tuple(tensor.shape)), []).append(value)
        count = sum(_merge_equal(model, group) for group in groups.values() if len(group) > 1)
        return outcome(model, count)


def _merge_equal(model: ir.Model, values: list[ir.Value]) -> int:
    count = 0
    kept: dict[bytes, list[tuple[ir.Value, Array]]] = {}
    for value in values:
        if value.const_value is None or value.name is None:
            continue
        data = _bytes(value.const_value.numpy())
        same = kept.setdefault(hashlib.sha1(data[:PROBE_BYTES].tobytes()).digest(), [])
        twin = next((v for v, other in same if np.array_equal(other, data)), None)
        if twin is None:
            same.append((value, data))
            continue
        value.replace_all_uses_with(twin)
        model.graph.initializers.pop(value.name)
        count += 1
    return count


def _bytes(array: Array) -> Array:
    """The bytes of an array, so that NaN equals NaN and -0.0 differs from 0.0."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class ShareNodes(ir.passes.InPlacePass):
    """Keep one of several nodes that compute the same.

    Given: ``a = Exp(x); b = Exp(x); y = Add(a, b)``
    Result: ``a = Exp(x); y = Add(a, a)``

    Random operators and nodes with bodies stay.
    """

    def call(self, model: ir.Model) -> PassOutcome:
        """Go through each graph in order; a chain of equal nodes is found in one go."""
        count = 0
        for graph in list(walk(model.graph)):
            first: dict[Hashable, ir.Node] = {}
            for node in list(graph):
                key = _key(node)
                if key is None:
                    continue
                twin = first.setdefault(key, node)
                if twin is not node and _take_over(node, twin):
                    count += 1
        return outcome(model, count)


def _take_over(node: ir.Node, twin: ir.Node) -> bool:
    """Let readers of ``node`` read ``twin``; not where both are graph outputs."""
    pairs = list(zip(node.outputs, twin.outputs, strict=True))
    if any(
        a.is_graph_output() and (b.is_graph_output() or a.graph is not b.graph) for a, b in pairs
    ):
        return False
    for old, new in pairs:
        replace_value(old, new)
    remove_node(node)
    return True


def _key(node: ir.Node) -> Hashable | None:
    if node.op_type in NEVER - {"DequantizeLinear"} or has_subgraph(node):
        return None
    attributes = []
    for name, found in sorted(node.attributes.items()):
        if found.is_ref():
            return None
        value = found.value
        if found.type == ir.AttributeType.TENSOR:
            tensor = found.as_tensor()
            if tensor.nbytes > PROBE_BYTES or tensor.dtype == ir.DataType.STRING:
                return None
            value = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
        elif isinstance(value, (list, tuple)):
            value = tuple(value)
        if not isinstance(value, Hashable):
            return None
        attributes.append((name, found.type, value))
    inputs = tuple(None if v is None else id(v) for v in node.inputs)
    return (node.domain, node.op_type, node.overload, len(node.outputs), inputs, tuple(attributes))
