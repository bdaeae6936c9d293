"""Sampling of regions, and images put together from columns."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal


@OPS.lower("RoiAlign", dtypes=NUMBERS)
def roi_align(
    g: Builder,
    X: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Tensor:
    """Two products with the weights of rows and columns, which follow from the regions."""
    if mode != "avg":
        raise Refusal("the largest of weighted samples is no product")
    if sampling_ratio < 1:
        raise Refusal("how many samples a region has is known only at run time")
    half = coordinate_transformation_mode == "half_pixel"
    planes = g.take(X, batch_indices, 0)
    weights = []
    for axis, first, count in ((2, 1, output_height), (3, 0, output_width)):
        ends = [
            g.binary("mul", g.part(rois, 1, at, at + 1), float(spatial_scale))
            for at in (first, first + 2)
        ]
        weights.append(_weights(g, ends, X.shape[axis], count, sampling_ratio, half))
    rows = g.insert_axes(weights[0], [1])
    columns = g.transpose(g.insert_axes(weights[1], [1]), [0, 1, 3, 2])
    return g.binary("batch_matmul", g.binary("batch_matmul", rows, planes), columns)


def _weights(
    g: Builder, ends: list[Tensor], size: int | None, count: int, samples: int, half: bool
) -> Tensor:
    """What each element of an axis counts in each cell: (regions, cells, elements)."""
    if size is None:
        raise Refusal("regions of images of unknown size", "dynamic_shape")
    low, high = (g.binary("sub", e, 0.5) if half else e for e in ends)
    extent = g.binary("sub", high, low)
    if not half:
        extent = g.binary("maximum", extent, 1.0)
    steps = (np.arange(count * samples) + 0.5) / (count * samples)
    place = g.binary("add", low, g.binary("mul", extent, g.const(steps[None], low.dtype)))
    outside = g.binary("or", g.less(place, -1.0), g.binary("greater", place, float(size)))
    held = g.clip(place, 0.0, float(size - 1))
    grid = g.const(np.arange(size)[None, None], low.dtype)
    distance = g.unary("abs_", g.binary("sub", g.insert_axes(held, [2]), grid))
    share = g.binary("maximum", g.binary("sub", 1.0, distance), 0.0)
    share = g.select(g.insert_axes(outside, [2]), g.const(np.zeros((), low.dtype)), share)
    cells = g.reshape(share, [g.extent(share, 0), count, samples, size])
    return g.reduce("mean", cells, [2], False)
