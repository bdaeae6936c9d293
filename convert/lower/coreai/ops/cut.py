"""Parts of tensors, and their surroundings."""

from __future__ import annotations

import numpy as np

from edgeinfer.convert.lower.coreai.builder import LARGEST, Builder, Extent
from edgeinfer.convert.lower.coreai.registry import NUMBERS, OPS
from edgeinfer.convert.lower.coreai.tensor import Tensor
from edgeinfer.convert.lower.registry import Const, Refusal


@OPS.lower("Slice")
def slice_(
    g: Builder,
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Const | None = None,
    steps: Const | None = None,
) -> Tensor:
    (count,) = starts.shape
    if count is None:
        raise Refusal("how many axes are cut is only known to a run", "dynamic_shape")
    places = [int(a) % data.rank for a in axes.array] if axes else list(range(count))
    strides = [int(s) for s in steps.array] if steps else [1] * count
    begin: list[Extent] = [0] * data.rank
    end: list[Extent] = [s if s is not None else LARGEST for s in data.shape]
    step = [1] * data.rank
    turned = []
    for i, (axis, stride) in enumerate(zip(places, strides, strict=True)):
        first, last = _entry(g, starts, i), _entry(g, ends, i)
        begin[axis], end[axis] = _bounds(g, data, axis, first, last, stride)
        step[axis] = abs(stride)
        if stride < 0:
            turned.append(axis)
    # A negative step ends before the first element, which has no number here.
    source = g.reverse(data, turned) if turned else data
    return g.slice(source, begin, end, step)


def _entry(g: Builder, vector: Tensor, index: int) -> Extent:
    if vector.data is not None:
        return int(vector.data[index])
    return g.reshape(g.cast(g.slice(vector, [index], [index + 1]), np.int64), [])


def _bounds(
    g: Builder, x: Tensor, axis: int, first: Extent, last: Extent, stride: int
) -> tuple[Extent, Extent]:
    """Places that count from the start; of the turned axis where the step is negative."""
    size = x.shape[axis]
    if isinstance(first, int) and isinstance(last, int):
        if size is not None:
            begin, end, _ = slice(first, last, stride).indices(size)
            if stride < 0:
                begin, end = size - 1 - begin, size - 1 - end
            return begin, max(end, begin)
        if stride > 0 and first == 0 and last >= LARGEST:
            return 0, LARGEST
    length = g.extent(x, axis)
    limit = length if isinstance(length, Tensor) else g.const(np.int64(length))
    low, high = (0, limit) if stride > 0 else (-1, g.binary("sub", limit, 1))
    start, stop = [_within(g, v, limit, low, high) for v in (first, last)]
    if stride < 0:
        top = g.binary("sub", limit, 1)
        start, stop = g.binary("sub", top, start), g.binary("sub", top, stop)
    return start, g.binary("maximum", stop, start)


def _within(g: Builder, place: Extent, size: Tensor, low: int, high: Tensor) -> Tensor:
    if isinstance(place, int):
        place = g.const(np.int64(place))
    turned = g.select(g.less(place, 0), g.binary("add", place, size), place)
    return g.clip(turned, low, high)


@OPS.lower("Split")
def split(
    g: Builder, input: Tensor, split: Const | None = None, *, axis: int, num_outputs: int | None
) -> tuple[Tensor, ...]:
    size = input.shape[axis]
    if split is not None:
        sizes = [int(s) for s in split.array]
    elif size is None or num_outputs is None:
        raise Refusal("the size of the axis is only known to a run", "dynamic_shape")
    else:
        each = -(-size // num_outputs)
        sizes = [min(each, size - each * i) for i in range(num_outputs)]
    return tuple(g.split(input, sizes, axis))


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@OPS.lower("Pad")
def pad(
    g: Builder,
    data: Tensor,
    pads: Const,
    constant_value: Tensor | None = None,
    axes: Const | None = None,
    *,
    mode: str,
) -> Tensor:
    places = [int(a) % data.rank for a in axes.array] if axes else list(range(data.rank))
    amounts = [int(p) for p in pads.array]
    before, after = [0] * data.rank, [0] * data.rank
    for axis, b, a in zip(places, amounts, amounts[len(places) :], strict=False):
        before[axis], after[axis] = b, a
    if min(*before, *after) < 0:
        if mode != "constant":
            raise Refusal(f"negative pads in mode {mode!r}")
        data = _trimmed(g, data, before, after)
    value = g.const(np.zeros((), data.dtype)) if constant_value is None else constant_value
    ahead, behind = [max(p, 0) for p in before], [max(p, 0) for p in after]
    kind = _MODES[mode]
    if data.dtype == np.bool_:
        wide = g.pad(g.cast(data, np.uint8), ahead, behind, g.cast(value, np.uint8), kind)
        return g.cast(wide, np.bool_)
    return g.pad(data, ahead, behind, g.reshape(value, []), kind)


def _trimmed(g: Builder, x: Tensor, before: list[int], after: list[int]) -> Tensor:
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        if b < 0 or a < 0:
            size = g.extent(x, axis)
            cut = max(-a, 0)
            end = size - cut if isinstance(size, int) else g.binary("sub", size, cut)
            x = g.part(x, axis, max(-b, 0), end)
    return x


def counted(g: Builder, size: Extent) -> Tensor:
    """Return 0, 1, 2, ... up to before a size."""
    if isinstance(size, int):
        return g.const(np.arange(size, dtype=np.int64))
    return g.call("range_", np.int64(0), size, np.int64(1))


@OPS.lower("CumSum", dtypes=NUMBERS)
def cum_sum(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    return _scanned(g, "sum", x, int(axis.array.reshape(())), (exclusive, reverse))


@OPS.lower("CumProd", dtypes=NUMBERS)
def cum_prod(g: Builder, x: Tensor, axis: Const, *, exclusive: int, reverse: int) -> Tensor:
    return _scanned(g, "product", x, int(axis.array.reshape(())), (exclusive, reverse))


def _scanned(g: Builder, op: str, x: Tensor, axis: int, how: tuple[int, int]) -> Tensor:
    exclusive, reverse = how
    axis %= x.rank
    made = g.call("scan", x, np.uint32(axis), np.bool_(reverse), op)
    if not exclusive:
        return made
    # Each element gets what came before it.
    size = g.extent(made, axis)
    if not isinstance(size, int):
        raise Refusal("exclusive over a dynamic size", "dynamic_shape")
    before, after = [0] * made.rank, [0] * made.rank
    (after if reverse else before)[axis] = 1
    part = g.part(made, axis, 1, size) if reverse else g.part(made, axis, 0, size - 1)
    return g.pad(part, before, after, 0 if op == "sum" else 1)
