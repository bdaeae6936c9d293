"""Shapes: requested, changed, joined and cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import INT32, Tensor
from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.types import Array


def numbers(x: Tensor | None) -> list[int] | None:
    """The integers of a constant vector; None for one that a run makes."""
    if x is None or x.data is None:
        return None
    return [int(v) for v in x.data.reshape(-1)]


def partly(g: Builder, x: Tensor) -> list[Extent]:
    """The entries of a vector of sizes: known ones as integers, the others as scalars."""
    known = numbers(x)
    if known is not None:
        return list(known)
    length = x.shape[0]
    if not isinstance(length, int):
        raise Refusal("a shape of unknown length", "dynamic_shape")
    found = g.var(x).sym_val
    symbols = [None] * length if found is None else list(np.reshape(found, -1))
    entries: list[Extent] = []
    for index, symbol in enumerate(symbols):
        if isinstance(symbol, (int, np.integer)):
            entries.append(int(symbol))
        else:
            entries.append(g.reshape(g.slice(x, [index], [index + 1]), []))
    return entries


@OPS.lower("Reshape", dtypes=ALL)
def reshape(g: Builder, data: Tensor, shape: Tensor, *, allowzero: int) -> Tensor:
    """Reshape; a zero stands for the input's own size."""
    wanted = g.given(0)
    if wanted is not None and data.is_static:
        return g.reshape(data, wanted)
    entries = partly(g, shape)
    if not allowzero:
        entries = [_own_for_zero(g, data, i, e) for i, e in enumerate(entries)]
    return g.reshape(data, entries)


def _own_for_zero(g: Builder, data: Tensor, axis: int, entry: Extent) -> Extent:
    """The size of an axis where zero asks for it; sizes that come from shapes are above zero."""
    if isinstance(entry, int):
        return g.extent(data, axis) if entry == 0 else entry
    if entry.bounds[0] >= 0 or axis >= data.rank:
        return entry
    own = g.extent(data, axis)
    size = own if isinstance(own, Tensor) else g.const(own, np.int32)
    plain = g.cast(entry, np.int32)
    return g.select(g.binary("equal", plain, 0), size, plain)


