"""Parts of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.convert.sources.tflite.importer import Importer
from edgeinfer.convert.sources.tflite.operand import Operand, Options
from edgeinfer.convert.sources.tflite.registry import READERS
from edgeinfer.records import dataclass

_LAST, _FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@READERS.reader("SPLIT")
def split(g: Importer, o: Options, axis: Operand, x: Operand) -> Sequence[ir.Value]:
    """Split into equal parts."""
    (along,) = axis.known("the axis")
    count = o.num_splits
    if count == 1:
        return [g.emit("Identity", x)]
    return g.emit_many("Split", count, x, axis=along % x.rank, num_outputs=count)


@READERS.reader("SPLIT_V")
def split_v(
    g: Importer, o: Options, x: Operand, lengths: Operand, axis: Operand
) -> Sequence[ir.Value]:
    """Split into parts of given lengths; one of them may be what is left."""
    (along,) = axis.known("the axis")
    along %= x.rank
    sizes = lengths.ints()
    if sizes is None:
        count = len(o.outputs)
        return g.emit_many("Split", count, x, lengths.int64(), axis=along)
    if -1 in sizes:
        total = x.shape[along]
        if total is None:
            raise Refusal("the length of the rest is not known", "dynamic_shape")
        sizes[sizes.index(-1)] = total - sum(sizes) - 1
    if len(sizes) == 1:
        return [g.emit("Identity", x)]
    return g.emit_many("Split", len(sizes), x, g.shape(sizes), axis=along)


@READERS.reader("SLICE")
def slice_(g: Importer, o: Options, x: Operand, begin: Operand, size: Operand) -> ir.Value:
    """Slice; a length of -1 takes the rest."""
    starts, counts = begin.ints(), size.ints()
    axes = g.shape(range(x.rank))
    if starts is not None and counts is not None:
        stops = [_LAST if n < 0 else s + n for s, n in zip(starts, counts, strict=True)]
        return g.emit("Slice", x, g.shape(starts), g.shape(stops), axes)
    first, lengths = begin.int64(), size.int64()
    rest = g.emit("Less", lengths, g.shape([0]))
    last = g.emit("Where", rest, g.shape([_LAST]), g.emit("Add", first, lengths))
    return g.emit("Slice", x, first, last, axes)


@dataclass(slots=True)
class _Part:
    """What is taken of one axis; None runs to the end."""

    axis: int
    begin: int | None
    end: int | None
    step: int
    shrinks: bool


@READERS.reader("STRIDED_SLICE")
def strided_slice(
    g: Importer, o: Options, x: Operand, begin: Operand, end: Operand, step: Operand
) -> ir.Value:
    """Slice with steps, then drop and insert axes."""
    steps = step.known("the steps")
    starts, stops = begin.ints(), end.ints()
    if starts is None or stops is None:
        return _computed(g, o, x, begin, end, steps)
    parts, inserted = _parts(o, x.rank, starts, stops, steps)
    y = x.real
    moved = [p for p in parts if (p.begin, p.end, p.step) != (None, None, 1)]
    if moved:
        firsts = [(0 if p.step > 0 else _LAST) if p.begin is None else p.begin for p in moved]
        lasts = [(_LAST if p.step > 0 else _FIRST) if p.end is None else p.end for p in moved]
        axes, strides = [p.axis for p in moved], [p.step for p in moved]
        y = g.emit("Slice", y, *map(g.shape, (firsts, lasts, axes, strides)))
    if dropped := [p.axis for p in parts if p.shrinks]:
        y = g.emit("Squeeze", y, g.shape(dropped))
    if inserted:
        y = g.emit("Unsqueeze", y, g.shape(inserted))
    return g.emit("Identity", y) if y is x.real else y


def _parts(
    o: Options, rank: int, starts: list[int], stops: list[int], steps: list[int]
) -> tuple[list[_Part], list[int]]:
    """Read the masks; returns what is taken of each axis and where axes are inserted."""
    count = len(starts)
    new, ellipsis = o.new_axis_mask, o.ellipsis_mask
    used = sum(not (new >> i & 1) and not (ellipsis >> i & 1) for i in range(count))
    parts: list[_Part] = []
    inserted: list[int] = []
    axis = place = 0
    for i in range(count):
        if ellipsis >> i & 1:
            axis, place = axis + rank - used, place + rank - used
            continue
        if new >> i & 1:
            inserted.append(place)
            place += 1
            continue
        shrinks = bool(o.shrink_axis_mask >> i & 1)
        first = None if o.begin_mask >> i & 1 and not shrinks else starts[i]
        last = None if o.end_mask >> i & 1 else stops[i] + (starts[i] if o.offset else 0)
        if shrinks:
            last = None if first == -1 else (first or 0) + 1
        if axis >= rank or steps[i] == 0:
            raise ValueError(f"a slice of axis {axis} with step {steps[i]}")
        parts.append(_Part(axis, first, last, 1 if shrinks else steps[i], shrinks))
        axis, place = axis + 1, place + (not shrinks)
    return parts, inserted


def _computed(
    g: Importer, o: Options, x: Operand, begin: Operand, end: Operand, steps: list[int]
) -> ir.Value:
    """A slice whose bounds a run computes."""
    if o.new_axis_mask or o.ellipsis_mask:
        raise Refusal("new axes in a slice whose bounds are computed", "requires_constant")
    count = len(steps)
    shrink = _bits(o.shrink_axis_mask, count)
    first, last = begin.int64(), end.int64()
    if o.offset:
        last = g.emit("Add", first, last)
    ahead = np.asarray(steps) > 0
    opened = _bits(o.begin_mask, count) & ~shrink
    if opened.any():
        first = g.emit("Where", opened, np.where(ahead, 0, _LAST), first)
    if shrink.any():
        following = g.emit("Add", first, g.shape([1]))
        ends = g.emit("Equal", first, g.shape([-1]))
        one = g.emit("Where", ends, g.shape([_LAST]), following)
        last = g.emit("Where", shrink, one, last)
    opened = _bits(o.end_mask, count) & ~shrink
    if opened.any():
        last = g.emit("Where", opened, np.where(ahead, _LAST, _FIRST), last)
    strides = g.shape(np.where(shrink, 1, steps).tolist())
    y = g.emit("Slice", x, first, last, g.shape(range(count)), strides)
    if shrink.any():
        y = g.emit("Squeeze", y, g.shape(np.flatnonzero(shrink).tolist()))
    return y


def _bits(mask: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([bool(mask >> i & 1) for i in range(count)])


@READERS.reader("REVERSE_V2")
def reverse_v2(g: Importer, o: Options, x: Operand, axes: Operand) -> ir.Value:
    """Slice backwards."""
    chosen = [a % x.rank for a in axes.known("the axes")]
    n = len(chosen)
    bounds = [g.shape(v) for v in ([_LAST] * n, [_FIRST] * n, chosen, [-1] * n)]
    return g.emit("Slice", x, *bounds)


@READERS.reader("REVERSE_SEQUENCE")
def reverse_sequence(g: Importer, o: Options, x: Operand, lengths: Operand) -> ir.Value:
    """ReverseSequence; ONNX has time and batch on the first two axes only."""
    if {o.seq_dim, o.batch_dim} != {0, 1}:
        raise Refusal(f"sequences along axis {o.seq_dim} of batches along {o.batch_dim}")
    return g.emit(
        "ReverseSequence", x, lengths.int64(), time_axis=o.seq_dim, batch_axis=o.batch_dim
    )
