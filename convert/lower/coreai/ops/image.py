"""Sampling of regions, and pictures put together from columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


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
        raise Refusal("regions of pictures of unknown size", "dynamic_shape")
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


@OPS.lower("Col2Im", dtypes=FLOATS)
def col2im(
    g: Builder,
    input: Tensor,
    image_shape: Const,
    block_shape: Const,
    *,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """What columns hold is added up where it belongs; the edges are cut off afterwards."""
    sizes = [int(s) for s in image_shape.array.reshape(-1)]
    block = [int(s) for s in block_shape.array.reshape(-1)]
    count = len(sizes)
    if input.sizes is None:
        raise Refusal("dynamic sizes", "dynamic_shape")
    steps, gaps = tuple(strides or ()) or (1,) * count, tuple(dilations or ()) or (1,) * count
    edges = tuple(pads or ()) or (0,) * (2 * count)
    whole = [s + edges[i] + edges[i + count] for i, s in enumerate(sizes)]
    reach = [(b - 1) * d + 1 for b, d in zip(block, gaps, strict=True)]
    grid = [(w - r) // t + 1 for w, r, t in zip(whole, reach, steps, strict=True)]
    cells, elements = int(np.prod(block)), int(np.prod(whole))
    planes = input.sizes[0] * input.sizes[1] // cells
    inside, start = np.indices(block).reshape(count, -1), np.indices(grid).reshape(count, -1)
    axes = [inside[i][:, None] * gaps[i] + start[i][None] * steps[i] for i in range(count)]
    place = np.ravel_multi_index(axes, whole).ravel()
    places = (np.arange(planes)[:, None] * elements + place[None]).ravel()
    room = g.const(np.zeros(planes * elements, input.dtype))
    made = g.scatter_by(room, g.const(places.astype(np.int64)), g.reshape(input, [-1]), "add")
    made = g.reshape(made, [input.sizes[0], planes // input.sizes[0], *whole])
    for i, size in enumerate(sizes):
        made = g.part(made, i + 2, edges[i], edges[i] + size)
    return made


@OPS.lower("MaxUnpool", dtypes=NUMBERS)
def max_unpool(
    g: Builder,
    X: Tensor,
    I: Tensor,
    output_shape: Const | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> Tensor:
    """Put elements at the places that a pool remembered."""
    if X.sizes is None:
        raise Refusal("dynamic sizes", "dynamic_shape")
    count = len(kernel_shape)
    steps = tuple(strides or ()) or (1,) * count
    edges = tuple(pads or ()) or (0,) * (2 * count)
    own = [
        (s - 1) * t - edges[i] - edges[i + count] + k
        for i, (s, t, k) in enumerate(zip(X.sizes[2:], steps, kernel_shape, strict=True))
    ]
    shape = [*X.sizes[:2], *own]
    room = g.const(np.zeros(int(np.prod(shape)), X.dtype))
    flat = g.scatter(room, g.reshape(I, [-1, 1]), g.reshape(X, [-1]))
    small = g.reshape(flat, shape)
    wanted = shape if output_shape is None else [int(s) for s in output_shape.array.reshape(-1)]
    if any(w < s for w, s in zip(wanted, shape, strict=True)):
        raise Refusal("output_shape is smaller than what is unpooled")
    more = [w - s for w, s in zip(wanted, shape, strict=True)]
    return g.pad(small, [0] * len(more), more)
