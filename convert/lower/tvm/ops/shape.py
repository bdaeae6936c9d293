"""Sizes and the order of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import relax, sym, te, tirx

from edgeinfer.convert.lower.registry import Const, Refusal
from edgeinfer.convert.lower.tvm import sizes
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor, broadcast, same
from edgeinfer.convert.lower.tvm.ops.arith import dtype_name
from edgeinfer.convert.lower.tvm.ops.matrix import reshape, transpose
from edgeinfer.convert.lower.tvm.registry import ALL, NUMBERS, OPS


def product(sizes: Sequence[Any]) -> Any:
    """The number of elements, open sizes included."""
    return prod(sizes)


@OPS.lower("Reshape")
def reshape_(g: Builder, data: Tensor, shape: Tensor, *, allowzero: int) -> Tensor:
    """The same elements in other sizes."""
    wanted = sizes.known(shape)
    if wanted is None:
        return reshape(g, data, _target(g, data, shape, allowzero))
    full: list[Any] = [
        data.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(wanted)
    ]
    if -1 in wanted:
        place = wanted.index(-1)
        rest = _rest(data.shape, full[:place] + full[place + 1 :])
        if rest is None:
            return reshape(g, data, _target(g, data, shape, allowzero))
        full[place] = rest
    elif not _surely(data.shape, full):
        return reshape(g, data, _target(g, data, shape, allowzero))
    return reshape(g, data, tuple(full))


def _surely(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether two shapes have as many elements, or differ in numbers, which is reported later."""
    numbers = all(isinstance(size, int) for size in (*before, *after))
    return numbers or same(product(before), product(after))


def _target(g: Builder, data: Tensor, shape: Tensor, allowzero: int) -> tuple[Any, ...]:
    """Have a run compute a target of which 0 keeps a size and one -1 takes what is left."""
    count = sizes.count_of(shape)

    def make(wanted: Callable[[int], Any], had: Callable[[int], Any]) -> sizes.Decision:
        one, zero, none = (tirx.const(v, "int64") for v in (1, 0, -1))
        total = prod((had(i) for i in range(data.rank)), start=one)
        given = [wanted(i) for i in range(count)]
        if not allowzero:
            given = [
                tirx.Select(tirx.EQ(v, zero), had(i) if i < data.rank else none - one, v)
                for i, v in enumerate(given)
            ]
        left = [tirx.EQ(v, none) for v in given]
        others = prod((tirx.Select(t, one, v) for t, v in zip(left, given, strict=True)), start=one)
        rest = tirx.floordiv(total, tirx.Max(others, one))
        full = [tirx.Select(t, rest, v) for t, v in zip(left, given, strict=True)]
        return full, tirx.EQ(prod(full, start=one), total)

    operands = [shape, sizes.values(g, data.shape)]
    return sizes.decided(g, operands, make, sizes.expected(g, count))


def _rest(all_sizes: Sequence[Any], rest: Sequence[Any]) -> Any:
    """What one axis must be to keep the number of elements; None where that is dynamic."""
    top, bottom = list(all_sizes), []
    for size in rest:
        if not isinstance(size, int):
            found = next((i for i, t in enumerate(top) if t is size), None)
            if found is None:
                return None
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
    """An open size over a number that it is a multiple of, such as 5 n over 5; else None."""
    analyzer = sym.Analyzer()
    left = analyzer.simplify(tirx.floormod(size, by))
    if not (isinstance(left, tirx.IntImm) and int(left) == 0):
        return None
    return analyzer.simplify(tirx.floordiv(size, by))


@OPS.lower("Flatten")
def flatten(g: Builder, input: Tensor, *, axis: int) -> Tensor:
    """Two axes."""
    at = axis + input.rank if axis < 0 else axis
    return reshape(g, input, (product(input.shape[:at]), product(input.shape[at:])))


