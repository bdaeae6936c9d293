"""Parts of tensors, and borders around them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.coreml.builder import Builder
from edgeinfer.convert.lower.coreml.ops.shape import numbers
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import INT32, MAX_RANK, Tensor
from edgeinfer.convert.lower.registry import Const, Refusal

_FAR = int(INT32.max)


@OPS.lower("Slice", since=13, dtypes=ALL)
def slice_(
    g: Builder,
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Const | None = None,
    steps: Const | None = None,
) -> Tensor:
    """slice_by_index; bounds that a run makes must be of axes with step 1 or more."""
    first, last = numbers(starts), numbers(ends)
    count = int(starts.shape[0]) if isinstance(starts.shape[0], int) else 0
    at = range(count) if axes is None else [int(a) % data.rank for a in axes.array.reshape(-1)]
    step = [1] * len(at) if steps is None else [int(s) for s in steps.array.reshape(-1)]
    if first is None or last is None:
        return _late_slice(g, data, starts, ends, list(at), step)
    begin, stride = [0] * data.rank, [1] * data.rank
    bounds: list[int | None] = [None] * data.rank
    for axis, a, b, s in zip(at, first, last, step, strict=True):
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
    if step < 0:
        raise Refusal("walks backwards along a size that only a run knows", "dynamic_shape")
    if abs(first) > _FAR or (first < 0 and last >= 0 and last < _FAR):
        raise Refusal("a start from the end and an end from the start", "dynamic_shape")
    return first, (None if last >= _FAR else max(last, -_FAR))


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
        head, tail = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        view = g.reshape(x, [head, x.shape[axis], tail])
        part = g.slice(view, [0, b, 0], [None, e, None], [1, s, 1])
        x = g.reshape(part, [*x.shape[:axis], part.shape[1], *x.shape[axis + 1 :]])
    return x


def _late_slice(
    g: Builder, x: Tensor, starts: Tensor, ends: Tensor, axes: Sequence[int], step: Sequence[int]
) -> Tensor:
    """Bounds of a run; each is clamped as ONNX clamps it."""
    if min(step) < 1:
        raise Refusal("walks backwards between bounds that only a run knows", "dynamic_shape")
    begin: list[Tensor] = [g.const([0], np.int32)] * x.rank
    end: list[Tensor] = [
        g.reshape(s, [1]) if isinstance(s, Tensor) else g.const([s], np.int32) for s in g.extents(x)
    ]
    sizes = list(end)
    for index, axis in enumerate(axes):
        begin[axis] = _clamped(g, starts, index, sizes[axis])
        end[axis] = _clamped(g, ends, index, sizes[axis])
    stride = [1] * x.rank
    for axis, s in zip(axes, step, strict=True):
        stride[axis] = s
    operands = {"begin": g.concat(begin, 0), "end": g.concat(end, 0), "stride": stride}
    return g.emit("slice_by_index", x=x, span=x.span, **operands)


def _clamped(g: Builder, bounds: Tensor, index: int, size: Tensor) -> Tensor:
    if bounds.data is not None:
        one = int(np.clip(bounds.data.reshape(-1)[index], -_FAR, _FAR))
        bound = g.const([one], np.int32)
    else:
        bound = g.cast(g.slice(bounds, [index], [index + 1]), np.int32)
    if bound.data is not None and size.data is not None:
        length, at = int(size.data[0]), int(bound.data[0])
        at = at + length if at < 0 else at
        return g.const([min(max(at, 0), length)], np.int32)
    # Without a span: the sum cannot leave int32 where the bound is inside the axis.
    wrapped = g.binary("add", bound, size)
    from_start = g.select(g.binary("less", bound, 0), wrapped, bound)
    return g.binary("minimum", g.binary("maximum", from_start, 0), size)


@OPS.lower("Pad", since=24, dtypes=ALL)
def pad(
    g: Builder,
    data: Tensor,
    pads: Const,
    constant_value: Const | None = None,
    axes: Const | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    """Pad; negative amounts by a cut, borders of more than two axes one after the other."""
    amounts = _amounts(data.rank, pads, axes)
    x = _cropped(g, data, amounts)
    amounts = [(max(lo, 0), max(hi, 0)) for lo, hi in amounts]
    if not any(any(a) for a in amounts):
        return g.same(x) if x is data else x
    if mode == "constant":
        value = 0 if constant_value is None else constant_value.array.reshape(-1)[0]
        return _filled(g, x, amounts, value)
    if mode == "wrap":
        for axis, (lo, hi) in enumerate(amounts):
            x = _wrapped(g, x, axis, lo, hi)
        return x
    for axis, amount in enumerate(amounts):
        if any(amount):
            x = _mirrored(g, x, axis, amount, "replicate" if mode == "edge" else mode)
    return x


def _amounts(rank: int, pads: Const, axes: Const | None) -> list[tuple[int, int]]:
    found = [int(p) for p in pads.array.reshape(-1)]
    half = len(found) // 2
    at = range(rank) if axes is None else [int(a) % rank for a in axes.array.reshape(-1)]
    amounts = [(0, 0)] * rank
    for axis, lo, hi in zip(at, found[:half], found[half:], strict=True):
        amounts[axis] = (lo, hi)
    return amounts


def _cropped(g: Builder, x: Tensor, amounts: Sequence[tuple[int, int]]) -> Tensor:
    if not any(lo < 0 or hi < 0 for lo, hi in amounts):
        return x
    begin = [max(-lo, 0) for lo, _ in amounts]
    end = [hi if hi < 0 else None for _, hi in amounts]
    return g.slice(x, begin, end)


def _filled(g: Builder, x: Tensor, amounts: Sequence[tuple[int, int]], value: float) -> Tensor:
    flat = [p for pair in amounts for p in pair]
    if x.is_float:
        return g.emit("pad", x=x, pad=flat, mode="constant", constant_val=float(value))
    low, high = x.bounds if x.is_integer else (0, 1)
    if max(abs(low), abs(high), abs(int(value))) > 1 << 24:
        for axis, (lo, hi) in enumerate(amounts):
            x = _joined(g, x, axis, lo, hi, int(value))
        return x
    # Core ML pads floating-point numbers only, which hold these integers exactly.
    wide = g.cast(x, np.float32)
    out = g.emit("pad", x=wide, pad=flat, mode="constant", constant_val=float(value))
    back = g.cast(out, np.int32 if x.is_integer else np.bool_)
    span = (min(low, int(value)), max(high, int(value)))
    return Tensor(x.dtype, back.shape, back.variable, span=span)


def _joined(g: Builder, x: Tensor, axis: int, low: int, high: int, value: int) -> Tensor:
    def border(amount: int) -> list[Tensor]:
        shape = [amount if a == axis else s for a, s in enumerate(x.shape)]
        if amount and not all(isinstance(s, int) for s in shape):
            raise Refusal("large integers of unknown sizes", "dynamic_shape")
        return [g.const(np.full(shape, value), x.dtype)] if amount else []

    return g.concat([*border(low), x, *border(high)], axis)


def _mirrored(g: Builder, x: Tensor, axis: int, amount: tuple[int, int], mode: str) -> Tensor:
    """Pad one axis as the last of three: Core ML pads the last two axes only in these modes."""
    low, high = x.bounds if x.is_integer else (0, 1)
    if not x.is_float:
        if max(abs(low), abs(high)) > 1 << 24:
            raise Refusal("integers beyond what float32 holds exactly", "unsupported_dtype")
        out = _mirrored(g, g.cast(x, np.float32), axis, amount, mode)
        return g.cast(out, x.dtype)
    size = x.shape[axis]
    if mode == "reflect" and isinstance(size, int) and max(amount) >= size:
        return _reflected(g, x, axis, amount, size)
    if axis >= x.rank - 2 and x.rank >= 2:
        pads = [0, 0, 0, 0]
        at = 2 * (axis - (x.rank - 2))
        pads[at : at + 2] = amount
        return g.emit("pad", x=x, pad=pads, mode=mode, constant_val=0.0)
    if x.rank == 1:
        wide = g.reshape(x, [1, -1])
        return g.reshape(_mirrored(g, wide, 1, amount, mode), [-1])
    perm = [a for a in range(x.rank) if a != axis] + [axis]
    moved = _mirrored(g, g.transpose(x, perm), x.rank - 1, amount, mode)
    return g.transpose(moved, [perm.index(a) for a in range(x.rank)])


def _reflected(g: Builder, x: Tensor, axis: int, amount: tuple[int, int], size: int) -> Tensor:
    """Borders longer than the axis walk to and fro."""
    period = max(2 * (size - 1), 1)
    walk = np.arange(-amount[0], size + amount[1]) % period
    where = np.minimum(walk, period - walk) if size > 1 else walk * 0
    return g.emit("gather", x=x, indices=g.const(where, np.int32), axis=axis)


def _wrapped(g: Builder, x: Tensor, axis: int, low: int, high: int) -> Tensor:
    size = x.shape[axis]
    if not (low or high):
        return x
    if not isinstance(size, int):
        raise Refusal("wraps around a size that only a run knows", "dynamic_shape")
    where = np.arange(-low, size + high) % size
    return g.emit("gather", x=x, indices=g.const(where, np.int32), axis=axis, span=x.span)
