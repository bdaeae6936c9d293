"""Parts of a tensor, and what is put around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.lower.tflite.builder import Builder, Extent
from edgeinfer.convert.lower.tflite.graph import Tensor
from edgeinfer.convert.lower.tflite.registry import ANY, OPS
from edgeinfer.convert.lower.tflite.sizes import (
    INT_MAX,
    axis_of,
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


@OPS.lower("Slice", dtypes=ANY)
def slice_(
    g: Builder,
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """STRIDED_SLICE, whose rules for what is out of range are ONNX's."""
    count = starts.shape[0]
    if count is None:
        raise Refusal("the number of axes is only known at run time", "dynamic_shape")
    listed = constant(axes, "axes")
    chosen = [axis_of(a, data.rank) for a in (range(count) if listed is None else listed)]
    strides = constant(steps, "steps") or [1] * count
    if starts.data is None or ends.data is None:
        return _slice_at_run_time(g, data, starts, ends, chosen, strides)
    begin: list[int] = [0] * data.rank
    end: list[int | None] = [None] * data.rank
    step = [1] * data.rank
    for axis, b, e, t in zip(
        chosen, starts.data.ravel().tolist(), ends.data.ravel().tolist(), strides, strict=True
    ):
        begin[axis], end[axis], step[axis] = _bounds(data.shape[axis], b, e, t)
    if all(
        b == 0 and t == 1 and (e is None or e == s)
        for b, e, t, s in zip(begin, end, step, data.shape, strict=True)
    ):
        return data
    if (0, 0) in zip(begin, end, strict=True):
        # XNNPACK takes no elements for all of them.
        if not data.is_static:
            raise Refusal("nothing is left of an axis beside dynamic ones", "dynamic_shape")
        picked = tuple(slice(b, e, t) for b, e, t in zip(begin, end, step, strict=True))
        return g.const(np.empty(data.static_shape, data.dtype)[picked])
    return g.slice(data, begin, end, step)


def _bounds(size: int | None, begin: int, end: int, step: int) -> tuple[int, int | None, int]:
    step = max(min(step, INT_MAX), -INT_MAX)
    if size is None:
        low, high = -INT_MAX, INT_MAX
        whole = end >= high if step > 0 else end <= low
        return max(min(begin, high), low), None if whole else max(min(end, high), low), step
    first, last, _ = slice(begin, end, step).indices(size)
    if not len(range(first, last, step)):
        return 0, 0, 1
    return first, None if last < 0 else last, step