@OPS.lower("Squeeze")
def squeeze(g: Builder, data: Tensor, axes: Const | None = None) -> Tensor:
    """Without some axes of size 1."""
    if axes is None:
        gone = {a for a, s in enumerate(data.shape) if isinstance(s, int) and s == 1}
        if not data.is_static:
            raise Refusal("no axes, and open sizes", "dynamic_shape")
    else:
        gone = {int(a) % data.rank for a in axes.array.reshape(-1)}
        data = sizes.alike(g, data, [1 if a in gone else None for a in range(data.rank)])
    return reshape(g, data, tuple(s for a, s in enumerate(data.shape) if a not in gone))


@OPS.lower("Unsqueeze")
def unsqueeze(g: Builder, data: Tensor, axes: Const) -> Tensor:
    """With further axes of size 1."""
    rank = data.rank + axes.array.size
    new = {int(a) % rank for a in axes.array.reshape(-1)}
    rest = iter(data.shape)
    return reshape(g, data, tuple(1 if a in new else next(rest) for a in range(rank)))


@OPS.lower("Transpose")
def transpose_(g: Builder, data: Tensor, *, perm: Sequence[int] | None) -> Tensor:
    """Axes in another order."""
    return transpose(g, data, tuple(perm) if perm is not None else tuple(range(data.rank))[::-1])


@OPS.lower("Expand")
def expand(g: Builder, input: Tensor, shape: Tensor) -> Tensor:
    """Repeated along axes of size 1."""
    wanted = _counts(g, shape)
    rank = max(input.rank, len(wanted))
    full = sizes.common(g, [input.shape, wanted], sizes.expected(g, rank))
    x = sizes.repeated(g, input, full)
    made = [g.said(full.get(place - len(wanted), size)) for place, size in enumerate(wanted)]
    whole = broadcast([x.shape, made])
    if x.data is not None and all(isinstance(size, int) for size in whole):
        return g.const(np.broadcast_to(x.data, whole))
    return g.emit(relax.op.broadcast_to(g.expr(x), list(whole)))


def _counts(g: Builder, given: Tensor) -> tuple[Any, ...]:
    """Numbers that a tensor holds, as sizes without a name."""
    known = sizes.known(given)
    if known is not None:
        return tuple(known)
    count = sizes.count_of(given)
    return sizes.decided(g, [given], lambda v: ([v(i) for i in range(count)], None), [None] * count)


@OPS.lower("Shape")
def shape_(g: Builder, data: Tensor, *, start: int, end: int | None) -> Tensor:
    """The sizes."""
    return sizes.values(g, data.shape[start:end])


@OPS.lower("Size")
def size_(g: Builder, data: Tensor) -> Tensor:
    """The number of elements."""
    return reshape(g, sizes.values(g, [prod(data.shape)]), ())


@OPS.lower("ConstantOfShape")
def constant_of_shape(g: Builder, input: Tensor, *, value: Any) -> Tensor:
    """One value everywhere."""
    item = (np.zeros(1, np.float32) if value is None else np.asarray(value)).reshape(-1)[0]
    shape = sizes.asked(g, input)
    if all(isinstance(size, int) for size in shape):
        return g.const(np.full(shape, item, item.dtype))
    fill = g.const(np.asarray(item))
    return g.te(lambda v: te.compute(shape, lambda *i: v(), name="filled"), fill, name="filled")


