"""Gathering and scattering."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreai.builder import Builder, Extent
from edgeinfer.convert.lower.coreai.registry import FLOATS, NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("Gather")
def gather(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    if indices.data is not None and indices.data.size == 1 and data.shape[axis] is not None:
        place = int(indices.data.reshape(())) % int(data.shape[axis] or 1)
        part = g.part(data, axis, place, place + 1)
        sizes = list(range(axis % data.rank, axis % data.rank + indices.rank))
        return g.insert_axes(g.drop_axes(part, [axis]), sizes)
    return g.take(data, indices, axis)


@OPS.lower("GatherElements")
def gather_elements(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    axis %= data.rank
    for a, (have, want) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if a != axis and have != want:
            data = g.part(data, a, 0, g.extent(indices, a))
    return g.call(
        "gather_along_axis",
        data,
        g.int32_indices(_from_start(g, data, indices, axis)),
        np.int32(axis),
    )


@OPS.lower("GatherND")
def gather_nd(g: Builder, data: Tensor, indices: Tensor, *, batch_dims: int) -> Tensor:
    if batch_dims:
        # The positions of the batch go in front of each index.
        if indices.sizes is None:
            raise Refusal("batches of unknown size", "dynamic_shape")
        lines = indices.sizes[:-1]
        grids = [
            np.broadcast_to(grid[..., None], (*lines, 1)).astype(np.int32)
            for grid in np.indices(lines)[:batch_dims]
        ]
        indices = g.concat([*map(g.const, grids), g.cast(indices, np.int32)], len(lines))
    return g.call("gather_nd", data, g.int32_indices(indices))


@OPS.lower("ScatterND")
def scatter_nd(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str
) -> Tensor:
    width = indices.shape[-1]
    if width is None:
        raise Refusal("the width of an index is only known to a run", "dynamic_shape")
    sizes = g.vector([g.extent(data, a) for a in range(width)], np.int64)
    from_end = g.binary("add", indices, sizes)
    found = g.select(g.less(indices, 0), from_end, indices)
    if reduction == "none":
        return g.scatter(data, found, updates)
    return _combined(g, data, found, updates, reduction)


@OPS.lower("ScatterElements")
def scatter_elements(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str
) -> Tensor:
    axis %= data.rank
    if indices.sizes is None:
        raise Refusal("indices of unknown size", "dynamic_shape")
    grids = np.indices(indices.sizes)
    positions = [g.const(grid[..., None]) for grid in grids]
    positions[axis] = g.insert_axes(g.cast(_from_start(g, data, indices, axis), np.int64), [-1])
    found = g.concat(positions, indices.rank)
    if reduction == "none":
        return g.scatter(data, found, g.reshape(updates, list(indices.sizes)))
    return _combined(g, data, found, updates, reduction)


def _combined(g: Builder, data: Tensor, found: Tensor, updates: Tensor, how: str) -> Tensor:
    """Add, multiply or compare what is scattered with what is there, on the flat elements."""
    if data.sizes is None or found.sizes is None:
        raise Refusal(f"reduction {how!r} on dynamic sizes", "dynamic_shape")
    if data.dtype == np.bool_:
        raise Refusal(f"reduction {how!r} of truths", "unsupported_dtype")
    width = found.sizes[-1]
    rest = data.sizes[width:]
    inner = int(np.prod(rest, dtype=np.int64))
    steps = np.array([np.prod(data.sizes[a + 1 :], dtype=np.int64) for a in range(width)])
    first = g.reduce("sum", g.binary("mul", g.cast(found, np.int64), g.const(steps)), [-1])
    positions = g.binary(
        "add", g.reshape(first, [-1, 1]), g.const(np.arange(inner, dtype=np.int64)[None])
    )
    flat = g.reshape(data, [-1])
    made = g.scatter_by(flat, g.reshape(positions, [-1]), g.reshape(updates, [-1]), how)
    return g.reshape(made, list(data.sizes))


def _from_start(g: Builder, x: Tensor, indices: Tensor, axis: int) -> Tensor:
    size = g.extent(x, axis)
    last = size if isinstance(size, int) else g.cast(size, indices.dtype)
    return g.select(g.less(indices, 0), g.binary("add", indices, last), indices)


@OPS.lower("OneHot")
def one_hot(g: Builder, indices: Tensor, depth: Const, values: Tensor, *, axis: int) -> Tensor:
    count = int(depth.array.reshape(()))
    place = axis % (indices.rank + 1)
    whole = g.cast(indices, np.int64)
    from_start = g.select(g.less(whole, 0), g.binary("add", whole, count), whole)
    shape = [1] * (indices.rank + 1)
    shape[place] = count
    steps = g.const(np.arange(count, dtype=np.int64).reshape(shape))
    hit = g.binary("equal", g.insert_axes(from_start, [place]), steps)
    off, on = (g.reshape(g.slice(values, [i], [i + 1]), []) for i in (0, 1))
    return g.select(hit, on, off)


@OPS.lower("TopK", dtypes=NUMBERS)
def top_k(g: Builder, x: Tensor, k: Tensor, *, axis: int, largest: int) -> tuple[Tensor, Tensor]:
    axis %= x.rank
    count: Extent = int(k.data.reshape(())) if k.data is not None else g.reshape(k, [])
    order = g.call("argsort", x, np.int32(axis), np.bool_(largest), np.bool_(True))
    chosen = g.part(order, axis, 0, count)
    values = g.call("gather_along_axis", x, chosen, np.int32(axis))
    return values, g.cast(chosen, np.int64)


@OPS.lower("NonZero")
def non_zero(g: Builder, x: Tensor) -> Tensor:
    if not x.rank:
        raise Refusal("a scalar")
    found = g.call("non_zero", g.cast(x, np.bool_))
    return g.cast(g.transpose(found, [1, 0]), np.int64)


@OPS.lower("Hardmax", dtypes=FLOATS)
def hardmax(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    axis %= input.rank
    place = g.cast(g.call("argmax", input, np.int32(axis)), np.int64)
    size = g.extent(input, axis)
    if not isinstance(size, int):
        raise Refusal("a dynamic size", "dynamic_shape")
    shape = [size if a == axis else 1 for a in range(input.rank)]
    steps = g.const(np.arange(size, dtype=np.int64).reshape(shape))
    return g.cast(g.binary("equal", place, steps), input.dtype)


@OPS.lower("EyeLike")
def eye_like(g: Builder, input: Tensor, *, dtype: int | None, k: int) -> Tensor:
    if input.sizes is None or input.rank != 2:
        raise Refusal("a dynamic size", "dynamic_shape")
    kind = input.dtype if dtype is None else ir.DataType(dtype).numpy()
    rows, columns = input.sizes
    return g.const(np.eye(rows, columns, k).astype(kind))


@OPS.lower("ReverseSequence")
def reverse_sequence(
    g: Builder, input: Tensor, sequence_lens: Tensor, *, batch_axis: int, time_axis: int
) -> Tensor:
    size = g.extent(input, time_axis)
    if not isinstance(size, int) or input.rank < 2:
        raise Refusal("a dynamic size", "dynamic_shape")
    time, batch = time_axis % input.rank, batch_axis % input.rank
    steps = g.const(np.arange(size).reshape([size if a == time else 1 for a in range(input.rank)]))
    lengths = g.insert_axes(sequence_lens, [a for a in range(input.rank) if a != batch])
    backwards = g.binary("sub", g.binary("sub", lengths, steps), 1)
    positions = g.select(g.less(steps, lengths), backwards, steps)
    whole = g.expand(positions, g.extents(input))
    return g.call("gather_along_axis", input, g.int32_indices(whole), np.int32(time))
