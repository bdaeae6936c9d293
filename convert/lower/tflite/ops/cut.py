"""Parts of a tensor, and what is put around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.convert.lower.core.cut import (
    FAR,
    AxisPad,
    AxisSlice,
    PadPlan,
    mixed,
    pads,
    repeated,
    slices,
)
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, OPS
from edgeinfer.convert.lower.tflite.sizes import (
    carried,
    compute,
    constant,
    counting,
    extents,
    merge,
    narrow,
    reform,
    scalar,
    shape_tensor,
)
from edgeinfer.types import Array

PAD_RANK = 5


@slices(OPS, dtypes=ANY)
def slice_(
    g: Builder,
    x: Tensor,
    axes: Sequence[AxisSlice],
    starts: Tensor,
    ends: Tensor,
    steps: Tensor | None,
) -> Tensor:
    """STRIDED_SLICE, whose rules for what is out of range are ONNX's."""
    if any(_is_late(cut) for cut in axes):
        return _slice_at_run_time(g, x, axes, starts, ends, steps)
    if all(cut.is_whole for cut in axes):
        return x
    empty = [axis for axis, cut in enumerate(axes) if cut.taken is not None and not cut.taken]
    if empty and x.is_static:
        return g.const(np.empty([len(cut.taken or ()) for cut in axes], x.dtype))
    rows = [(0, None, 1) if axis in empty else _bounds(cut) for axis, cut in enumerate(axes)]
    made = g.slice(x, [b for b, _, _ in rows], [e for _, e, _ in rows], [s for _, _, s in rows])
    for axis in empty:
        # XNNPACK takes no elements of a slice for all of them.
        made = g.gather(made, g.const(np.zeros(0, np.int32)), axis)
    return made


def _bounds(cut: AxisSlice) -> tuple[int, int | None, int]:
    start, stop, step = cut.start or 0, cut.stop or 0, cut.step or 1
    part = cut.taken
    if part is not None:
        return part.start, part.stop if part.stop >= 0 else None, part.step
    whole = stop >= FAR if step > 0 else stop <= -FAR
    return start, None if whole else stop, step


def _is_late(cut: AxisSlice) -> bool:
    """Whether a run decides what the bounds mean."""
    if cut.start is None or cut.stop is None or cut.step is None:
        return True
    return cut.taken is None and cut.step < 0 and cut.start < -1


