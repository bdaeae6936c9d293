"""Elements taken and put by position."""

from __future__ import annotations

from functools import reduce

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, OPS
from edgeinfer.convert.lower.tflite.sizes import (
    as_bits,
    axis_of,
    carried,
    compute,
    counting,
    extents,
    fold_binary,
    known,
    known_product,
    merge,
    narrow,
    non_negative,
    product,
    reform,
    scalar,
    shape_tensor,
)
from edgeinfer.convert.lower.tflite.widen import NUMBERS, widened
from edgeinfer.types import Array

MASK_LIMIT = 1 << 22
"""Elements of the mask that pairs every update with every result."""

_COMBINE = {"mul": "MUL", "max": "MAXIMUM", "min": "MINIMUM"}
_REDUCE = {"mul": "REDUCE_PROD", "max": "REDUCE_MAX", "min": "REDUCE_MIN"}


@OPS.lower("Gather", dtypes=ANY)
@carried()
def gather(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """GATHER, or a slice of neighbours; negative indices are counted from the end."""
    at = axis_of(axis, data.rank)
    where = non_negative(g, indices, g.extent(data, at))
    if where.data is not None and data.data is None:
        run = where.data.ravel()
        size = data.shape[at]
        if run.size and (run < 0).any():
            # Of an axis whose size is not known.
            where = non_negative(g, where, g.extent(data, at))
        elif run.size and size is not None and (np.diff(run) == 1).all():
            return _take_run(g, data, where, at)
    return g.gather(data, where, at)


def _take_run(g: Builder, data: Tensor, where: Tensor, axis: int) -> Tensor:
    """Neighbours are a slice, which XNNPACK takes and GATHER is not."""
    first, last = int(where.value.min()), int(where.value.max())
    begin = [first if a == axis else 0 for a in range(data.rank)]
    end = [last + 1 if a == axis else None for a in range(data.rank)]
    part = g.slice(data, begin, end, [1] * data.rank)
    if where.rank == 0:
        return g.drop_axis(part, axis)
    own = extents(g, part)
    return reform(g, part, [*own[:axis], *where.static_shape, *own[axis + 1 :]])


def _linear(g: Builder, x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Where each element of ``indices`` points to in the flattened tensor."""
    sizes = extents(g, x)
    where = narrow(g, non_negative(g, indices, sizes[axis]))
    total: Tensor | None = None
    for a in range(x.rank):
        if a != axis and indices.shape[a] == 1:
            continue
        stride = product(g, sizes[a + 1 :])
        part = where if a == axis else _along(g, counting(g, g.extent(indices, a)), a, x.rank)
        if stride != 1:
            part = fold_binary(g, "MUL", part, scalar(g, stride))
        total = part if total is None else fold_binary(g, "ADD", total, part)
    return total if total is not None else where


def _along(g: Builder, vector: Tensor, axis: int, rank: int) -> Tensor:
    sizes: list[Extent] = [1] * rank
    sizes[axis] = g.extent(vector, 0)
    return reform(g, vector, sizes)


def _flat(g: Builder, x: Tensor) -> Tensor:
    return merge(g, x, [range(x.rank)])


@OPS.lower("GatherElements", dtypes=ANY)
@carried()
def gather_elements(g: Builder, data: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """GATHER of single elements of the flattened tensor."""
    where = _linear(g, data, indices, axis_of(axis, data.rank))
    return g.gather(_flat(g, data), where, 0)


@OPS.lower("GatherND", dtypes=ANY)
@carried()
def gather_nd(g: Builder, data: Tensor, indices: Tensor, *, batch_dims: int) -> Tensor:
    """GATHER_ND, or GATHER of a flattened batch."""
    depth = indices.shape[-1]
    if depth is None:
        raise Refusal("the length of an index must be known", "dynamic_shape")
    sizes = extents(g, data)
    tail = sizes[batch_dims + depth :]
    where = narrow(g, non_negative(g, indices, g.shape_vector(sizes[batch_dims:][:depth])))
    if not batch_dims:
        shape = (*indices.shape[:-1], *known(tail))
        return g.emit("GATHER_ND", [data, where], shape)
    # Every index counts from the start of the flattened batch.
    strides = [product(g, sizes[batch_dims + i + 1 : batch_dims + depth]) for i in range(depth)]
    if where.data is not None and all(isinstance(s, int) for s in strides):
        place = g.const((where.data * np.array(strides)).sum(-1), np.int32)
    else:
        scaled = g.binary("MUL", where, g.shape_vector(strides))
        place = g.reduce("SUM", scaled, [indices.rank - 1], False)
    count = product(g, sizes[:batch_dims])
    inner = product(g, sizes[batch_dims : batch_dims + depth])
    starts = fold_binary(g, "MUL", counting(g, count), scalar(g, inner))
    lead: list[Extent] = [*sizes[:batch_dims], *[1] * (place.rank - batch_dims)]
    place = fold_binary(g, "ADD", place, reform(g, starts, lead))
    flat = g.reshape(data, [compute(g, "MUL", count, inner), *tail])
    return g.gather(flat, place, 0)


@OPS.lower("ScatterElements", dtypes=ANY)
def scatter_elements(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str
) -> Tensor:
    """A scatter of single elements of the flattened tensor."""
    where = _flat(g, _linear(g, data, indices, axis_of(axis, data.rank)))
    out = _scatter(g, _flat(g, data), where, _flat(g, updates), reduction)
    return reform(g, out, extents(g, data))


@OPS.lower("ScatterND", dtypes=ANY)
def scatter_nd(
    g: Builder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str
) -> Tensor:
    """A scatter of rows."""
    depth = indices.shape[-1]
    if depth is None:
        raise Refusal("the length of an index must be known", "dynamic_shape")
    sizes = extents(g, data)
    where = narrow(g, non_negative(g, indices, g.shape_vector(sizes[:depth])))
    strides = [product(g, sizes[i + 1 : depth]) for i in range(depth)]
    if where.data is not None and all(isinstance(s, int) for s in strides):
        rows = g.const((where.data * np.array(strides)).sum(-1), np.int32)
    else:
        scaled = g.binary("MUL", where, g.shape_vector(strides))
        rows = g.reduce("SUM", scaled, [indices.rank - 1], False)
    split = indices.rank - 1
    flat = merge(g, data, [range(depth), range(depth, data.rank)])
    flat_updates = merge(g, updates, [range(split), range(split, updates.rank)])
    out = _scatter(g, flat, _flat(g, rows), flat_updates, reduction)
    return reform(g, out, sizes)


def _scatter(g: Builder, x: Tensor, rows: Tensor, updates: Tensor, how: str) -> Tensor:
    """Put updates into the rows of a vector or matrix."""
    if rows.data is not None and x.shape[0] is not None:
        layers = _layers(rows.data)
        if how == "none":
            return _replace(g, x, rows.data, updates)
        if how != "add" and len(layers) <= 8:
            return reduce(lambda y, at: _combine(g, y, rows.value, at, updates, how), layers, x)
    if how == "none":
        return _overwrite(g, x, rows, updates)
    return _reduced(g, x, rows, updates, how)


def _layers(rows: Array) -> list[Array]:
    """Positions of the updates, in groups that name no row twice and keep the order."""
    seen: dict[int, int] = {}
    groups: list[list[int]] = []
    for position, row in enumerate(rows.tolist()):
        turn = seen.get(row, 0)
        seen[row] = turn + 1
        if turn == len(groups):
            groups.append([])
        groups[turn].append(position)
    return [np.array(group, np.int32) for group in groups]


@carried()
def _replace(g: Builder, x: Tensor, rows: Array, updates: Tensor) -> Tensor:
    """Which row each result is, in data and updates one after the other, is known now."""
    size = x.static_shape[0] if x.rank == 1 else x.shape[0] or 0
    source = np.arange(size, dtype=np.int32)
    source[rows] = np.arange(len(rows), dtype=np.int32) + size
    return g.gather(g.concat([x, updates], 0), g.const(source), 0)


@widened
def _combine(g: Builder, x: Tensor, rows: Array, at: Array, updates: Tensor, how: str) -> Tensor:
    new = updates if len(at) == len(rows) else g.gather(updates, g.const(at), 0)
    old = g.gather(x, g.const(rows[at], np.int32), 0)
    return _replace(g, x, rows[at], g.binary(_COMBINE[how], old, new))


def _overwrite(g: Builder, x: Tensor, rows: Tensor, updates: Tensor) -> Tensor:
    """ONNX lets no row be named twice here, so the sum that SCATTER_ND makes is the update."""
    if x.dtype.itemsize == 2:
        raise Refusal("the kernel takes no elements of two bytes", "unsupported_dtype")
    bits = {4: np.int32, 8: np.int64}.get(x.dtype.itemsize)
    own = x.dtype
    if bits is not None:
        x, updates = as_bits(g, x, np.dtype(bits)), as_bits(g, updates, np.dtype(bits))
    column = g.insert_axis(rows, 1)
    put = g.emit("SCATTER_ND", [column, updates, shape_tensor(g, x)], x.shape, x.dtype)
    hit = _hits(g, column, rows, x)
    out = g.emit("SELECT_V2", [hit, put, x], x.shape, x.dtype)
    return as_bits(g, out, own)


def _hits(g: Builder, column: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """Which rows are named, as booleans that broadcast against the data."""
    count = g.extent(rows, 0)
    one = g.const(1, np.int32)
    if isinstance(count, int):
        ones = g.const(np.ones(count, np.int32))
    else:
        ones = g.emit("FILL", [g.reshape(count, [1]), one], (None,), np.int32)
    size = g.shape_vector([g.extent(x, 0)])
    hits = g.binary(
        "GREATER", g.emit("SCATTER_ND", [column, ones, size], (x.shape[0],), np.int32), 0
    )
    return g.insert_axis(hits, 1) if x.rank == 2 else hits


@widened
def _reduced(g: Builder, x: Tensor, rows: Tensor, updates: Tensor, how: str) -> Tensor:
    if x.dtype.name not in ("float32", "int32", "int64"):
        raise Refusal(f"reduction {how!r} of {x.dtype}", "unsupported_dtype")
    if how == "add":
        column = g.insert_axis(rows, 1)
        put = g.emit("SCATTER_ND", [column, updates, shape_tensor(g, x)], x.shape, x.dtype)
        return g.binary("ADD", x, put)
    total = known_product((x.shape[0], *updates.shape))
    if total is None or total > MASK_LIMIT:
        raise Refusal(f"reduction {how!r} with indices known at run time only", "requires_constant")
    size = x.shape[0] or 0
    grid = g.const(np.arange(size, dtype=np.int32).reshape((size, 1) + (1,) * (x.rank - 1)))
    named = rows if x.rank == 1 else g.insert_axis(rows, 1)
    hit = g.binary("EQUAL", grid, named)
    neutral: float
    if how == "mul":
        neutral = 1
    elif x.dtype.kind == "f":
        neutral = -np.inf if how == "max" else np.inf
    else:
        limits = np.iinfo(x.dtype)
        neutral = limits.min if how == "max" else limits.max
    shape = (size, *updates.shape)
    spread = g.emit("SELECT_V2", [hit, updates, g.const(neutral, x.dtype)], shape, x.dtype)
    best = g.reduce(_REDUCE[how], spread, [1], False)
    return g.binary(_COMBINE[how], x, best)


@OPS.lower("OneHot", dtypes=NUMBERS | ANY)
def one_hot(g: Builder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int) -> Tensor:
    """ONE_HOT, which leaves out what is out of range."""
    if values.dtype.name not in ("float32", "int16", "int32", "int64", "uint8", "bool"):
        wide = np.int32 if values.dtype.itemsize < 4 and values.dtype.kind in "iu" else np.float32
        if values.dtype.itemsize > 2:
            hot = one_hot(g, indices, depth, g.const([False, True]), axis=axis)
            off, on = (g.reshape(g.slice(values, [i], [i + 1], [1]), []) for i in (0, 1))
            return g.emit("SELECT_V2", [hot, on, off], hot.shape, values.dtype)
        return g.cast(one_hot(g, indices, depth, g.cast(values, wide), axis=axis), values.dtype)
    where = indices if indices.dtype.name in ("int32", "int64") else g.cast(indices, np.int64)
    count: Extent
    if depth.data is not None:
        count = int(depth.data.ravel()[0])
    else:
        count = g.reshape(narrow(g, g.cast(depth, np.int64)), [])
    where = non_negative(g, where, count)
    at = axis_of(axis, indices.rank + 1)
    off = g.reshape(g.slice(values, [0], [1], [1]), [])
    on = g.reshape(g.slice(values, [1], [2], [1]), [])
    size = count if isinstance(count, int) else None
    shape = (*indices.shape[:at], size, *indices.shape[at:])
    operands = [where, scalar(g, count), on, off]
    return g.emit("ONE_HOT", operands, shape, values.dtype, axis=at)


@OPS.lower("TensorScatter", dtypes=ANY)
def tensor_scatter(
    g: Builder,
    past_cache: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int,
    mode: str,
) -> Tensor:
    """A scatter whose indices are counted from where each row is written."""
    at = axis_of(axis, past_cache.rank)
    if not past_cache.is_static or not update.is_static:
        raise Refusal("sizes must be known", "dynamic_shape")
    length, new = past_cache.static_shape[at], update.static_shape[at]
    rank, batch = past_cache.rank, past_cache.static_shape[0]
    starts = write_indices or g.const(np.zeros(batch, np.int64))
    starts = g.reshape(starts, [batch] + [1] * (rank - 1))
    steps = g.const(np.arange(new).reshape([-1 if a == at else 1 for a in range(rank)]))
    place = fold_binary(g, "ADD", g.cast(starts, np.int64), steps)
    if mode == "circular":
        place = g.binary("FLOOR_MOD", place, length)
    shape = update.static_shape
    where = g.emit("BROADCAST_TO", [place, g.const(list(shape), np.int32)], shape)
    return scatter_elements(g, past_cache, where, update, axis=at, reduction="none")


@OPS.lower("NonZero", dtypes=ANY)
def non_zero(g: Builder, x: Tensor) -> Tensor:
    """WHERE, transposed."""
    if not x.rank:
        raise Refusal("of a scalar", "unsupported_rank")
    if x.dtype.name not in ("float32", "int32", "int64", "bool", "int8", "uint8", "uint32"):
        wide = {"float16": np.float32, "int16": np.int32, "uint16": np.int32}.get(x.dtype.name)
        if wide is None:
            raise Refusal(f"of {x.dtype}", "unsupported_dtype")
        x = g.cast(x, wide)
    return g.transpose(g.emit("WHERE", [x], (None, x.rank), np.int64), [1, 0])
