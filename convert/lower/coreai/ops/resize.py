"""ResizePlan, an axis at a time: each output is a weighted sum of inputs that are known now."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.core.resample import How, Taps, matrix, taps
from edgeinfer.convert.lower.core.resize import AxisResize, ResizePlan, resizes
from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array


@resizes(OPS, dtypes=NUMBERS)
def resize(g: Builder, x: Tensor, plan: ResizePlan) -> Tensor:
    made = x
    for axis in plan.axes:
        write = _by_factor if axis.size is None else _axis
        made = write(g, made, axis, plan)
    outside = plan.outside()
    if outside is None:
        return made
    return g.select(g.const(outside), g.const(plan.filler, x.dtype), made)


def _by_factor(g: Builder, x: Tensor, axis: AxisResize, plan: ResizePlan) -> Tensor:
    how = plan.how
    times = axis.times if axis.scale is not None else None
    if times is None or how.mode not in ("nearest", "linear"):
        raise Refusal("a dynamic axis grows by no whole factor", "dynamic_shape")
    if how.mode == "nearest":
        _check_repeats(how, times)
        return _repeated(g, x, axis.index, times)
    if how.transform not in ("half_pixel", "pytorch_half_pixel"):
        raise Refusal(f"{how.transform} on a dynamic axis", "dynamic_shape")
    return _blended(g, x, axis.index, times)


def _check_repeats(how: How, factor: int) -> None:
    """Whether each input is repeated, whatever the size is."""
    probe = taps(how, 7, 7 * factor, float(factor)).source[:, 0]
    if not np.array_equal(probe, np.repeat(np.arange(7), factor)):
        raise Refusal("nearest neighbours that depend on the size", "dynamic_shape")


def _repeated(g: Builder, x: Tensor, axis: int, factor: int) -> Tensor:
    sizes = g.extents(x)
    wide = g.insert_axes(x, [axis + 1])
    spread = g.expand(wide, [*sizes[: axis + 1], factor, *sizes[axis + 1 :]])
    return g.reshape(spread, [*sizes[:axis], -1, *sizes[axis + 1 :]])


def _blended(g: Builder, x: Tensor, axis: int, factor: int) -> Tensor:
    """Each output between its input and a neighbour; the edges are repeated."""
    size = g.extent(x, axis)
    around = [0] * x.rank
    around[axis] = 1
    wide = g.pad(x, around, around, mode="replicate")
    end = size + 2 if isinstance(size, int) else g.binary("add", size, 2)
    stop = size + 1 if isinstance(size, int) else g.binary("add", size, 1)
    before, after = g.part(wide, axis, 0, size), g.part(wide, axis, 2, end)
    here = g.part(wide, axis, 1, stop)
    parts = []
    for index in range(factor):
        place = (index + 0.5) / factor - 0.5
        other = before if place < 0 else after
        mixed = g.binary("add", g.binary("mul", here, 1 - abs(place)),
                         g.binary("mul", other, abs(place)))  # fmt: skip
        parts.append(g.insert_axes(mixed, [axis + 1]))
    sizes = g.extents(x)
    return g.reshape(g.concat(parts, axis + 1), [*sizes[:axis], -1, *sizes[axis + 1 :]])


def _axis(g: Builder, x: Tensor, axis: AxisResize, plan: ResizePlan) -> Tensor:
    found, size = plan.taps(axis), axis.size or 0
    if plan.how.mode == "nearest":
        return _nearest(g, x, axis.index, found, size, axis.out)
    return _weighted(g, x, axis.index, matrix(found, size).astype(x.dtype))


def _nearest(g: Builder, x: Tensor, axis: int, found: Taps, size: int, out: int) -> Tensor:
    indices = found.source[:, 0]
    if out % size == 0 and np.array_equal(indices, np.repeat(np.arange(size), out // size)):
        return _repeated(g, x, axis, out // size)
    return g.take(x, g.const(indices.astype(np.int64)), axis)


def _weighted(g: Builder, x: Tensor, axis: int, weights: Array) -> Tensor:
    if weights.shape[1] == 1:
        # Transposed products of one element lose the order of square axes, coreai-core 1.0.0b3.
        return g.binary("mul", x, g.const(weights.reshape([-1, *[1] * (x.rank - 1 - axis)])))
    if axis == x.rank - 1:
        return g.binary("batch_matmul", x, weights_of(g, weights.T))
    if axis == x.rank - 2:
        return g.binary("batch_matmul", weights_of(g, weights), x)
    order = [a for a in range(x.rank) if a != axis] + [axis]
    made = g.binary("batch_matmul", g.transpose(x, order), weights_of(g, weights.T))
    return g.transpose(made, list(np.argsort(order)))


def weights_of(g: Builder, weights: Array) -> Tensor:
    return g.const(np.ascontiguousarray(weights))
