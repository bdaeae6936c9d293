"""Elements taken and put by position."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, Span, Tensor
from edgeinfer.convert.lower.registry import Refusal


def non_negative(g: Builder, indices: Tensor, size: Extent) -> Tensor:
    """Count negative positions from the end; nothing is written where none can be negative."""
    if indices.data is not None and isinstance(size, int):
        found = indices.data.astype(np.int64)
        return g.const(np.where(found < 0, found + size, found), np.int32)
    plain = g.cast(indices, np.int32)
    if indices.bounds[0] >= 0:
        return plain
    moved = g.binary("add", plain, size)
    return g.select(g.binary("less", plain, 0), moved, plain)


def _as_number(g: Builder, x: Tensor) -> Tensor:
    """Truth values as integers: Core ML gathers numbers only."""
    return g.cast(x, np.int32) if x.dtype == np.bool_ else x


@OPS.lower("Gather", dtypes=ALL)
def gather(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """Gather."""
    at = axis % data.rank
    x = _as_number(g, data)
    where = non_negative(g, indices, g.extent(data, at))
    high = max(data.rank, data.rank + indices.rank - 1) > MAX_RANK
    if high:
        return _high_gather(g, data, where, at)
    out = g.emit("gather", x=x, indices=where, axis=at, span=_held(x))
    return g.cast(out, data.dtype)


def _held(x: Tensor) -> Span | None:
    """What integers lie between that come out of a tensor; of constants their own ends."""
    return x.bounds if x.is_integer else None


def _high_gather(g: Builder, data: Tensor, where: Tensor, axis: int) -> Tensor:
    view = g.reshape(_as_number(g, data), g.around(data, axis))
    flat = g.reshape(where, [-1])
    out = g.emit("gather", x=view, indices=flat, axis=1, span=_held(view))
    sizes = g.extents(data)
    shape = [*sizes[:axis], *g.extents(where), *sizes[axis + 1 :]]
    return g.cast(g.reshape(out, shape), data.dtype)


@OPS.lower("GatherElements", dtypes=ALL)
def gather_elements(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """gather_along_axis, after a cut where the indices cover less of the other axes."""
    at = axis % data.rank
    x = _as_number(g, data)
    where = non_negative(g, indices, g.extent(data, at))
    for a, (s, t) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if a != at and s != t:
            x = g.part(x, a, 0, g.extent(indices, a))
    out = g.emit("gather_along_axis", x=x, indices=where, axis=at, span=_held(x))
    return g.cast(out, data.dtype)


def _flat_positions(g: Builder, indices: Tensor, sizes: list[Extent]) -> Tensor:
    """Bring each row of positions above zero; the last axis runs over the data's axes."""
    if indices.bounds[0] >= 0 and indices.data is None:
        return g.cast(indices, np.int32)
    if indices.data is not None and all(isinstance(s, int) for s in sizes):
        found = indices.data.astype(np.int64)
        return g.const(np.where(found < 0, found + np.array(sizes), found), np.int32)
    plain = g.cast(indices, np.int32)
    moved = g.binary("add", plain, g.vector(sizes))
    return g.select(g.binary("less", plain, 0), moved, plain)


@OPS.lower("GatherND", dtypes=ALL)
def gather_nd(g: Builder, data: Tensor, indices: Tensor, *, batch_dims: int) -> Tensor:
    """gather_nd."""
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise Refusal("positions of unknown length", "dynamic_shape")
    sizes = [g.extent(data, a) for a in range(batch_dims, batch_dims + depth)]
    where = _flat_positions(g, indices, sizes)
    x = _as_number(g, data)
    batch = {"batch_dims": batch_dims} if batch_dims else {}
    out = g.emit("gather_nd", x=x, indices=where, span=_held(x), **batch)
    return g.cast(out, data.dtype)


_MODES = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@OPS.lower("ScatterND", dtypes=ALL)
def scatter_nd(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str
) -> Tensor:
    """scatter_nd."""
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise Refusal("positions of unknown length", "dynamic_shape")
    where = _flat_positions(g, indices, [g.extent(data, a) for a in range(depth)])
    x, new = _as_number(g, data), _as_number(g, updates)
    out = g.emit("scatter_nd", data=x, indices=where, updates=new, mode=_MODES[reduction])
    return g.cast(_spanned(g, out, data, updates, reduction), data.dtype)


