"""Sizes and the order of axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax, sym, te, tirx

from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor, broadcast
from edgeinfer.convert.lower.tvm.ops.arith import dtype_name
from edgeinfer.convert.lower.tvm.ops.matrix import reshape, transpose
from edgeinfer.convert.lower.tvm.registry import ALL, NUMBERS, OPS


def product(sizes: Sequence[Any]) -> Any:
    """The number of elements, open sizes included."""
    return prod(sizes)


@OPS.lower("Reshape", since=14)
def reshape_(g: Builder, data: Tensor, shape: Const, *, allowzero: int = 0) -> Tensor:
    """The same elements in other sizes."""
    wanted = [int(s) for s in shape.array.reshape(-1)]
    sizes: list[Any] = [
        data.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(wanted)
    ]
    if -1 in wanted:
        place = wanted.index(-1)
        rest = sizes[:place] + sizes[place + 1 :]
        sizes[place] = _rest(data.shape, rest)
    return reshape(g, data, tuple(sizes))


def _rest(all_sizes: Sequence[Any], rest: Sequence[Any]) -> Any:
    """What one axis must be for the number of elements to stay."""
    top, bottom = list(all_sizes), []
    for size in rest:
        if not isinstance(size, int):
            found = next((i for i, t in enumerate(top) if t is size), None)
            if found is None:
                raise Refusal("a size that is not known", "dynamic_shape")
            del top[found]
        else:
            bottom.append(size)
    open_, numbers = (
        [t for t in top if not isinstance(t, int)],
        [t for t in top if isinstance(t, int)],
    )
    over, under = prod(numbers), prod(bottom)
    if not under:
        return 0
    if not open_:
        return over // under
    if over % under:
        return _divided(prod([over, *open_]), under)
    result: Any = over // under
    for size in open_:
        result = size if isinstance(result, int) and result == 1 else result * size
    return result


def _divided(size: Any, by: int) -> Any:
    """An open size over a number that it is a multiple of, such as 5 n over 5."""
    analyzer = sym.Analyzer()
    left = analyzer.simplify(tirx.floormod(size, by))
    if not (isinstance(left, tirx.IntImm) and int(left) == 0):
        raise Refusal("a size that is not known", "dynamic_shape")
    return analyzer.simplify(tirx.floordiv(size, by))


@OPS.lower("Flatten", since=13)
def flatten(g: Builder, input: Tensor, *, axis: int = 1) -> Tensor:
    """Two axes."""
    at = axis + input.rank if axis < 0 else axis
    return reshape(g, input, (product(input.shape[:at]), product(input.shape[at:])))


@OPS.lower("Squeeze", since=13)
def squeeze(g: Builder, data: Tensor, axes: Const | None = None) -> Tensor:
    """Without some axes of size 1."""
    if axes is None:
        gone = {a for a, s in enumerate(data.shape) if isinstance(s, int) and s == 1}
        if not data.is_static:
            raise Refusal("no axes, and open sizes", "dynamic_shape")
    else:
        gone = {int(a) % data.rank for a in axes.array.reshape(-1)}
    return reshape(g, data, tuple(s for a, s in enumerate(data.shape) if a not in gone))


@OPS.lower("Unsqueeze", since=13)
def unsqueeze(g: Builder, data: Tensor, axes: Const) -> Tensor:
    """With further axes of size 1."""
    rank = data.rank + axes.array.size
    new = {int(a) % rank for a in axes.array.reshape(-1)}
    rest = iter(data.shape)
    return reshape(g, data, tuple(1 if a in new else next(rest) for a in range(rank)))


@OPS.lower("Transpose", since=13)
def transpose_(g: Builder, data: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    """Axes in another order."""
    return transpose(g, data, tuple(perm) if perm is not None else tuple(range(data.rank))[::-1])


@OPS.lower("Expand", since=13)
def expand(g: Builder, input: Tensor, shape: Const) -> Tensor:
    """Repeated along axes of size 1."""
    wanted = tuple(int(s) for s in shape.array.reshape(-1))
    sizes = broadcast([input.shape, wanted])
    if input.data is not None:
        return g.const(np.broadcast_to(input.data, sizes))
    return g.emit(relax.op.broadcast_to(g.expr(input), list(sizes)))


@OPS.lower("Shape", since=21)
def shape_(g: Builder, data: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """The sizes, where they are fixed."""
    sizes = data.shape[start:end]
    if not all(isinstance(s, int) for s in sizes):
        raise Refusal("an open size as a value", "dynamic_shape")
    return g.const(np.asarray(sizes, np.int64))


@OPS.lower("Size", since=21)
def size_(g: Builder, data: Tensor) -> Tensor:
    """The number of elements, where it is fixed."""
    if not data.is_static:
        raise Refusal("an open size as a value", "dynamic_shape")
    return g.const(np.asarray(prod(data.shape), np.int64))


@OPS.lower("ConstantOfShape", since=21)
def constant_of_shape(g: Builder, input: Const, *, value: Any = None) -> Tensor:
    """One value everywhere."""
    item = np.zeros(1, np.float32) if value is None else np.asarray(value)
    shape = tuple(int(s) for s in input.array.reshape(-1))
    return g.const(np.full(shape, item.reshape(-1)[0], item.dtype))


@OPS.lower("Range", since=11, dtypes=NUMBERS)
def range_(g: Builder, start: Const, limit: Const, delta: Const) -> Tensor:
    """Evenly spaced numbers, known now."""
    first, stop, step = (c.array.reshape(-1)[0] for c in (start, limit, delta))
    return g.const(np.arange(first, stop, step, dtype=start.array.dtype))


@OPS.lower("Tile", since=13)
def tile(g: Builder, input: Tensor, repeats: Const) -> Tensor:
    """The whole repeated along each axis."""
    times = [int(r) for r in repeats.array.reshape(-1)]
    if input.data is not None:
        return g.const(np.tile(input.data, times))
    shape = tuple(s * t for s, t in zip(input.shape, times, strict=True))

    def compute(data: Any) -> Any:
        def element(*index: Any) -> Any:
            return data(*(tirx.floormod(i, s) for i, s in zip(index, data.shape, strict=True)))

        return te.compute(shape, element, name="tile")

    return g.te(compute, input, name="tile")


@OPS.lower("DepthToSpace", since=13)
def depth_to_space(g: Builder, input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Channels become pixels."""
    n, c, h, w = input.shape
    b = blocksize
    if mode == "DCR":
        parts, perm = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        parts, perm = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    moved = transpose(g, reshape(g, input, parts), perm)
    return reshape(g, moved, (n, c // (b * b), h * b, w * b))


@OPS.lower("SpaceToDepth", since=13)
def space_to_depth(g: Builder, input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Pixels become channels."""
    n, c, h, w = input.shape
    b = blocksize
    parted = reshape(g, input, (n, c, h // b, b, w // b, b))
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return reshape(g, transpose(g, parted, perm), (n, c * b * b, h // b, w // b))


@OPS.lower("EyeLike", since=22)
def eye_like(g: Builder, input: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """Ones on a diagonal."""
    if not input.is_static:
        raise Refusal("an open size", "dynamic_shape")
    kind = input.dtype if dtype is None else dtype_name(dtype)
    return g.const(np.eye(input.shape[0], input.shape[1], k=k, dtype=np.dtype(kind)))


@OPS.lower("OneHot", since=11, dtypes=ALL)
def one_hot(g: Builder, indices: Tensor, depth: Const, values: Tensor, *, axis: int = -1) -> Tensor:
    """One value where the index says, another elsewhere."""
    count = int(depth.array.reshape(-1)[0])
    at = axis % (indices.rank + 1)
    shape = (*indices.shape[:at], count, *indices.shape[at:])

    def compute(places: Any, pair: Any) -> Any:
        def element(*index: Any) -> Any:
            place = places(*index[:at], *index[at + 1 :]).astype("int64")
            wrapped = tirx.Select(place < 0, place + count, place)
            hit = tirx.EQ(wrapped, index[at].astype("int64"))
            one, zero = tirx.const(1, "int64"), tirx.const(0, "int64")
            return tirx.Select(hit, pair(one), pair(zero))

        return te.compute(shape, element, name="one_hot")

    return g.te(compute, indices, values, name="one_hot")
