"""Parts of tensors, and borders around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from edgeinfer.convert.lower.core.cut import (
    FAR,
    Arithmetic,
    AxisSlice,
    PadPlan,
    mixed,
    pads,
    place,
    repeated,
    slices,
)
from edgeinfer.convert.lower.coreml.builder import Builder, Extent
from edgeinfer.convert.lower.coreml.ops.shape import partly
from edgeinfer.convert.lower.coreml.registry import ALL, OPS
from edgeinfer.convert.lower.coreml.tensor import MAX_RANK, Tensor
from edgeinfer.convert.lower.registry import Refusal


@slices(OPS, dtypes=ALL)
def slice_(
    g: Builder,
    x: Tensor,
    axes: Sequence[AxisSlice],
    starts: Tensor,
    ends: Tensor,
    steps: Tensor | None,
) -> Tensor:
    """slice_by_index; an axis walked backwards is reversed where its bounds are dynamic."""
    if any(cut.step is None for cut in axes):
        raise Refusal("input 'steps' must be constant", "requires_constant")
    if any(_is_late(cut) for cut in axes):
        return _late_slice(g, x, axes, starts, ends)
    begin, stride = [0] * x.rank, [1] * x.rank
    bounds: list[int | None] = [None] * x.rank
    for axis, cut in enumerate(axes):
        if not cut.is_whole:
            begin[axis], bounds[axis] = _bounds(cut)
            stride[axis] = cut.step or 1
    out = _cut(g, x, begin, bounds, stride)
    return g.same(out) if out is x else out


def _bounds(cut: AxisSlice) -> tuple[int, int | None]:
    """Return begin and end as slice_by_index counts them; None where the axis ends."""
    taken = cut.taken
    if taken is None:
        start, stop = cut.start or 0, cut.stop or 0
        return start, None if stop >= FAR else stop
    if len(taken) == 0:
        raise Refusal("tensors without elements do not exist", "dynamic_shape")
    return taken.start, taken.stop if 0 <= taken.stop < cut.size else None


def _is_late(cut: AxisSlice) -> bool:
    """Whether a run decides what the bounds mean."""
    if cut.start is None or cut.stop is None:
        return True
    if isinstance(cut.size, int) or cut.is_whole:
        return False
    return (cut.step or 1) < 0 or cut.start in (FAR, -FAR) or cut.start < 0 <= cut.stop < FAR


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
    g: Builder, x: Tensor, axes: Sequence[AxisSlice], starts: Tensor, ends: Tensor
) -> Tensor:
    """Bounds of a run; each is clamped as ONNX clamps it."""
    back = [a for a, cut in enumerate(axes) if (cut.step or 1) < 0]
    x = g.emit("reverse", x=x, axes=back, span=x.span) if back else x
    sizes = g.extents(x)
    begin: list[Extent] = [0] * x.rank
    end = list(sizes)
    for axis, cut in enumerate(axes):
        if cut.entry is not None:
            begin[axis] = _clamped(g, starts, cut, sizes[axis], is_stop=False)
            end[axis] = _clamped(g, ends, cut, sizes[axis], is_stop=True)
    stride = [abs(cut.step or 1) for cut in axes]
    operands = {"begin": g.vector(begin), "end": g.vector(end), "stride": stride}
    out = g.emit("slice_by_index", x=x, span=x.span, **operands)
    rows = zip(axes, x.shape, out.shape, strict=True)
    g.know_shape(out, [own if cut.entry is None else made for cut, own, made in rows])
    return out


def _clamped(g: Builder, bounds: Tensor, cut: AxisSlice, size: Extent, *, is_stop: bool) -> Extent:
    """A bound within an axis, counted from its end where it is walked backwards."""
    op, entry, back = mixed(g.binary), cut.entry or 0, (cut.step or 1) < 0
    known = cut.stop if is_stop else cut.start
    bound: Extent
    if known is not None:
        bound = op("add", known, size) if known < 0 else known
    else:
        found = g.reshape(g.cast(g.slice(bounds, [entry], [entry + 1]), np.int32), [])
        # Without a span: the sum cannot leave int32 where the bound is inside the axis.
        bound = g.select(g.binary("less", found, 0), g.binary("add", found, size), found)
    at: Extent = place(op, bound, size, back=back, is_stop=is_stop)
    return cast(Extent, op("sub", op("sub", size, 1), at)) if back else at


def _arithmetic(g: Builder) -> Arithmetic:
    """Write integers; what bounds decide is not asked of a run."""

    def write(op: str, a: Extent, b: Extent) -> Extent:
        if op == "maximum" and isinstance(a, Tensor) and isinstance(b, int):
            low, high = a.bounds
            if low >= b or high <= b:
                return a if low >= b else b
        left, right = (g.cast(v, np.int32) if isinstance(v, Tensor) else v for v in (a, b))
        return g.binary(op, left, right)

    return mixed(write)


@pads(OPS, entries=partly, dtypes=ALL)
def pad(g: Builder, data: Tensor, plan: PadPlan) -> Tensor:
    """Pad; negative amounts by a cut, borders of more than two axes one after the other."""
    op, value = _arithmetic(g), plan.value
    x: Tensor = plan.cropped(g, data, op)
    amounts = plan.grown(op)
    if amounts == [(0, 0)] * data.rank:
        return g.same(x) if x is data else x
    if plan.mode == "constant":
        if value is not None and value.data is None:
            return _filled_late(g, x, amounts, value)
        return _filled(g, x, amounts, 0.0 if value is None else value.data.reshape(-1)[0])
    for axis, amount in enumerate(amounts):
        if amount != (0, 0):
            x = _mirrored(g, x, axis, amount, plan.mode)
    return x


Amount = tuple[Extent, Extent]
"""What is added before and behind an axis."""


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
    low, high = amount
    size, op = g.extent(x, axis), _arithmetic(g)
    count = op("add", op("add", low, size), high)
    where = repeated(op, op("sub", g.counted(count), low), size, mode)
    source = g.cast(x, np.int32) if x.dtype == np.bool_ else x
    out = g.emit("gather", x=source, indices=where, axis=axis, span=x.span)
    return g.cast(out, x.dtype)
