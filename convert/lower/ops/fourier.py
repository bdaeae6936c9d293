"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

from edgeinfer.convert.lower.core.portable import Moved, Value
from edgeinfer.convert.lower.core.table import moved
from edgeinfer.convert.lower.fourier import dft_plan
from edgeinfer.convert.lower.registry import Const


@moved("DFT", consts=("dft_length", "axis"))
def dft(
    g: Moved,
    x: Value,
    dft_length: Const | None = None,
    axis: Const | None = None,
    *,
    inverse: int,
    onesided: int,
) -> Value:
    """Multiply over the axis and the parts."""
    plan = dft_plan(x.shape, dft_length, axis, inverse, onesided)
    flat = g.reshape(g.transpose(x, plan.order), [-1, plan.weights.shape[1]])
    spectrum = g.linear(flat, g.const(plan.weights, x.dtype))
    whole = [*(g.extent(x, a) for a in plan.others), plan.results, plan.parts]
    return g.transpose(g.reshape(spectrum, whole), plan.back)