def _slice_at_run_time(
    g: Builder,
    x: Tensor,
    axes: Sequence[AxisSlice],
    starts: Tensor,
    ends: Tensor,
    steps: Tensor | None,
) -> Tensor:
    begin, end = (_spread(g, narrow(g, t), axes, 0) for t in (starts, ends))
    jumps = [1 if cut.step is None else cut.step for cut in axes]
    step = g.const(jumps, np.int32)
    if steps is not None and steps.data is None:
        step = _spread(g, narrow(g, steps), axes, 1)
    if any(cut.step is None or cut.step < 0 for cut in axes):
        # Going back from before the first element ONNX takes that one, LiteRT 2.3 nothing.
        begin = g.binary("MAXIMUM", begin, g.unary("NEG", shape_tensor(g, x)))
    mask = sum(1 << a for a, cut in enumerate(axes) if cut.entry is None)
    shape = [cut.size if cut.entry is None else None for cut in axes]
    zero = {"ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0, "offset": False}
    operands = [x, begin, end, step]
    return g.emit("STRIDED_SLICE", operands, shape, begin_mask=mask, end_mask=mask, **zero)


def _spread(
    g: Builder, values: Tensor, axes: Sequence[AxisSlice] | Sequence[AxisPad], other: int
) -> Tensor:
    """One entry per axis: those of ``values`` where named, the same number elsewhere."""
    entries = [axis.entry for axis in axes]
    if entries == list(range(len(axes))):
        return values
    with_other = g.concat([values, g.const([other], np.int32)], 0)
    count = sum(entry is not None for entry in entries)
    source = [count if entry is None else entry for entry in entries]
    return g.gather(with_other, g.const(source, np.int32), 0)


@pads(OPS, around=carried(bool=np.int8), dtypes=ANY)
def pad(g: Builder, x: Tensor, plan: PadPlan) -> Tensor:
    """PAD, PADV2 or MIRROR_PAD; other modes gather. Negative amounts are sliced off before."""
    if not plan.is_known:
        return _pad_at_run_time(g, x, plan)
    x, grown = _crop(g, x, plan), plan.grown()
    if not any(any(p) for p in grown):
        return x
    if plan.mode == "constant":
        return _pad_constant(g, x, grown, plan.value)
    return _extend(g, x, plan)


def _crop(g: Builder, x: Tensor, plan: PadPlan) -> Tensor:
    """What negative amounts take away."""
    if not any(any(axis.lost()) for axis in plan.axes):
        return x
    begin, end = [], list[int | None]()
    for axis in plan.axes:
        first, behind = axis.lost()
        open_end = -behind if behind else None
        begin.append(first)
        end.append(open_end if axis.kept is None else first + axis.kept)
    return g.slice(x, begin, end, [1] * x.rank)


def _pad_constant(
    g: Builder, x: Tensor, around: Sequence[tuple[int, int]], value: Tensor | None
) -> Tensor:
    if x.rank > PAD_RANK:
        return _pad_wide(g, x, around, value)
    if value is None or (value.data is not None and not value.data.any()):
        return g.pad(x, around)
    if value.data is not None:
        return g.pad(x, around, value.data.ravel()[0])
    shape = [None if s is None else s + sum(p) for s, p in zip(x.shape, around, strict=True)]
    amounts = g.const([list(p) for p in around], np.int32)
    return g.emit("PADV2", [x, amounts, g.reshape(value, [])], shape)


def _pad_wide(
    g: Builder, x: Tensor, around: Sequence[tuple[int, int]], value: Tensor | None
) -> Tensor:
    """One axis at a time, with all before it and all after it as one."""
    for axis, amount in enumerate(around):
        if any(amount):
            sizes = extents(g, x)
            groups = [range(axis), [axis], range(axis + 1, x.rank)]
            part = _pad_constant(g, merge(g, x, groups), [(0, 0), amount, (0, 0)], value)
            sizes[axis] = compute(g, "ADD", sizes[axis], sum(amount))
            x = reform(g, part, sizes)
    return x


def _pad_at_run_time(g: Builder, x: Tensor, plan: PadPlan) -> Tensor:
    if x.rank > PAD_RANK:
        raise Refusal("amounts known at run time only", "unsupported_rank")
    count, amounts = plan.count, narrow(g, plan.amounts)
    ends = [(0, count), (count, 2 * count)]
    both = [_spread(g, g.slice(amounts, [a], [b], [1]), plan.axes, 0) for a, b in ends]
    unknown = [axis.size if axis.entry is None else None for axis in plan.axes]
    # Negative amounts take away.
    lost = [g.binary("MINIMUM", t, 0) for t in both]
    size = g.binary("ADD", g.binary("ADD", shape_tensor(g, x), lost[0]), lost[1])
    size = g.binary("MAXIMUM", size, 0)
    kept = g.emit("SLICE", [x, g.unary("NEG", lost[0]), size], unknown)
    grown = [g.binary("MAXIMUM", t, 0) for t in both]
    if plan.mode != "constant":
        for axis, border in enumerate(plan.axes):
            if border.entry is not None:
                low, high = (g.gather(t, g.const(axis, np.int32), 0) for t in grown)
                kept = g.gather(kept, _source(g, kept, axis, (low, high), plan.mode), axis)
        return kept
    pairs = g.emit("PACK", grown, (x.rank, 2), np.int32, values_count=2, axis=1)
    if plan.value is None:
        return g.emit("PAD", [kept, pairs], unknown)
    return g.emit("PADV2", [kept, pairs, g.reshape(plan.value, [])], unknown)


def _extend(g: Builder, x: Tensor, plan: PadPlan) -> Tensor:
    moving = [(axis, border) for axis, border in enumerate(plan.axes) if any(border.grown())]
    if plan.mode == "reflect" and all(border.is_short for _, border in moving):
        shape = [None if b.size is None else b.kept + sum(b.grown()) for b in plan.axes]
        amounts = g.const([list(p) for p in plan.grown()], np.int32)
        return g.emit("MIRROR_PAD", [x, amounts], shape, mode=0)
    for axis, border in moving:
        if border.kept is None:
            source = _source(g, x, axis, border.grown(), plan.mode)
        else:
            source = g.const(border.sources(plan.mode).astype(np.int32))
        x = g.gather(x, source, axis)
    return x


_CODES = {
    **{"add": "ADD", "sub": "SUB", "mul": "MUL", "mod": "FLOOR_MOD"},
    **{"minimum": "MINIMUM", "maximum": "MAXIMUM"},
}


def _source(g: Builder, x: Tensor, axis: int, around: tuple[Extent, Extent], mode: str) -> Tensor:
    """Where each position of a padded axis takes its value from."""
    op = mixed(lambda name, a, b: g.binary(_CODES[name], *(scalar(g, v) for v in (a, b))))
    size, (low, high) = g.extent(x, axis), around
    at = counting(g, op("add", op("add", size, low), high), op("sub", 0, low))
    return scalar(g, repeated(op, at, size, mode))


@OPS.lower("ReverseSequence", dtypes=ANY)
@carried(bool=np.uint8)
def reverse_sequence(
    g: Builder, input: Tensor, sequence_lens: Tensor, *, batch_axis: int, time_axis: int
) -> Tensor:
    """REVERSE_SEQUENCE."""
    options = {"seq_dim": time_axis, "batch_dim": batch_axis}
    if input.dtype.name == "int8":
        bits = g.emit("BITCAST", [input], input.shape, np.uint8)
        out = g.emit("REVERSE_SEQUENCE", [bits, sequence_lens], input.shape, **options)
        return g.emit("BITCAST", [out], input.shape, np.int8)
    return g.emit("REVERSE_SEQUENCE", [input, sequence_lens], input.shape, **options)


# The definition takes 5 times as long (LiteRT, x86-64, 144x256 elements).
@OPS.lower("Col2Im")
def col2im(
    g: Builder,
    input: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
) -> Tensor:
    """SCATTER_ND adds what falls on one pixel."""
    image, block = constant(image_shape, "image_shape"), constant(block_shape, "block_shape")
    rank, cells = len(image), int(np.prod(block))
    channels = None if input.shape[1] is None else input.shape[1] // cells
    if channels is None or input.shape[2] is None:
        raise Refusal("channels and columns must be known", "dynamic_shape")
    target = _landing(image, block, strides or [1] * rank, pads or [0] * 2 * rank, dilations)
    inside = np.flatnonzero(target >= 0).astype(np.int32)
    batch = g.extent(input, 0)
    columns = g.reshape(input, [batch, channels, target.size])
    rows = g.gather(g.transpose(columns, [2, 0, 1]), g.const(inside), 0)
    pixels = int(np.prod(image))
    where = g.const(target[inside, None], np.int32)
    size = g.shape_vector([pixels, batch, channels])
    shape = (pixels, input.shape[0], channels)
    summed = g.emit("SCATTER_ND", [where, rows, size], shape, rows.dtype)
    return g.reshape(g.transpose(summed, [1, 2, 0]), [batch, channels, *image])


def _landing(
    image: Sequence[int],
    block: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int] | None,
) -> Array:
    """The pixel that each cell of each block is added to; -1 beyond the image."""
    rank = len(image)
    flat: Array = np.zeros((1,) * 2 * rank, np.int64)
    valid: Array = np.ones((1,) * 2 * rank, np.bool_)
    for a in range(rank):
        dilation = dilations[a] if dilations else 1
        reach = dilation * (block[a] - 1) + 1
        count = (image[a] + pads[a] + pads[a + rank] - reach) // strides[a] + 1
        cell = (np.arange(block[a]) * dilation)[:, None]
        place = cell + np.arange(count) * strides[a] - pads[a]
        form = [1] * 2 * rank
        form[a], form[a + rank] = place.shape
        place = place.reshape(form)
        valid = valid & (place >= 0) & (place < image[a])
        flat = flat * image[a] + place
    return np.asarray(np.where(valid, flat, -1).ravel())
