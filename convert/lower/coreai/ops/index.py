"""Gathering and scattering."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder, Extent
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("Gather", since=13)
def gather(g: Builder, x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    if indices.data is not None and indices.data.size == 1 and x.shape[axis] is not None:
        place = int(indices.data.reshape(())) % int(x.shape[axis] or 1)
        part = g.part(x, axis, place, place + 1)
        sizes = list(range(axis % x.rank, axis % x.rank + indices.rank))
        return g.insert_axes(g.drop_axes(part, [axis]), sizes)
    return g.take(x, indices, axis)


@OPS.lower("GatherElements", since=13)
def gather_elements(g: Builder, x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis %= x.rank
    for a, (have, want) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if a != axis and have != want:
            x = g.part(x, a, 0, g.extent(indices, a))
    return g.call(
        "gather_along_axis", x, g.places(_from_start(g, x, indices, axis)), np.int32(axis)
    )


@OPS.lower("GatherND", since=13)
def gather_nd(g: Builder, x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    if batch_dims:
        raise Refusal(f"batch_dims={batch_dims}")
    return g.call("gather_nd", x, g.places(indices))


@OPS.lower("ScatterND", since=18)
def scatter_nd(
    g: Builder, x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none"
) -> Tensor:
    if reduction != "none":
        raise Refusal(f"reduction {reduction!r}")
    width = indices.shape[-1]
    if width is None:
        raise Refusal("the width of an index is only known to a run", "dynamic_shape")
    sizes = g.vector([g.extent(x, a) for a in range(width)], np.int64)
    turned = g.binary("add", indices, sizes)
    return g.scatter(x, g.select(g.less(indices, 0), turned, indices), updates)


@OPS.lower("ScatterElements", since=18)
def scatter_elements(
    g: Builder,
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: str = "none",
) -> Tensor:
    if reduction != "none":
        raise Refusal(f"reduction {reduction!r}")
    axis %= x.rank
    if indices.sizes is None:
        raise Refusal("indices of unknown size", "dynamic_shape")
    grids = np.indices(indices.sizes)
    places = [g.const(grid[..., None]) for grid in grids]
    places[axis] = g.insert_axes(g.cast(_from_start(g, x, indices, axis), np.int64), [-1])
    return g.scatter(x, g.concat(places, indices.rank), g.reshape(updates, list(indices.sizes)))


def _from_start(g: Builder, x: Tensor, indices: Tensor, axis: int) -> Tensor:
    size = g.extent(x, axis)
    last = size if isinstance(size, int) else g.cast(size, indices.dtype)
    return g.select(g.less(indices, 0), g.binary("add", indices, last), indices)


@OPS.lower("OneHot", since=11)
def one_hot(g: Builder, indices: Tensor, depth: Const, values: Tensor, *, axis: int = -1) -> Tensor:
    count = int(depth.array.reshape(()))
    place = axis % (indices.rank + 1)
    whole = g.cast(indices, np.int64)
    turned = g.select(g.less(whole, 0), g.binary("add", whole, count), whole)
    shape = [1] * (indices.rank + 1)
    shape[place] = count
    steps = g.const(np.arange(count, dtype=np.int64).reshape(shape))
    hit = g.binary("equal", g.insert_axes(turned, [place]), steps)
    off, on = (g.reshape(g.slice(values, [i], [i + 1]), []) for i in (0, 1))
    return g.select(hit, on, off)


@OPS.lower("TopK", since=11, dtypes=NUMBERS)
def top_k(
    g: Builder, x: Tensor, k: Tensor, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    axis %= x.rank
    count: Extent = int(k.data.reshape(())) if k.data is not None else g.reshape(k, [])
    order = g.call("argsort", x, np.int32(axis), np.bool_(largest), np.bool_(True))
    chosen = g.part(order, axis, 0, count)
    values = g.call("gather_along_axis", x, chosen, np.int32(axis))
    return values, g.cast(chosen, np.int64)


@OPS.lower("NonZero", since=13)
def non_zero(g: Builder, x: Tensor) -> Tensor:
    if not x.rank:
        raise Refusal("a scalar")
    found = g.call("non_zero", g.cast(x, np.bool_))
    return g.cast(g.transpose(found, [1, 0]), np.int64)
