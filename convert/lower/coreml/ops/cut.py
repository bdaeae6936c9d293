"""Parts of tensors, and borders around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.ops.shape import numbers, partly
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import INT32, MAX_RANK, Tensor
from edgeinfer.convert.lower.registry import Const, Refusal

_FAR = int(INT32.max)


@OPS.lower("Slice", dtypes=ALL)
def slice_(
    g: Builder,
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Const | None = None,
    steps: Const | None = None,
) -> Tensor:
    """slice_by_index; an axis walked backwards is reversed where its bounds are dynamic."""
    first, last = numbers(starts), numbers(ends)
    count = int(starts.shape[0]) if isinstance(starts.shape[0], int) else 0
    at = range(count) if axes is None else [int(a) % data.rank for a in axes.array.reshape(-1)]
    step = [1] * len(at) if steps is None else [int(s) for s in steps.array.reshape(-1)]
    rows = None if first is None or last is None else list(zip(at, first, last, step, strict=True))
    if rows is None or any(_is_late(data.shape[a], *row) for a, *row in rows):
        return _late_slice(g, data, starts, ends, list(at), step)
    begin, stride = [0] * data.rank, [1] * data.rank
    bounds: list[int | None] = [None] * data.rank
    for axis, a, b, s in rows:
        begin[axis], bounds[axis] = _bounds(data.shape[axis], a, b, s)
        stride[axis] = s
    out = _cut(g, data, begin, bounds, stride)
    return g.same(out) if out is data else out


def _bounds(size: object, first: int, last: int, step: int) -> tuple[int, int | None]:
    """Return begin and end as slice_by_index counts them; None where the axis ends."""
    if isinstance(size, int):
        start, stop, _ = slice(first, last, step).indices(size)
        if len(range(start, stop, step)) == 0:
            raise Refusal("tensors without elements do not exist", "dynamic_shape")
        return start, (None if stop < 0 or stop >= size else stop)
    return first, (None if last >= _FAR else max(last, -_FAR))


def _is_late(size: object, first: int, last: int, step: int) -> bool:
    """Whether the open size of an axis decides what constant bounds mean."""
    if isinstance(size, int):
        return False
    return step < 0 or abs(first) > _FAR or first < 0 <= last < _FAR


def _cut(
    g: Builder,
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int | None],
    step: Sequence[int],
) -> Tensor:
    if x.rank > MAX_RANK and x.data is None:
        return _high_cut(g, x, begin, end, step)
    whole = all(b == 0 and e is None and s == 1 for b, e, s in zip(begin, end, step, strict=True))
    return x if whole else g.slice(x, begin, end, step)


def _high_cut(
    g: Builder,
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int | None],
    step: Sequence[int],
) -> Tensor:
    """Cut one axis after the other, each between the axes before and behind it as one."""
    for axis, (b, e, s) in enumerate(zip(begin, end, step, strict=True)):
        if (b, e, s) == (0, None, 1):
            continue
        sizes, view = g.extents(x), g.reshape(x, g.around(x, axis))
        part = g.slice(view, [0, b, 0], [None, e, None], [1, s, 1])
        x = g.reshape(part, [*sizes[:axis], g.extent(part, 1), *sizes[axis + 1 :]])
    return x


def _late_slice(
    g: Builder, x: Tensor, starts: Tensor, ends: Tensor, axes: Sequence[int], step: Sequence[int]
) -> Tensor:
    """Bounds of a run; each is clamped as ONNX clamps it."""
    back = [a for a, s in zip(axes, step, strict=True) if s < 0]
    x = g.emit("reverse", x=x, axes=back, span=x.span) if back else x
    begin: list[Tensor] = [g.const([0], np.int32)] * x.rank
    end: list[Tensor] = [
        g.reshape(s, [1]) if isinstance(s, Tensor) else g.const([s], np.int32) for s in g.extents(x)
    ]
    sizes = list(end)
    for index, axis in enumerate(axes):
        begin[axis] = _clamped(g, starts, index, sizes[axis], axis in back)
        end[axis] = _clamped(g, ends, index, sizes[axis], axis in back)
    stride = [1] * x.rank
    for axis, s in zip(axes, step, strict=True):
        stride[axis] = abs(s)
    operands = {"begin": g.concat(begin, 0), "end": g.concat(end, 0), "stride": stride}
    out = g.emit("slice_by_index", x=x, span=x.span, **operands)
    kept = zip(x.shape, out.shape, strict=True)
    g.know_shape(out, [o if a in axes else s for a, (s, o) in enumerate(kept)])
    return out


def _clamped(g: Builder, bounds: Tensor, index: int, size: Tensor, back: bool) -> Tensor:
    """A bound within an axis, counted from its end where it is walked backwards."""
    if bounds.data is not None:
        one = int(np.clip(bounds.data.reshape(-1)[index], -_FAR, _FAR))
        bound = g.const([one], np.int32)
    else:
        bound = g.cast(g.slice(bounds, [index], [index + 1]), np.int32)
    if bound.data is not None and size.data is not None:
        length, at = int(size.data[0]), int(bound.data[0])
        at = at + length if at < 0 else at
        at = length - 1 - at if back else at
        return g.const([min(max(at, 0), length)], np.int32)
    # Without a span: the sum cannot leave int32 where the bound is inside the axis.
    wrapped = g.binary("add", bound, size)
    from_start = g.select(g.binary("less", bound, 0), wrapped, bound)
    if back:
        from_start = g.binary("sub", g.binary("sub", size, 1), from_start)
    return g.binary("minimum", g.binary("maximum", from_start, 0), size)


@OPS.lower("Pad", dtypes=ALL)
def pad(
    g: Builder,
    data: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Const | None = None,
    *,
    mode: str,
) -> Tensor:
    """Pad; negative amounts by a cut, borders of more than two axes one after the other."""
    amounts = _amounts(data.rank, partly(g, pads), axes)
    x = _cropped(g, data, amounts)
    amounts = [(_at_least_none(g, lo), _at_least_none(g, hi)) for lo, hi in amounts]
    if amounts == [(0, 0)] * data.rank:
        return g.same(x) if x is data else x
    if mode == "constant":
        if constant_value is not None and constant_value.data is None:
            return _filled_late(g, x, amounts, constant_value)
        value = None if constant_value is None else constant_value.data
        return _filled(g, x, amounts, 0.0 if value is None else value.reshape(-1)[0])
    for axis, amount in enumerate(amounts):
        if amount != (0, 0):
            x = _mirrored(g, x, axis, amount, mode)
    return x


Amount = tuple[Extent, Extent]
"""What is added before and behind an axis."""


def _amounts(rank: int, found: Sequence[Extent], axes: Const | None) -> list[Amount]:
    half = len(found) // 2
    at = range(rank) if axes is None else [int(a) % rank for a in axes.array.reshape(-1)]
    amounts: list[Amount] = [(0, 0)] * rank
    for axis, lo, hi in zip(at, found[:half], found[half:], strict=True):
        amounts[axis] = (lo, hi)
    return amounts


def _at_least_none(g: Builder, amount: Extent) -> Extent:
    if isinstance(amount, int):
        return max(amount, 0)
    plain = g.cast(amount, np.int32)
    return plain if plain.bounds[0] >= 0 else g.binary("maximum", plain, 0)


def _cropped(g: Builder, x: Tensor, amounts: Sequence[Amount]) -> Tensor:
    for axis, amount in enumerate(amounts):
        first, behind = (_taken(g, a) for a in amount)
        if (first, behind) != (0, 0):
            x = g.part(x, axis, first, g.minus(g.extent(x, axis), behind))
    return x


def _taken(g: Builder, amount: Extent) -> Extent:
    """What a negative amount takes away."""
    if isinstance(amount, Tensor) and amount.bounds[0] >= 0:
        return 0
    return _at_least_none(g, g.minus(0, amount))


def _filled(g: Builder, x: Tensor, amounts: Sequence[Amount], value: float) -> Tensor:
    flat = [p for pair in amounts for p in pair]
    if x.is_float:
        sizes = g.vector(flat) if any(isinstance(p, Tensor) for p in flat) else flat
        out = g.emit("pad", x=x, pad=sizes, mode="constant", constant_val=float(value))
        pairs = zip(amounts, x.shape, out.shape, strict=True)
        g.know_shape(out, [own if a == (0, 0) else made for a, own, made in pairs])
        return out
    low, high = x.bounds if x.is_integer else (0, 1)
    if max(abs(low), abs(high), abs(int(value))) > 1 << 24:
        for axis, (lo, hi) in enumerate(amounts):
            x = _joined(g, x, axis, lo, hi, int(value))
        return x
    # Core ML pads floating-point numbers only, which hold these integers exactly.
    out = _filled(g, g.cast(x, np.float32), amounts, float(value))
    back = g.cast(out, np.int32 if x.is_integer else np.bool_)
    span = (min(low, int(value)), max(high, int(value)))
    return Tensor(x.dtype, back.shape, back.variable, span=span)


def _filled_late(g: Builder, x: Tensor, amounts: Sequence[Amount], value: Tensor) -> Tensor:
    """Choose between the elements and a value that a run gives."""
    ones = g.emit("fill", np.float32, shape=g.vector(g.extents(x)), value=1.0)
    inside = g.cast(_filled(g, ones, amounts, 0.0), np.bool_)
    return g.select(inside, _filled(g, x, amounts, 0.0), g.reshape(value, []))


def _joined(g: Builder, x: Tensor, axis: int, low: Extent, high: Extent, value: int) -> Tensor:
    def border(amount: Extent) -> list[Tensor]:
        if amount == 0:
            return []
        shape = [amount if a == axis else s for a, s in enumerate(g.extents(x))]
        made = g.filled(shape, value)
        return [Tensor(x.dtype, made.shape, made.variable, made.data, made.span)]

    return g.concat([*border(low), x, *border(high)], axis)


def _mirrored(g: Builder, x: Tensor, axis: int, amount: Amount, mode: str) -> Tensor:
    """Pad one axis as the last of three: Core ML pads the last two axes only in these modes."""
    low, high = amount
    size = x.shape[axis]
    if not (x.is_float and isinstance(low, int) and isinstance(high, int)) or mode == "wrap":
        return _walked(g, x, axis, amount, mode)
    if mode == "reflect" and isinstance(size, int) and max(low, high) >= size:
        # The borders are longer than the axis.
        return _walked(g, x, axis, amount, mode)
    if axis >= x.rank - 2 and x.rank >= 2:
        pads = [0, 0, 0, 0]
        at = 2 * (axis - (x.rank - 2))
        pads[at : at + 2] = low, high
        how = "replicate" if mode == "edge" else mode
        return g.emit("pad", x=x, pad=pads, mode=how, constant_val=0.0)
    if x.rank == 1:
        wide = g.reshape(x, [1, -1])
        return g.reshape(_mirrored(g, wide, 1, amount, mode), [-1])
    perm = [a for a in range(x.rank) if a != axis] + [axis]
    moved = _mirrored(g, g.transpose(x, perm), x.rank - 1, amount, mode)
    return g.transpose(moved, [perm.index(a) for a in range(x.rank)])


def _walked(g: Builder, x: Tensor, axis: int, amount: Amount, mode: str) -> Tensor:
    """Gather what a walk beyond both ends of an axis meets there."""
    low, high = (g.const(a, np.int32) if isinstance(a, int) else a for a in amount)
    extent = g.extent(x, axis)
    size = g.const(extent, np.int32) if isinstance(extent, int) else extent
    count = g.binary("add", g.binary("add", low, size), high)
    where = g.binary("sub", g.counted(count), low)
    if mode == "edge":
        last = g.binary("sub", size, 1)
        where = g.binary("minimum", g.binary("maximum", where, 0), last)
    elif mode == "wrap":
        where = g.binary("mod", where, size)
    else:
        there = g.binary("mul", g.binary("sub", size, 1), 2)
        period = g.binary("maximum", there, 1)
        walk = g.binary("mod", where, period)
        where = g.binary("minimum", walk, g.binary("sub", there, walk))
    source = g.cast(x, np.int32) if x.dtype == np.bool_ else x
    out = g.emit("gather", x=source, indices=where, axis=axis, span=x.span)
    return g.cast(out, x.dtype)