@OPS.lower("Flatten", dtypes=ALL)
def flatten(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """Reshape to a matrix."""
    at = axis + input.rank if axis < 0 else axis
    head, tail = input.shape[:at], input.shape[at:]
    if all(isinstance(s, int) for s in tail):
        return g.reshape(input, [-1, math.prod(tail)])
    if all(isinstance(s, int) for s in head):
        return g.reshape(input, [math.prod(head), -1])
    return g.reshape(input, [g.product([g.extent(input, a) for a in range(at)]), -1])


@OPS.lower("Transpose", dtypes=ALL)
def transpose(g: Builder, data: Tensor, *, perm: Sequence[int] | None) -> Tensor:
    """Transpose."""
    return g.transpose(data, perm or range(data.rank)[::-1])


@OPS.lower("Squeeze", dtypes=ALL)
def squeeze(g: Builder, data: Tensor, axes: Const | None = None) -> Tensor:
    """Squeeze."""
    if axes is None:
        if not data.is_static:
            raise Refusal("which axes have size 1 is known only at run time", "dynamic_shape")
        return g.reshape(data, [s for s in data.shape if s != 1])
    return g.drop_axes(data, [int(a) for a in axes.array.reshape(-1)])


@OPS.lower("Unsqueeze", dtypes=ALL)
def unsqueeze(g: Builder, data: Tensor, axes: Const) -> Tensor:
    """expand_dims."""
    return g.insert_axes(data, [int(a) for a in axes.array.reshape(-1)])


@OPS.lower("Concat", dtypes=ALL)
def concat(g: Builder, *inputs: Tensor, axis: int) -> Tensor:
    """Concat."""
    at = axis % inputs[0].rank
    if inputs[0].rank > 5:
        return _high_concat(g, list(inputs), at)
    return g.concat(list(inputs), at)


def _high_concat(g: Builder, parts: list[Tensor], axis: int) -> Tensor:
    joined = g.concat([g.reshape(p, g.around(p, axis)) for p in parts], 1)
    sizes = g.extents(parts[0])
    return g.reshape(joined, [*sizes[:axis], g.extent(joined, 1), *sizes[axis + 1 :]])


@OPS.lower("Split", dtypes=ALL)
def split(
    g: Builder, input: Tensor, split: Tensor | None = None, *, axis: int, num_outputs: int | None
) -> tuple[Tensor, ...]:
    """Split; slices between positions known only at run time."""
    at = axis % input.rank
    size = input.shape[at]
    known = numbers(split)
    if known is not None:
        sizes = known
    elif isinstance(size, int) and num_outputs:
        each = -(-size // num_outputs)
        sizes = [max(min(each, size - each * i), 0) for i in range(num_outputs)]
    else:
        return _late_split(g, input, at, split, num_outputs or 0)
    if 0 in sizes:
        return _uneven(g, input, sizes, at)
    if input.rank > 5:
        parts = g.split(g.reshape(input, g.around(input, at)), sizes, 1)
        every = g.extents(input)
        return tuple(
            g.reshape(p, [*every[:at], s, *every[at + 1 :]])
            for p, s in zip(parts, sizes, strict=True)
        )
    return tuple(g.split(input, sizes, at))


def _late_split(
    g: Builder, x: Tensor, axis: int, split: Tensor | None, count: int
) -> tuple[Tensor, ...]:
    size = g.extent(x, axis)
    if split is None:
        # The last one may be smaller.
        each = g.binary("floor_div", g.binary("add", size, count - 1), count, (0, INT32.max))
        ends = [g.binary("minimum", g.binary("mul", each, i), size) for i in range(1, count)]
        bounds: list[Extent] = [0, *ends, size]
    else:
        bounds = [0]
        for part in partly(g, split):
            bounds.append(g.plus(bounds[-1], part))
    return tuple(g.part(x, axis, *ends) for ends in pairwise(bounds))


def _uneven(g: Builder, x: Tensor, sizes: list[int], axis: int) -> tuple[Tensor, ...]:
    """Parts without elements are constants, which only some operators accept."""
    parts = iter(g.split(x, [s for s in sizes if s], axis))
    shape = list(x.shape)
    out = []
    for size in sizes:
        shape[axis] = size
        out.append(next(parts) if size else g.const(np.zeros(shape), x.dtype))
    return tuple(out)


@OPS.lower("Shape", dtypes=ALL)
def shape(g: Builder, data: Tensor, *, start: int, end: int | None) -> Tensor:
    """Constants where sizes are known, else shape."""
    axes = range(data.rank)[start:end]
    if all(isinstance(data.shape[a], int) for a in axes):
        return g.const([data.shape[a] for a in axes], np.int64)
    whole = g.emit("shape", np.int64, x=data, span=(0, max(map(g.most, data.shape))))
    if len(axes) == data.rank:
        return whole
    return g.slice(whole, [axes.start], [axes.stop])


@OPS.lower("Size", dtypes=ALL)
def size(g: Builder, data: Tensor) -> Tensor:
    """The product of the sizes."""
    if data.is_static:
        return g.const(math.prod(data.shape), np.int64)
    sizes = g.emit("shape", np.int32, x=data)
    made = g.emit("reduce_prod", np.int64, x=sizes, axes=[0], keep_dims=False)
    made.span = (0, int(INT32.max))
    return made


@OPS.lower("Expand", dtypes=ALL)
def expand(g: Builder, input: Tensor, shape: Tensor) -> Tensor:
    """Tile where sizes are known, else an addition of zeros."""
    wanted = g.given(0)
    if wanted is not None and input.is_static and numbers(shape) is not None:
        out = _high_expand(g, input, wanted) if len(wanted) > 5 else g.expand(input, wanted)
        return g.same(out) if out is input else out
    entries = partly(g, shape)
    rank = max(len(entries), input.rank)
    entries = [*([1] * (rank - len(entries))), *entries]
    x = g.insert_axes(input, list(range(rank - input.rank)))
    if x.is_integer:
        x.span = input.bounds
    if all(isinstance(e, int) for e in entries) and all(
        e == 1 or isinstance(s, int) for e, s in zip(entries, x.shape, strict=True)
    ):
        reps = [e if s == 1 and e != 0 else 1 for e, s in zip(entries, x.shape, strict=True)]
        return g.emit("tile", x=x, reps=reps, span=x.span)
    zeros = g.emit("fill", np.float32, shape=g.vector(entries), value=0.0)
    if wanted is not None:
        # A run may give other sizes than those that are declared: it is to fail. An addition of a
        # ``fill`` of zeros is taken out where it seems to keep the shape (coremltools 9).
        zero = g.const(np.zeros((1,) * rank), np.float32)
        zeros = g.emit("tile", x=zero, reps=g.vector(entries))
    return _spread(g, x, zeros)


def _spread(g: Builder, x: Tensor, zeros: Tensor) -> Tensor:
    if x.dtype == np.bool_:
        return g.cast(_spread(g, g.cast(x, np.int32), zeros), np.bool_)
    return g.binary("add", x, g.cast(zeros, x.dtype), x.span)


def _high_expand(g: Builder, x: Tensor, wanted: Sequence[int]) -> Tensor:
    if x.dtype == np.bool_:
        return g.cast(_high_expand(g, g.cast(x, np.int32), wanted), np.bool_)
    spread = g.const(np.broadcast_to(np.zeros(1, x.dtype), tuple(wanted)), x.dtype)
    return g.binary("add", x, spread, x.span)


@OPS.lower("Tile", dtypes=ALL)
def tile(g: Builder, input: Tensor, repeats: Tensor) -> Tensor:
    """Tile."""
    reps = numbers(repeats)
    if reps is None:
        return g.emit("tile", x=input, reps=g.cast(repeats, np.int32), span=input.span)
    if all(r == 1 for r in reps):
        return g.same(input)
    if 0 in reps:
        raise Refusal("tensors without elements do not exist", "dynamic_shape")
    if input.rank > 5:
        raise Refusal(f"rank {input.rank}", "unsupported_rank")
    return g.emit("tile", x=input, reps=reps, span=input.span)


@OPS.lower("ConstantOfShape", dtypes=ALL)
def constant_of_shape(g: Builder, input: Tensor, *, value: Array | None) -> Tensor:
    """Fill."""
    fill = np.zeros(1, np.float32) if value is None else value.reshape(-1)[:1]
    known = numbers(input)
    if known is not None:
        return g.const(np.broadcast_to(fill, known), fill.dtype)
    entries = g.vector(partly(g, input))
    kind = fill.dtype
    held = np.int32 if kind.kind in "iub" else kind.type
    out = g.emit("fill", held, shape=entries, value=held(fill[0]))
    if out.is_integer:
        out.span = (int(fill[0]), int(fill[0]))
    elif out.is_float and not np.isnan(fill[0]):
        out.reach = (float(fill[0]), float(fill[0]))
    return g.cast(out, kind)


@OPS.lower("Range", dtypes=ALL)
def range_(g: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """range_1d."""
    ends = [g.reshape(t, []) for t in (start, limit, delta)]
    out = g.emit("range_1d", start.dtype, start=ends[0], end=ends[1], step=ends[2])
    if out.is_integer:
        spans = [t.bounds for t in (start, limit)]
        out.span = (min(s[0] for s in spans), max(s[1] for s in spans))
    return out


@OPS.lower("DepthToSpace")
def depth_to_space(g: Builder, input: Tensor, *, blocksize: int, mode: str) -> Tensor:
    """Depth first: depth_to_space; channels first: pixel_shuffle."""
    if not input.is_float:
        return _block_moves(g, input, blocksize, mode)
    if mode == "DCR":
        return g.emit("depth_to_space", x=input, block_size=blocksize)
    return g.emit("pixel_shuffle", x=input, upscale_factor=blocksize)


def _block_moves(g: Builder, x: Tensor, block: int, mode: str) -> Tensor:
    if not x.is_static:
        raise Refusal("integers of unknown sizes", "dynamic_shape")
    n, c, h, w = x.shape
    depth = c // block**2
    sizes = [n, block, block, depth, h, w] if mode == "DCR" else [n, depth, block, block, h, w]
    perm = [0, 3, 4, 1, 5, 2] if mode == "DCR" else [0, 1, 4, 2, 5, 3]
    moved = g.transpose(g.reshape(x, sizes), perm)
    return g.reshape(moved, [n, depth, h * block, w * block])


@OPS.lower("SpaceToDepth")
def space_to_depth(g: Builder, input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Depth first: space_to_depth; channels first: pixel_unshuffle; integers by a transpose."""
    if input.is_float and mode == "DCR":
        return g.emit("space_to_depth", x=input, block_size=blocksize)
    if input.is_float and g.offers("pixel_unshuffle"):
        return g.emit("pixel_unshuffle", x=input, downscale_factor=np.uint32(blocksize))
    if not input.is_static:
        raise Refusal("integers of unknown sizes", "dynamic_shape")
    n, c, h, w = input.shape
    b = blocksize
    perm = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    moved = g.transpose(g.reshape(input, [n, c, h // b, b, w // b, b]), perm)
    return g.reshape(moved, [n, c * b * b, h // b, w // b])


def _right(g: Builder, x: Tensor) -> Tensor:
    """How many columns right of the diagonal each place of a matrix is: int32."""
    rows, columns = (g.positions(x, a) for a in (x.rank - 2, x.rank - 1))
    return g.binary("sub", g.insert_axes(columns, [0]), g.insert_axes(rows, [1]))


@OPS.lower("EyeLike", dtypes=ALL)
def eye_like(g: Builder, input: Tensor, *, dtype: int | None, k: int) -> Tensor:
    """A constant where the sizes are known."""
    kind = input.dtype if dtype is None else ir.DataType(dtype).numpy()
    if not input.is_static:
        return g.cast(g.binary("equal", _right(g, input), k), kind)
    return g.const(np.eye(input.shape[0], input.shape[1], k=k), kind)
