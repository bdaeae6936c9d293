"""Images in other sizes, axis by axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from edgeinfer.convert.lower.core.resample import Taps
from edgeinfer.convert.lower.core.resize import AxisResize, ResizePlan, resizes
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.registry import ALL, OPS


@resizes(OPS, dtypes=ALL)
def resize(g: Builder, x: Tensor, plan: ResizePlan) -> Tensor:
    """Nearest, linear or cubic."""
    wide = plan.how.mode != "nearest" and x.dtype == "float16"
    result = convert(g, x, "float32") if wide else x
    for axis in plan.axes:
        result = _summed(g, result, axis, plan.taps(axis))
    outside = plan.outside()
    if outside is not None:
        fill = g.const(np.asarray(plan.filler, result.dtype))
        result = g.map(tirx.Select, g.const(outside), fill, result)
    return convert(g, result, x.dtype)


def _summed(g: Builder, x: Tensor, axis: AxisResize, t: Taps) -> Tensor:
    """Sum the taps of one axis."""
    at, (out, count) = axis.index, t.source.shape
    shape = (*x.shape[:at], out, *x.shape[at + 1 :])
    kind = x.dtype if x.dtype.startswith("float") else "float32"
    plain = count == 1 and bool(np.all(t.weights == 1))
    weights = [] if plain else [g.const(t.weights.astype(kind))]

    def compute(data: Any, indices: Any, *factors: Any) -> Any:
        def element(*index: Any) -> Any:
            value: Any = None
            for tap in range(count):
                k = tirx.const(tap, "int64")
                place = indices(index[at], k).astype("int64")
                one = data(*index[:at], place, *index[at + 1 :])
                one = one * factors[0](index[at], k) if factors else one
                value = one if value is None else value + one
            return value

        return te.compute(shape, element, name="resize")

    return g.te(compute, x, g.const(t.source.astype(np.int32)), *weights, name="resize")