def _spanned(g: Builder, out: Tensor, data: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if not out.is_integer:
        return out
    if not data.is_integer or data.dtype == np.int32:
        return out
    if reduction == "mul":
        raise Refusal(f"products of {data.dtype} may leave its type", "unsupported_dtype")
    (a, b), (c, d) = data.bounds, updates.bounds
    out.span = (min(a, c), max(b, d))
    if reduction == "add":
        # All may go to one place.
        count = math.prod(map(g.most, updates.shape))
        out.span = (a + min(c * count, 0), b + max(d * count, 0))
    return g.fitted(out)


@OPS.lower("ScatterElements", dtypes=ALL)
def scatter_elements(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str
) -> Tensor:
    """scatter_along_axis where the updates cover the other axes, else scatter_nd."""
    at = axis % data.rank
    where = non_negative(g, indices, g.extent(data, at))
    x, new = _as_number(g, data), _as_number(g, updates)
    covers = all(
        a == at or s == t for a, (s, t) in enumerate(zip(data.shape, indices.shape, strict=True))
    )
    mode = _MODES[reduction]
    if covers:
        out = g.emit("scatter_along_axis", data=x, indices=where, updates=new, axis=at, mode=mode)
    else:
        rows = _full_positions(g, where, at)
        flat = g.reshape(new, [-1])
        out = g.emit("scatter_nd", data=x, indices=rows, updates=flat, mode=mode)
    return g.cast(_spanned(g, out, data, updates, reduction), data.dtype)


def _full_positions(g: Builder, where: Tensor, axis: int) -> Tensor:
    """Positions along every axis for positions along one."""
    columns = [where if a == axis else grid(g, where, a) for a in range(where.rank)]
    return g.concat([g.reshape(c, [-1, 1]) for c in columns], 1)


def grid(g: Builder, x: Tensor, axis: int) -> Tensor:
    """Return the position along an axis of each element of integers."""
    if x.is_static:
        return g.const(np.indices(x.shape)[axis], np.int32)
    counted = g.insert_axes(g.positions(x, axis), [a for a in range(x.rank) if a != axis])
    return g.binary("add", g.binary("mul", x, 0, (0, 0)), counted, counted.span)


@OPS.lower("OneHot", dtypes=ALL)
def one_hot(g: Builder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int) -> Tensor:
    """A comparison with the counted positions, then a choice."""
    scalar = g.cast(g.reshape(depth, []), np.int32)
    size: Extent = scalar if scalar.data is None else int(scalar.data)
    at = axis % (indices.rank + 1)
    source = g.cast(indices, np.int32)
    inside = non_negative(g, source, size)
    counted = g.insert_axes(g.counted(size), [a for a in range(indices.rank + 1) if a != at])
    hit = g.binary("equal", g.insert_axes(inside, [at]), counted)
    numbers = _as_number(g, values)
    off, on = (g.reshape(g.slice(numbers, [i], [i + 1]), []) for i in (0, 1))
    return g.cast(g.select(hit, on, off), values.dtype)


@OPS.lower("NonZero", dtypes=ALL)
def non_zero(g: Builder, X: Tensor) -> Tensor:
    """non_zero, which lists positions by rows."""
    x = X if X.is_float else g.cast(X, np.float32)
    found = g.emit("non_zero", np.int64, x=x)
    out = g.transpose(found, [1, 0])
    out.span = (0, (1 << 31) - 1)
    return out


@OPS.lower("ReverseSequence", dtypes=ALL)
def reverse_sequence(
    g: Builder, input: Tensor, sequence_lens: Tensor, *, batch_axis: int, time_axis: int
) -> Tensor:
    """reverse_sequence."""
    x = _as_number(g, input)
    lengths = g.cast(sequence_lens, np.int32)
    out = g.emit(
        "reverse_sequence",
        x=x,
        lengths=lengths,
        seq_axis=time_axis,
        batch_axis=batch_axis,
        span=_held(x),
    )
    return g.cast(out, input.dtype)