def _slice_at_run_time(
    g: Builder, data: Tensor, starts: Tensor, ends: Tensor, axes: list[int], steps: list[int]
) -> Tensor:
    rank = data.rank
    begin = _spread(g, narrow(g, starts), axes, rank, 0)
    end = _spread(g, narrow(g, ends), axes, rank, 0)
    step = [1] * rank
    for axis, t in zip(axes, steps, strict=True):
        step[axis] = t
    mask = sum(1 << a for a in range(rank) if a not in axes)
    shape = [None if a in axes else s for a, s in enumerate(data.shape)]
    zero = {"ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0, "offset": False}
    operands = [data, begin, end, g.const(step, np.int32)]
    return g.emit("STRIDED_SLICE", operands, shape, begin_mask=mask, end_mask=mask, **zero)


def _spread(g: Builder, values: Tensor, axes: list[int], rank: int, other: int) -> Tensor:
    """One entry per axis: those of ``values`` where listed, the same number elsewhere."""
    if axes == list(range(rank)):
        return values
    with_other = g.concat([values, g.const([other], np.int32)], 0)
    source = [axes.index(a) if a in axes else len(axes) for a in range(rank)]
    return g.gather(with_other, g.const(source, np.int32), 0)


@OPS.lower("Pad", dtypes=ANY)
@carried(bool=np.int8)
def pad(
    g: Builder,
    data: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str,
) -> Tensor:
    """PAD, PADV2 or MIRROR_PAD; other modes gather. Negative amounts are sliced off before."""
    listed = constant(axes, "axes")
    chosen = [axis_of(a, data.rank) for a in (range(data.rank) if listed is None else listed)]
    if pads.data is None:
        amounts = narrow(g, pads)
        if mode == "constant":
            return _pad_at_run_time(g, data, amounts, constant_value, chosen)
        return _extend_at_run_time(g, data, amounts, chosen, mode)
    flat = pads.data.ravel().tolist()
    around = [(0, 0)] * data.rank
    for i, axis in enumerate(chosen):
        around[axis] = (flat[i], flat[i + len(chosen)])
    x = _crop(g, data, around)
    grown = [(max(lo, 0), max(hi, 0)) for lo, hi in around]
    if not any(any(p) for p in grown):
        return x
    if mode == "constant":
        return _pad_constant(g, x, grown, constant_value)
    return _extend(g, x, grown, mode)


def _crop(g: Builder, x: Tensor, around: Sequence[tuple[int, int]]) -> Tensor:
    """What negative amounts take away."""
    if all(lo >= 0 and hi >= 0 for lo, hi in around):
        return x
    begin = [max(-lo, 0) for lo, _ in around]
    end = [hi if hi < 0 else None for _, hi in around]
    size = [
        None if s is None else max(s - b + (e or 0), 0)
        for s, b, e in zip(x.shape, begin, end, strict=True)
    ]
    stop = [
        e if e is None or n is None else b + n for b, e, n in zip(begin, end, size, strict=True)
    ]
    return g.slice(x, begin, stop, [1] * x.rank)


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


def _pad_at_run_time(
    g: Builder, x: Tensor, amounts: Tensor, value: Tensor | None, axes: list[int]
) -> Tensor:
    if x.rank > PAD_RANK:
        raise Refusal("amounts known at run time only", "unsupported_rank")
    count = len(axes)
    before = _spread(g, g.slice(amounts, [0], [count], [1]), axes, x.rank, 0)
    after = _spread(g, g.slice(amounts, [count], [2 * count], [1]), axes, x.rank, 0)
    unknown = [None if a in axes else s for a, s in enumerate(x.shape)]
    # Negative amounts take away.
    lost = [g.binary("MINIMUM", t, 0) for t in (before, after)]
    size = g.binary("ADD", g.binary("ADD", shape_tensor(g, x), lost[0]), lost[1])
    size = g.binary("MAXIMUM", size, 0)
    kept = g.emit("SLICE", [x, g.unary("NEG", lost[0]), size], unknown)
    grown = [g.binary("MAXIMUM", t, 0) for t in (before, after)]
    pairs = g.emit("PACK", grown, (x.rank, 2), np.int32, values_count=2, axis=1)
    if value is None:
        return g.emit("PAD", [kept, pairs], unknown)
    return g.emit("PADV2", [kept, pairs, g.reshape(value, [])], unknown)


_MODES = ("reflect", "edge", "wrap")


def _extend(g: Builder, x: Tensor, around: Sequence[tuple[int, int]], mode: str) -> Tensor:
    if mode not in _MODES:
        raise Refusal(f"mode {mode!r}")
    fits = all(s is not None and max(p) < s for s, p in zip(x.shape, around, strict=True) if any(p))
    if mode == "reflect" and fits:
        shape = [None if s is None else s + sum(p) for s, p in zip(x.shape, around, strict=True)]
        amounts = g.const([list(p) for p in around], np.int32)
        return g.emit("MIRROR_PAD", [x, amounts], shape, mode=0)
    for axis, (lo, hi) in enumerate(around):
        size = x.shape[axis]
        if not lo and not hi:
            continue
        if size == 0:
            raise Refusal(f"mode {mode!r} of an empty axis")
        if size is None:
            x = g.gather(x, _source(g, g.extent(x, axis), lo, hi, mode), axis)
            continue
        how: Any = mode
        source = np.pad(np.arange(size, dtype=np.int32), (lo, hi), mode=how)
        x = g.gather(x, g.const(source), axis)
    return x


def _extend_at_run_time(
    g: Builder, x: Tensor, amounts: Tensor, axes: list[int], mode: str
) -> Tensor:
    if mode not in _MODES:
        raise Refusal(f"mode {mode!r}")
    for i, axis in enumerate(axes):
        lo, hi = (g.gather(amounts, g.const(place, np.int32), 0) for place in (i, i + len(axes)))
        x = g.gather(x, _source(g, g.extent(x, axis), lo, hi, mode), axis)
    return x


def _source(g: Builder, size: Extent, lo: Extent, hi: Extent, mode: str) -> Tensor:
    """Where each position of a padded axis takes its value from."""
    total = compute(g, "ADD", compute(g, "ADD", size, lo), hi)
    start = compute(g, "SUB", 0, lo)
    place = counting(g, total, start)
    last = scalar(g, compute(g, "SUB", size, 1))
    if mode == "edge":
        return g.binary("MINIMUM", g.binary("MAXIMUM", place, 0), last)
    if mode == "wrap":
        return g.binary("FLOOR_MOD", place, scalar(g, size))
    period = g.binary("MAXIMUM", g.binary("MUL", last, 2), 1)
    turn = g.binary("FLOOR_MOD", place, period)
    return g.binary("MINIMUM", turn, g.binary("SUB", period, turn))


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
