"""Resize: Core ML's operators where they compute just that, positions and weights elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.core.resample import matrix, taps
from edgeinfer.convert.lower.core.resize import AxisResize, ResizePlan, resizes
from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.ops.shape import partly
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array

_HALF = frozenset({"half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"})


def _entries(g: Builder, sizes: Tensor, axes: Sequence[int]) -> list[Extent | None]:
    known = g.given(0)
    wanted = partly(g, sizes) if known is None else [known[a] for a in axes]
    rows = zip(axes, wanted, strict=True)
    return [None if g.keeps(a) and not isinstance(s, int) else s for a, s in rows]


@resizes(OPS, entries=_entries, dtypes=ALL)
def resize(g: Builder, x: Tensor, plan: ResizePlan) -> Tensor:
    """Upsampling by whole factors; else a gather, or a product with the weights, an axis."""
    one = _late(g, x, plan) or _whole_factors(g, x, plan)
    if one is not None:
        return one
    out = x
    for axis in plan.axes:
        out = _apply(g, out, plan, axis)
    outside = plan.outside()
    if outside is not None:
        out = g.select(g.const(outside, np.bool_), g.const(plan.filler, x.dtype), out)
    return g.same(out) if out is x else out


_SAMPLED = {**dict.fromkeys(_HALF, "UNALIGN_CORNERS"), "align_corners": "STRICT_ALIGN_CORNERS"}


def _late(g: Builder, x: Tensor, plan: ResizePlan) -> Tensor | None:
    """Interpolate the last two axes to dynamic sizes, where one operator does."""
    how, moving = plan.how, {axis.index: axis.out for axis in plan.axes}
    last = (x.rank - 2, x.rank - 1)
    if all(a.is_known or a.scale is not None for a in plan.axes) or not set(moving) <= set(last):
        return None
    if not x.is_float or not g.offers("resize"):
        return None
    if how.mode != "linear" or how.antialias or how.transform not in _SAMPLED:
        return None
    source = x
    if how.transform == "pytorch_half_pixel":
        for axis, size in moving.items():
            source = _first_alone(g, source, axis, size)
    made = g.emit(
        "resize",
        x=source,
        shape=g.vector([moving.get(a, g.extent(x, a)) for a in last]),
        resized_dims=np.uint32(2),
        interpolation_mode="LINEAR",
        sampling_mode=_SAMPLED[how.transform],
    )
    shape = [x.shape[a] if a not in moving else made.shape[a] for a in range(x.rank)]
    g.know_shape(made, shape)
    return made


def _first_alone(g: Builder, x: Tensor, axis: int, size: Extent) -> Tensor:
    """Leave the first element only of what becomes one element: PyTorch takes no mean there."""
    if isinstance(size, int):
        return g.part(x, axis, 0, 1) if size == 1 else x
    before = g.extent(x, axis)
    whole = g.const(before, np.int32) if isinstance(before, int) else before
    one = g.binary("equal", size, 1)
    return g.part(x, axis, 0, g.select(one, g.const(1, np.int32), whole))


def _whole_factors(g: Builder, x: Tensor, plan: ResizePlan) -> Tensor | None:
    """Upsample the last two axes by whole factors, which Core ML's own operators do."""
    how, axes = plan.how, plan.axes
    if not x.is_float or x.rank not in (3, 4) or not axes or how.antialias or plan.crops:
        return None
    factors = {a.index: a.times for a in axes}
    last = (x.rank - 2, x.rank - 1)
    if any(a not in last for a in factors) or None in factors.values():
        return None
    high, wide = (factors.get(a) or 1 for a in last)
    if how.mode == "nearest" and _repeats(plan):
        return g.emit(
            "upsample_nearest_neighbor", x=x, scale_factor_height=high, scale_factor_width=wide
        )
    if how.mode != "linear" or how.transform not in (*_HALF, "align_corners"):
        return None
    align = how.transform == "align_corners"
    return g.emit(
        "upsample_bilinear",
        x=x,
        scale_factor_height=high,
        scale_factor_width=wide,
        align_corners=align,
    )


def _repeats(plan: ResizePlan) -> bool:
    """Whether every element is just repeated."""
    for axis in plan.axes:
        times = axis.times or 1
        for size in (axis.size,) if axis.size is not None else (1, 2, 3, 5, 8, 13, 33):
            try:
                found = taps(plan.how, size, size * times, float(times))
            except Refusal:
                return False
            if not (found.source[:, 0] == np.arange(size * times) // times).all():
                return False
    return True


def _apply(g: Builder, x: Tensor, plan: ResizePlan, axis: AxisResize) -> Tensor:
    found = plan.taps(axis)
    if found.source.shape[1] == 1:
        moved = g.cast(x, np.int32) if x.dtype == np.bool_ else x
        where = g.const(found.source[:, 0], np.int32)
        out = g.emit("gather", x=moved, indices=where, axis=axis.index, span=x.span)
        return g.cast(out, x.dtype)
    return _weighted(g, x, matrix(found, axis.size or 0), axis.index)


def _weighted(g: Builder, x: Tensor, weights: Array, axis: int) -> Tensor:
    """Multiply an axis by its weights, as the last or the last but one of the tensor."""
    if axis == x.rank - 1:
        return g.emit("matmul", x=x, y=g.const(weights.T, x.dtype))
    if axis == x.rank - 2:
        return g.emit("matmul", x=g.const(weights, x.dtype), y=x)
    perm = [a for a in range(x.rank) if a != axis] + [axis]
    moved = _weighted(g, g.transpose(x, perm), weights, x.rank - 1)
    return g.transpose(moved, [perm.index(a) for a in range(x.rank)])
