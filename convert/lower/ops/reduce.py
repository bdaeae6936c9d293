"""Reductions over axes."""

from __future__ import annotations

import math

from edgeinfer.convert.lower.core.portable import Axes, Elements, Tensors, Value
from edgeinfer.convert.lower.core.table import reduction
from edgeinfer.convert.lower.ops.norm import length

_PLAIN = {
    **{"ReduceSum": "sum", "ReduceMean": "mean", "ReduceProd": "prod"},
    **{"ReduceMax": "max", "ReduceMin": "min"},
}
"""Kinds of ``Tensors.reduce`` by operator."""


def _plain(op: str, kind: str) -> None:
    @reduction(op)
    def body(g: Tensors, x: Value, axes: Axes, keep: bool) -> Value:
        return g.reduce(kind, x, axes, keep)

    body.__name__ = f"reduce_{kind}"


for _op, _kind in _PLAIN.items():
    _plain(_op, _kind)


@reduction("ReduceL1")
def reduce_l1(g: Tensors, x: Value, axes: Axes, keep: bool) -> Value:
    """Sum of magnitudes."""
    return g.reduce("sum", g.map(lambda e, v: e.abs(v), x), axes, keep)


@reduction("ReduceSumSquare")
def reduce_sum_square(g: Tensors, x: Value, axes: Axes, keep: bool) -> Value:
    """Sum of squares."""
    return g.reduce("sum", g.map(lambda e, v: e.mul(v, v), x), axes, keep)


@reduction("ReduceL2")
def reduce_l2(g: Tensors, x: Value, axes: Axes, keep: bool) -> Value:
    """Root of the sum of squares, of tiny and huge elements too."""
    if isinstance(axes, list) and not axes:
        return g.map(lambda e, v: e.abs(v), x)
    if not g.has_largest(x, axes):
        return g.map(lambda e, v: e.sqrt(v), reduce_sum_square(g, x, axes, keep))
    found = length(g, x, axes)
    return found if keep else g.drop(found, axes)


@reduction("ReduceLogSum")
def reduce_log_sum(g: Tensors, x: Value, axes: Axes, keep: bool) -> Value:
    """Logarithm of the sum."""
    return g.map(lambda e, v: e.log(v), g.reduce("sum", x, axes, keep))


@reduction("ReduceLogSumExp")
def reduce_log_sum_exp(g: Tensors, x: Value, axes: Axes, keep: bool) -> Value:
    """Logarithm of the sum of exponentials, without overflow."""
    if isinstance(axes, list) and not axes:
        return x
    top = g.reduce("max", x, axes)
    # Infinity less itself is no number; nothing needs to be taken off it.
    base = g.map(lambda e, t: _if_finite(e, t, t, 0), top)
    powers = g.map(lambda e, v, b: e.exp(e.sub(v, b)), x, base)
    sums = g.reduce("sum", powers, axes)
    found = g.map(lambda e, s, b, t: _if_finite(e, t, e.add(e.log(s), b), t), sums, base, top)
    return found if keep else g.drop(found, axes)


def _if_finite(e: Elements, test: Value, yes: Value, no: Value) -> Value:
    return e.select(e.less(e.abs(test), math.inf), yes, no)
