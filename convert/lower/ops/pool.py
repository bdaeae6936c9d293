"""Pooling over all positions."""

from __future__ import annotations

from edgeinfer.convert.lower.core.portable import Tensors, Value
from edgeinfer.convert.lower.core.table import whole


@whole("GlobalAveragePool")
def global_average_pool(g: Tensors, x: Value) -> Value:
    """Mean of each channel."""
    return g.reduce("mean", x, g.positions(x))


@whole("GlobalMaxPool")
def global_max_pool(g: Tensors, x: Value) -> Value:
    """Largest element of each channel."""
    return g.reduce("max", x, g.positions(x))
