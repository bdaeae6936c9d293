"""Regions of images, resampled."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.core.portable import Moved, Value
from edgeinfer.convert.lower.core.table import moved
from edgeinfer.convert.lower.registry import Refusal


@moved("RoiAlign")
def roi_align(
    g: Moved,
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Value:
    """Two products with the weights of rows and columns, which follow from the regions."""
    if mode != "avg":
        raise Refusal("the largest of weighted samples is no product")
    if sampling_ratio < 1:
        raise Refusal("how many samples a region has is known only at run time")
    half = coordinate_transformation_mode == "half_pixel"
    planes = g.take(x, g.cast(batch_indices, np.int32), 0)
    weights = []
    for axis, first, count in ((2, 1, output_height), (3, 0, output_width)):
        ends = [
            g.mul(g.part(rois, 1, at, at + 1), float(spatial_scale)) for at in (first, first + 2)
        ]
        steps = g.cast(g.steps(planes, axis), rois.dtype)
        made = _weights(g, ends, steps, (count, sampling_ratio), half)
        weights.append(g.expand_dims(made, 1))
    rows, columns = weights
    return g.product(g.product(rows, planes), columns, transposed=True)


def _weights(
    g: Moved, ends: list[Value], steps: Value, cells: tuple[int, int], half: bool
) -> Value:
    """What each element of an axis counts in each cell: (regions, cells, elements).

    Args:
        g: The builder.
        ends: Where each region starts and ends: (regions, 1).
        steps: Positions of the elements.
        cells: Their number, and how many samples each has.
        half: Whether elements lie half a step before their positions.
    """
    count, samples = cells
    low, high = (g.sub(e, 0.5) if half else e for e in ends)
    extent = g.sub(high, low)
    if not half:
        extent = g.maximum(extent, 1.0)
    at = (np.arange(count * samples) + 0.5) / (count * samples)
    place = g.add(low, g.mul(extent, g.const(at[None], low.dtype)))
    size = steps.shape[0]
    last = g.const(size - 1, low.dtype) if isinstance(size, int) else g.reduce("max", steps, [0])
    inside = g.logical_and(g.greater_equal(place, -1.0), g.less_equal(place, g.add(last, 1.0)))
    held = g.minimum(g.maximum(place, 0.0), last)
    grid = g.expand_dims(g.expand_dims(steps, 0), 0)
    share = g.maximum(g.sub(1.0, g.abs(g.sub(g.expand_dims(held, 2), grid))), 0.0)
    share = g.select(g.expand_dims(inside, 2), share, 0.0)
    apart = g.reshape(share, [g.extent(share, 0), count, samples, g.extent(share, 2)])
    return g.reduce("mean", apart, [2], False)
