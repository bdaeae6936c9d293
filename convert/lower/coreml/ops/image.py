"""Sampling of images and regions."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ops.matrix import batched
from edgeinfer.convert.lower.coreml.registry import FLOATS, INTEGERS, OPS
from edgeinfer.convert.lower.coreml.tensor import Tensor
from edgeinfer.convert.lower.registry import Refusal

_PADDING = {
    ("zeros", 0): "constant",
    ("zeros", 1): "constant",
    ("border", 0): "border",
    ("border", 1): "border",
    ("reflection", 0): "symmetric",
    ("reflection", 1): "reflection",
}


@OPS.lower("GridSample", dtypes=FLOATS)
def grid_sample(
    g: Builder, X: Tensor, grid: Tensor, *, align_corners: int, mode: str, padding_mode: str
) -> Tensor:
    """Resample."""
    if X.rank != 4:
        raise Refusal(f"rank {X.rank}: resample takes images", "unsupported_rank")
    if mode == "cubic":
        raise Refusal("mode 'cubic' is not known to Core ML")
    return g.emit(
        "resample",
        x=X,
        coordinates=grid,
        sampling_mode="nearest" if mode == "nearest" else "bilinear",
        padding_mode=_PADDING[padding_mode, align_corners],
        padding_value=0.0,
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=bool(align_corners),
    )


@OPS.lower("RoiAlign", dtypes=FLOATS | INTEGERS)
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
    planes = g.emit("gather", x=X, indices=g.cast(batch_indices, np.int32), axis=0)
    weights = []
    for axis, first, count in ((2, 1, output_height), (3, 0, output_width)):
        ends = [
            g.binary("mul", g.slice(rois, [0, at], [None, at + 1]), float(spatial_scale))
            for at in (first, first + 2)
        ]
        places = g.cast(g.positions(planes, axis), rois.dtype)
        weights.append(_weights(g, ends, places, count, sampling_ratio, half))
    rows = g.insert_axes(weights[0], [1])
    columns = g.insert_axes(weights[1], [1])
    return batched(g, batched(g, rows, planes), columns, transpose_b=True)


def _weights(
    g: Builder, ends: list[Tensor], places: Tensor, count: int, samples: int, half: bool
) -> Tensor:
    """What each element of an axis counts in each cell: (regions, cells, elements)."""
    low, high = (g.binary("sub", e, 0.5) if half else e for e in ends)
    extent = g.binary("sub", high, low)
    if not half:
        extent = g.binary("maximum", extent, 1.0)
    steps = (np.arange(count * samples) + 0.5) / (count * samples)
    place = g.binary("add", low, g.binary("mul", extent, g.const(steps[None], low.dtype)))
    last = g.reduce("reduce_max", places, [0], False)
    inside = g.binary(
        "logical_and",
        g.binary("greater_equal", place, -1.0),
        g.binary("less_equal", place, g.binary("add", last, 1.0)),
    )
    held = g.binary("minimum", g.unary("relu", place), last)
    grid = g.insert_axes(places, [0, 1])
    distance = g.unary("abs", g.binary("sub", g.insert_axes(held, [2]), grid))
    share = g.unary("relu", g.binary("sub", 1.0, distance))
    share = g.binary("mul", share, g.insert_axes(g.cast(inside, low.dtype), [2]))
    cells = g.reshape(share, [g.extent(share, 0), count, samples, g.extent(share, 2)])
    return g.reduce("reduce_mean", cells, [2], False)