@OPS.lower("Range", dtypes=NUMBERS)
def range_(g: Builder, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Evenly spaced numbers."""
    ends = (start, limit, delta)
    if all(t.data is not None for t in ends):
        first, stop, step = (np.asarray(t.data).reshape(-1)[0] for t in ends)
        return g.const(np.arange(first, stop, step, dtype=start.dtype))
    (count,) = sizes.asked(g, g.map(partial(_number, start.dtype), *(_one(g, t) for t in ends)))

    def compute(first: Any, step: Any) -> Any:
        zero = tirx.const(0, "int64")
        return te.compute(
            (count,), lambda i: first(zero) + i.astype(start.dtype) * step(zero), name="range"
        )

    return g.te(compute, _one(g, start), _one(g, delta), name="range")


def _one(g: Builder, x: Tensor) -> Tensor:
    return reshape(g, x, (1,))


def _number(dtype: str, first: Any, limit: Any, step: Any) -> Any:
    """How many steps there are before a limit; no step at all is none that a run accepts."""
    stands = tirx.EQ(step, tirx.const(0, dtype))
    safe = tirx.Select(stands, tirx.const(1, dtype), step)
    if dtype.startswith("float"):
        count = tirx.ceil((limit - first).astype("float64") / safe.astype("float64"))
        count = count.astype("int64")
    else:
        zero = tirx.const(0, "int64")
        apart = first.astype("int64") - limit.astype("int64")
        count = zero - tirx.floordiv(apart, safe.astype("int64"))
    return tirx.Select(stands, tirx.const(-1, "int64"), tirx.Max(count, tirx.const(0, "int64")))


@OPS.lower("Tile")
def tile(g: Builder, input: Tensor, repeats: Tensor) -> Tensor:
    """The whole repeated along each axis."""
    times = sizes.known(repeats)
    if times is None:
        shape = _multiples(g, input, repeats)
    elif input.data is not None:
        return g.const(np.tile(input.data, times))
    else:
        shape = tuple(s * t for s, t in zip(input.shape, times, strict=True))

    def compute(data: Any) -> Any:
        def element(*index: Any) -> Any:
            return data(*(tirx.floormod(i, s) for i, s in zip(index, data.shape, strict=True)))

        return te.compute(shape, element, name="tile")

    return g.te(compute, input, name="tile")


def _multiples(g: Builder, x: Tensor, repeats: Tensor) -> tuple[Any, ...]:
    def make(times: Callable[[int], Any], had: Callable[[int], Any]) -> sizes.Decision:
        return [had(i) * times(i) for i in range(x.rank)], None

    operands = [repeats, sizes.values(g, x.shape)]
    return sizes.decided(g, operands, make, sizes.expected(g, x.rank))


@OPS.lower("DepthToSpace")
def depth_to_space(g: Builder, input: Tensor, *, blocksize: int, mode: str) -> Tensor:
    """Channels become pixels."""
    n, c, h, w = input.shape
    b = blocksize
    if mode == "DCR":
        parts, perm = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    else:
        parts, perm = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    moved = transpose(g, reshape(g, input, parts), perm)
    return reshape(g, moved, (n, c // (b * b), h * b, w * b))


@OPS.lower("SpaceToDepth")
def space_to_depth(g: Builder, input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Pixels become channels."""
    n, c, h, w = input.shape
    b = blocksize
    parted = reshape(g, input, (n, c, h // b, b, w // b, b))
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return reshape(g, transpose(g, parted, perm), (n, c * b * b, h // b, w // b))


@OPS.lower("EyeLike")
def eye_like(g: Builder, input: Tensor, *, dtype: int | None, k: int) -> Tensor:
    """Ones on a diagonal."""
    kind = input.dtype if dtype is None else dtype_name(dtype)
    if input.is_static:
        return g.const(np.eye(input.shape[0], input.shape[1], k=k, dtype=np.dtype(kind)))

    def compute(data: Any) -> Any:
        def element(row: Any, column: Any) -> Any:
            hit = tirx.EQ(row.astype("int64") + k, column.astype("int64"))
            return tirx.Select(hit, tirx.const(1, kind), tirx.const(0, kind))

        return te.compute(data.shape, element, name="eye")

    return g.te(compute, input, name="eye")


@OPS.lower("OneHot", dtypes=ALL)
def one_hot(g: Builder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int) -> Tensor:
    """One value where the index says, another elsewhere."""
    at = axis % (indices.rank + 1)
    said = sizes.expected(g, indices.rank + 1)[at]
    (count,) = sizes.known(depth) or sizes.decided(g, [depth], lambda v: ([v(0)], None), [said])
    shape = (*indices.shape[:at], count, *indices.shape[at:])

    def compute(positions: Any, pair: Any) -> Any:
        def element(*index: Any) -> Any:
            place = positions(*index[:at], *index[at + 1 :]).astype("int64")
            wrapped = tirx.Select(place < 0, place + count, place)
            hit = tirx.EQ(wrapped, index[at].astype("int64"))
            one, zero = tirx.const(1, "int64"), tirx.const(0, "int64")
            return tirx.Select(hit, pair(one), pair(zero))

        return te.compute(shape, element, name="one_hot")

    return g.te(compute, indices, values, name="one_hot")
