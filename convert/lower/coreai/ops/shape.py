"""Shapes, and moves that change no value."""

from __future__ import annotations

import math

import numpy as np

from edgeinfer.convert.lower.coreai.builder import Builder, Extent, known
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("Reshape")
def reshape(g: Builder, data: Tensor, shape: Tensor, *, allowzero: int) -> Tensor:
    if shape.data is None:
        return _to_vector(g, data, shape, allowzero)
    wanted: list[Extent] = [int(s) for s in shape.data]
    if not allowzero:
        wanted = [g.extent(data, i) if s == 0 else s for i, s in enumerate(wanted)]
    if data.sizes is not None and -1 in wanted:
        rest = math.prod(s for s in wanted if isinstance(s, int) and s != -1)
        if rest:
            wanted[wanted.index(-1)] = math.prod(data.sizes) // rest
    return g.reshape(data, wanted)


def _to_vector(g: Builder, x: Tensor, shape: Tensor, allowzero: int) -> Tensor:
    """A shape known only at run time; its zeros copy the input's sizes."""
    (rank,) = shape.shape
    if rank is None:
        raise Refusal("the result's number of axes is not known", "dynamic_shape")
    if not allowzero and x.rank:
        sizes = g.vector(g.extents(x), np.int64)
        if rank > x.rank:
            sizes = g.concat([sizes, g.const(np.ones(rank - x.rank, np.int64))], 0)
        sizes = g.slice(sizes, [0], [rank])
        shape = g.select(g.binary("equal", shape, 0), sizes, shape)
    return g.call("reshape", x, g.cast(shape, np.int32))


@OPS.lower("Flatten")
def flatten(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    axis = axis % input.rank if axis < 0 else axis
    if input.sizes is not None:
        first = math.prod(input.sizes[:axis])
        return g.reshape(input, [first, math.prod(input.sizes[axis:])])
    for kept, lead in ((input.shape[:axis], True), (input.shape[axis:], False)):
        sizes = [s for s in kept if s is not None]
        if len(sizes) == len(kept):
            size = math.prod(sizes)
            return g.reshape(input, [size, -1] if lead else [-1, size])
    if axis == 1:
        return g.reshape(input, [g.extent(input, 0), -1])
    raise Refusal("sizes on both sides are only known to a run", "dynamic_shape")


@OPS.lower("Transpose")
def transpose(g: Builder, data: Tensor, *, perm: tuple[int, ...] | None) -> Tensor:
    return g.transpose(data, perm if perm is not None else list(range(data.rank))[::-1])


@OPS.lower("Squeeze")
def squeeze(g: Builder, data: Tensor, axes: Const | None = None) -> Tensor:
    if axes is not None:
        return g.drop_axes(data, [int(a) for a in np.ravel(axes.array)])
    if data.sizes is None:
        raise Refusal("which axes have size 1 is only known to a run", "dynamic_shape")
    return g.drop_axes(data, [a for a, s in enumerate(data.sizes) if s == 1])


@OPS.lower("Unsqueeze")
def unsqueeze(g: Builder, data: Tensor, axes: Const) -> Tensor:
    return g.insert_axes(data, [int(a) for a in np.ravel(axes.array)])


@OPS.lower("Concat")
def concat(g: Builder, *inputs: Tensor, axis: int) -> Tensor:
    full = [t for t in inputs if t.shape[axis] != 0] or [inputs[0]]
    return g.concat(full, axis)


@OPS.lower("Shape")
def shape_of(g: Builder, data: Tensor, *, start: int, end: int | None) -> Tensor:
    chosen = list(range(data.rank))[start:end]
    if not chosen:
        return g.const(np.zeros(0, np.int64))
    return g.vector([g.extent(data, a) for a in chosen], np.int64)


@OPS.lower("Size")
def size_of(g: Builder, data: Tensor) -> Tensor:
    if data.sizes is not None:
        return g.const(np.int64(math.prod(data.sizes)))
    sizes = g.vector(g.extents(data), np.int64)
    return g.reduce("product", sizes, [0], keepdims=False)


@OPS.lower("Expand")
def expand(g: Builder, input: Tensor, shape: Tensor) -> Tensor:
    if shape.data is not None and input.sizes is not None:
        return g.expand(
            input, list(np.broadcast_shapes(input.sizes, tuple(int(s) for s in shape.data)))
        )
    (rank,) = shape.shape
    if rank is None:
        raise Refusal("the result's number of axes is not known", "dynamic_shape")
    rank = max(rank, input.rank)
    own, other = _padded(g, g.vector(g.extents(input), np.int64), rank), _padded(g, shape, rank)
    # Where one size is 1 the other counts: it may be 0.
    joined = g.select(g.binary("equal", own, 1), other, own)
    return g.call("broadcast_to", input, g.cast(joined, np.uint32))


def _padded(g: Builder, sizes: Tensor, rank: int) -> Tensor:
    (have,) = sizes.shape
    lead = rank - (have or 0)
    if not lead:
        return sizes
    ones = g.const(np.ones(lead, np.int64))
    return g.concat([ones, sizes], 0) if have else ones


@OPS.lower("Tile")
def tile(g: Builder, input: Tensor, repeats: Tensor) -> Tensor:
    return g.call("tile", input, g.cast(repeats, np.uint32))


@OPS.lower("ConstantOfShape")
def constant_of_shape(g: Builder, input: Tensor, *, value: object) -> Tensor:
    filler = np.zeros(1, np.float32) if value is None else np.asarray(value)
    one = g.const(filler.reshape(()))
    if input.data is not None:
        return g.const(np.full(tuple(int(s) for s in input.data), filler.reshape(())))
    return g.call("broadcast_to", one, g.cast(input, np.uint32))


@OPS.lower("Range", dtypes=NUMBERS)
def range_(g: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    first, last, step = (g.reshape(t, []) for t in (start, limit, delta))
    if not first.is_float:
        return g.call("range_", first, last, step)
    # Sums of steps drift; products do not.
    count = g.binary("divide", g.binary("sub", last, first), step)
    whole = g.cast(g.neg(g.floor(g.neg(count))), np.int32)
    indices = g.call("range_", np.int32(0), whole, np.int32(1))
    return g.binary("add", first, g.binary("mul", g.cast(indices, first.dtype), step))


@OPS.lower("DepthToSpace")
def depth_to_space(g: Builder, input: Tensor, *, blocksize: int, mode: str) -> Tensor:
    n, _, h, w = g.extents(input)
    channels = input.shape[1]
    if channels is None:
        raise Refusal("channels are only known to a run", "dynamic_shape")
    b, rest = blocksize, channels // blocksize**2
    if mode == "DCR":
        view, perm = g.reshape(input, [n, b, b, rest, h, w]), [0, 3, 4, 1, 5, 2]
    else:
        view, perm = g.reshape(input, [n, rest, b, b, h, w]), [0, 1, 4, 2, 5, 3]
    return g.reshape(g.transpose(view, perm), [n, rest, _times(g, h, b), _times(g, w, b)])


@OPS.lower("SpaceToDepth")
def space_to_depth(g: Builder, input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.sizes or known(input, "sizes are only known to a run").shape
    b = blocksize
    perm = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    view = g.transpose(g.reshape(input, [n, c, h // b, b, w // b, b]), perm)
    return g.reshape(view, [n, c * b * b, h // b, w // b])


def _times(g: Builder, size: Extent, factor: int) -> Extent:
    return size * factor if isinstance(size, int) else g.binary("mul", size, factor)
