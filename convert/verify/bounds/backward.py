"""What operands must lie between so that results do: one inverse transfer function an operator.

Where two operands share a bound and nothing is known of either, each is given a part of it, so that
whatever is drawn for one leaves the other right.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgeinfer.convert.verify.bounds.forward import HANDED_ON, reduced
from edgeinfer.convert.verify.bounds.node import BoundedNode
from edgeinfer.convert.verify.bounds.span import ANY, Span
from edgeinfer.types import Array

Backward = Callable[[BoundedNode, int, Span], Span]
"""From what the first output must lie between to what an operand must."""

_FREE = 4.0
"""What the second of two operands may reach where nothing bounds their sum."""


def backward(op: BoundedNode, index: int, needs: list[Span]) -> Span:
    """Return what an operand must lie between.

    Args:
        op: the operator.
        index: Index of the operand.
        needs: what each output must lie between.
    """
    if all(n.is_open for n in needs):
        return ANY
    kind = op.node.op_type
    with np.errstate(all="ignore"):
        if kind in HANDED_ON or kind == "Concat":
            found = _moved(op, index, needs) if index == 0 or kind == "Concat" else ANY
        else:
            rule = BACKWARD.get(kind) if op.node.domain in ("", "ai.onnx") else None
            found = ANY if rule is None or needs[0].is_open else rule(op, index, needs[0])
    return found.fitted(op.shape(index))


def _moved(op: BoundedNode, index: int, needs: list[Span]) -> Span:
    """Follow each element; where that is not possible, let all be what each of them must be."""
    core = ANY
    for need in needs:
        core = core.meet(need.core())
    if all(n.is_scalar for n in needs) and len({(n.least, n.most) for n in needs}) == 1:
        return core
    shape = op.shape(index)
    full = Span.of(0, 0).full(shape)
    if full is None:
        return core
    marks = np.arange(full.low.size, dtype=np.int64).reshape(full.low.shape)
    operands = _marked(op, index, marks)
    traced = None if operands is None else op.evaluated(*operands)
    if traced is None:
        return core
    low, high = np.full(marks.size, -np.inf), np.full(marks.size, np.inf)
    for indices, need in zip(traced, needs, strict=False):
        try:
            lows, highs = (np.broadcast_to(e, indices.shape) for e in (need.low, need.high))
        except ValueError:
            return core
        mine = indices >= 0
        np.maximum.at(low, indices[mine], lows[mine])
        np.minimum.at(high, indices[mine], highs[mine])
    return Span(low.reshape(marks.shape), high.reshape(marks.shape))


def _marked(op: BoundedNode, index: int, marks: Array) -> list[Array | None] | None:
    """Return operands with which a result says where each of its elements came from."""
    if op.node.op_type == "Concat":
        operands: list[Array | None] = []
        for i in range(op.count):
            full = Span.of(-1, -1).full(op.shape(i))
            if full is None:
                return None
            operands.append(marks if i == index else full.low.astype(np.int64))
        return operands
    if op.node.op_type == "Cast":
        return None
    others = [op.const(i) for i in range(1, op.count)]
    if any(op.has(i) and other is None for i, other in enumerate(others, 1)):
        return None
    return [marks, *others]


def _add(op: BoundedNode, index: int, need: Span) -> Span:
    other = op.span(1 - index)
    if not other.is_open and np.isfinite([other.least, other.most]).all():
        return _wide(lambda: Span(need.low - other.low, need.high - other.high), need, other)
    low, high = need.core().least, need.core().most
    if math.isfinite(low) and math.isfinite(high):
        # The first gets what is above the least; the second has the rest of it.
        part = math.floor((high - low) / 2)
        return Span.of(low, high - part) if index == 0 else Span.of(0, part)
    if math.isfinite(low):
        return Span.of(low, np.inf) if index == 0 else Span.of(0, np.inf)
    return Span.of(-np.inf, high - _FREE) if index == 0 else Span.of(-np.inf, _FREE)


def _wide(exact: Callable[[], Span], need: Span, other: Span) -> Span:
    """Hold an operand against an interval of the other one, element by element if they fit."""
    try:
        found = exact()
    except ValueError:
        a, b = need.core(), other.hull()
        return Span(a.low - b.low, a.high - b.high)
    return found


def _sub(op: BoundedNode, index: int, need: Span) -> Span:
    other = op.span(1 - index)
    if not other.is_open and np.isfinite([other.least, other.most]).all():
        try:
            if index == 0:
                return Span(need.low + other.high, need.high + other.low)
            return Span(other.high - need.high, other.low - need.low)
        except ValueError:
            a, b = need.core(), other.hull()
            if index == 0:
                return Span(a.low + b.high, a.high + b.low)
            return Span(b.high - a.high, b.low - a.low)
    low, high = need.core().least, need.core().most
    part = math.floor((high - low) / 2) if math.isfinite(high - low) else _FREE
    if index == 1:
        return Span.of(0, part)
    return Span.of(low + part, high)


def _mul(op: BoundedNode, index: int, need: Span) -> Span:
    other, need = op.span(1 - index).hull(), need.core()
    whole = op.is_whole(index)
    if other.least == other.most and other.least != 0:
        ends = sorted((need.least / other.least, need.most / other.least))
        return _inwards(ends[0], ends[1], whole)
    if other.least >= 0 and math.isfinite(other.most) and need.least <= 0 <= need.most:
        # Whatever the other one is, the product stays within.
        return (
            _inwards(need.least / other.most, need.most / other.most, whole) if other.most else ANY
        )
    if need.least <= 0 < need.most:
        root = math.sqrt(need.most)
        return _inwards(0.0, root, whole)
    if 0 < need.least <= need.most:
        return _inwards(math.sqrt(need.least), math.sqrt(need.most), whole)
    return ANY


def _inwards(low: float, high: float, whole: bool) -> Span:
    return (
        Span.of(math.ceil(low), math.floor(high))
        if whole and _finite(low, high)
        else Span.of(low, high)
    )


def _finite(*numbers: float) -> bool:
    return all(math.isfinite(n) for n in numbers)


def _div(op: BoundedNode, index: int, need: Span) -> Span:
    need = need.core()
    other = op.span(1 - index).hull()
    if index == 1:
        # What it is divided by has bounds of its own, see ``limits``.
        return ANY
    if other.least == other.most and other.least > 0:
        step = other.least
        if op.is_whole(0):
            low = need.least * step if need.least > 0 else need.least * step - (step - 1)
            return Span.of(low if need.least else 0, need.most * step + (step - 1))
        return Span.of(need.least * step, need.most * step)
    if other.least > 0 or not op.const(1):
        # At least the part of the range that holds for every divisor from one on.
        return Span.of(min(need.least, 0.0) if need.least <= 0 else need.least * _FREE, need.most)
    return ANY


def _negated(op: BoundedNode, index: int, need: Span) -> Span:
    return Span(-need.high, -need.low)


def _absolute(op: BoundedNode, index: int, need: Span) -> Span:
    most = need.high
    return Span(np.where(need.low > 0, need.low, -most), most)


def _relu(op: BoundedNode, index: int, need: Span) -> Span:
    return Span(np.where(need.low > 0, need.low, -np.inf), need.high)


def _clip(op: BoundedNode, index: int, need: Span) -> Span:
    """Ends that the operator itself keeps need no care."""
    if index:
        return ANY
    low = op.number(1) if op.has(1) else op.attr("min", -np.inf)
    high = op.number(2) if op.has(2) else op.attr("max", np.inf)
    low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
    return Span(
        np.where(need.low <= low, -np.inf, need.low), np.where(need.high >= high, np.inf, need.high)
    )


def _extreme(keeps_low: bool) -> Backward:
    """A maximum that another operand keeps above the least needs no more of this one."""

    def rule(op: BoundedNode, index: int, need: Span) -> Span:
        need = need.core()
        others = [op.span(i).hull() for i in range(op.count) if i != index and op.has(i)]
        if keeps_low:
            held = any(o.least >= need.least for o in others)
            return Span.of(-np.inf if held else need.least, need.most)
        held = any(o.most <= need.most for o in others)
        return Span.of(need.least, np.inf if held else need.most)

    return rule


def _rounded(op: BoundedNode, index: int, need: Span) -> Span:
    return Span(need.low, need.high)


def _summed(op: BoundedNode, index: int, need: Span) -> Span:
    count = reduced(op) if index == 0 else None
    return _shared(op, need, count) if index == 0 else ANY


def _running(op: BoundedNode, index: int, need: Span) -> Span:
    axis = op.number(1)
    count = None if axis is None else op.size(0, int(axis))
    return _shared(op, need, count) if index == 0 else ANY


def _shared(op: BoundedNode, need: Span, count: int | None) -> Span:
    if not count:
        return ANY
    need = need.core()
    low, high = need.least / count, need.most / count
    if low > 0:
        # The first of them may be alone.
        low = need.least
    return _inwards(low, high, op.is_whole(0))


def _branches(op: BoundedNode, index: int, need: Span) -> Span:
    return need if index in (1, 2) else ANY


def _updated(op: BoundedNode, index: int, need: Span) -> Span:
    return need.core() if index in (0, 2) and op.attr("reduction", "none") == "none" else ANY


def _started(op: BoundedNode, index: int, need: Span) -> Span:
    need = need.core()
    if index == 0:
        return Span.of(need.least, need.most)
    return Span.of(-np.inf, need.most + 1) if index == 1 else ANY


def _squared(op: BoundedNode, index: int, need: Span) -> Span:
    exponent = op.number(1)
    most = need.core().most
    if index or exponent is None or exponent <= 0 or most < 0 or not math.isfinite(most):
        return ANY
    root = most ** (1.0 / exponent)
    return Span.of(-root if exponent % 2 == 0 else 0.0, root)


def _same(op: BoundedNode, index: int, need: Span) -> Span:
    return need.core() if index == 0 else ANY


BACKWARD: dict[str, Backward] = {
    "Abs": _absolute,
    "Add": _add,
    "Ceil": _rounded,
    "Clip": _clip,
    "CumSum": _running,
    "Div": _div,
    "Floor": _rounded,
    "Max": _extreme(keeps_low=True),
    "Min": _extreme(keeps_low=False),
    "Mul": _mul,
    "Neg": _negated,
    "Pow": _squared,
    "Range": _started,
    "ReduceSum": _summed,
    "Relu": _relu,
    "Round": _rounded,
    "Sub": _sub,
    "Where": _branches,
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceMean"), _same),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "Pad"), _same),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), _updated),
}
"""By operator of the default domain; through others no bound is followed."""
