"""Exponentials that add up to one along an axis."""

from __future__ import annotations

from edgeinfer.convert.lower.core.portable import Tensors, Value
from edgeinfer.convert.lower.core.table import whole
from edgeinfer.convert.lower.registry import Refusal


def _below_zero(g: Tensors, x: Value, axis: int) -> tuple[Value, Value, list[int]]:
    """Return elements less the largest of them, their exponentials, and the axis."""
    if not g.rank(x):
        raise Refusal("a scalar has no axis", "unsupported_rank")
    axes = [axis % g.rank(x)]
    under = g.map(lambda e, v, t: e.sub(v, t), x, g.reduce("max", x, axes))
    return under, g.map(lambda e, v: e.exp(v), under), axes


@whole("Softmax")
def softmax(g: Tensors, x: Value, *, axis: int) -> Value:
    """Exponentials over their sum."""
    _, powers, axes = _below_zero(g, x, axis)
    return g.map(lambda e, p, s: e.div(p, s), powers, g.reduce("sum", powers, axes))


@whole("LogSoftmax")
def log_softmax(g: Tensors, x: Value, *, axis: int) -> Value:
    """Logarithm of ``Softmax``, which does not lose what its quotient would."""
    under, powers, axes = _below_zero(g, x, axis)
    return g.map(lambda e, v, s: e.sub(v, e.log(s)), under, g.reduce("sum", powers, axes))
