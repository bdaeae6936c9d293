"""Pooling over all positions."""

from __future__ import annotations

from edgeinfer.convert.lower.core.portable import Elements, Tensors, Value
from edgeinfer.convert.lower.core.table import whole


@whole("GlobalAveragePool")
def global_average_pool(g: Tensors, x: Value) -> Value:
    """Mean of each channel."""
    return g.reduce("mean", x, g.positions(x))


@whole("GlobalMaxPool")
def global_max_pool(g: Tensors, x: Value) -> Value:
    """Largest element of each channel."""
    return g.reduce("max", x, g.positions(x))


@whole("GlobalLpPool")
def global_lp_pool(g: Tensors, x: Value, *, p: int) -> Value:
    """Root of the sum of powers."""

    def powers(e: Elements, v: Value) -> Value:
        size = e.abs(v)
        return size if p == 1 else e.power(size, float(p))

    total = g.reduce("sum", g.map(powers, x), g.positions(x))
    return total if p == 1 else g.map(lambda e, v: e.power(v, 1 / p), total)
