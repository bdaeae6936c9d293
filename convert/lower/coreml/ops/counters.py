"""What the integers that a loop carries can come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

from edgeinfer.convert.lower.coreml.tensor import Span, Tensor
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.convert.lower.coreml.scope import Scope


@dataclass(frozen=True, slots=True)
class Counter:
    """A value to which every turn adds the same.

    Attributes:
        inside: what it lies between when a turn begins.
        after: what it lies between when the loop has ended.
    """

    inside: Span
    after: Span


def counter_of(
    g: Scope, body: ir.Graph, before: ir.Value, after: ir.Value, start: Span, turns: int
) -> Counter | None:
    """Recognise ``after = before + step`` or ``- step``, with a step from outside of the body.

    Args:
        g: the graph around the loop.
        body: Body of the loop.
        before: what the turn begins with.
        after: what it leaves.
        start: what the first turn begins with.
        turns: the most that there can be.
    """
    step = _step(g, body, before, _origin(after))
    if step is None or turns < 1:
        return None
    low = start[0] + (turns - 1) * min(step[0], 0)
    high = start[1] + (turns - 1) * max(step[1], 0)
    if step[0] >= 0:
        for limit in _limits(g, body, before, after, step):
            high = min(high, max(start[1], limit))
    return Counter((low, high), (low + min(step[0], 0), max(start[1], high + max(step[1], 0))))


def _step(g: Scope, body: ir.Graph, before: ir.Value, after: ir.Value) -> Span | None:
    node = after.producer()
    if node is None or node.op_type not in ("Add", "Sub") or node.domain or after in body.inputs:
        return None
    first, second = (None if v is None else _origin(v) for v in node.inputs)
    if node.op_type == "Add" and second is before:
        first, second = second, first
    if first is not before or second is None:
        return None
    span = _outer(g, body, second)
    if span is None or node.op_type == "Add":
        return span
    return -span[1], -span[0]


def _limits(
    g: Scope, body: ir.Graph, before: ir.Value, after: ir.Value, step: Span
) -> Iterator[int]:
    """What the condition for another turn keeps it below."""
    open_ = [_origin(body.outputs[0])]
    while open_:
        node = open_.pop().producer()
        if node is None or node.domain:
            continue
        if node.op_type == "And":
            open_ += [_origin(v) for v in node.inputs if v is not None]
        elif node.op_type in ("Less", "LessOrEqual"):
            left, right = (_origin(v) for v in node.inputs if v is not None)
            bound = _outer(g, body, right)
            if bound is None or left not in (before, _origin(after)):
                continue
            most = bound[1] - (1 if node.op_type == "Less" else 0)
            yield most if left is _origin(after) else most + max(step[1], 0)


def _outer(g: Scope, body: ir.Graph, value: ir.Value) -> Span | None:
    """What a value that no turn changes lies between; None for others."""
    constant = ir.convenience.get_const_tensor(value)
    if constant is not None:
        array = constant.numpy()
        return Tensor(array.dtype, array.shape, data=array).bounds
    node = value.producer()
    own = value in body.inputs or (node is not None and node.graph is body)
    if own or value not in g.driver.values:
        return None
    return g.tensor_of(value).bounds


def _origin(value: ir.Value) -> ir.Value:
    node = value.producer()
    while node is not None and node.op_type == "Identity" and not node.domain:
        source = node.inputs[0]
        if source is None:
            break
        value, node = source, source.producer()
    return value
