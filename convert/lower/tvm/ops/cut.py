"""Parts of tensors, and tensors of parts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from edgeinfer.convert.lower.core.cut import (
    AxisPad,
    AxisSlice,
    PadPlan,
    mixed,
    pads,
    place,
    repeated,
    slices,
)
from edgeinfer.convert.lower.tvm import sizes
from edgeinfer.convert.lower.tvm.builder import Builder, Tensor
from edgeinfer.convert.lower.tvm.ops.arith import convert
from edgeinfer.convert.lower.tvm.ops.matrix import reshape
from edgeinfer.convert.lower.tvm.registry import ALL, OPS


def piece(
    g: Builder, x: Tensor, starts: Sequence[Any], counts: Sequence[Any], steps: Sequence[int]
) -> Tensor:
    """``counts`` elements along each axis from ``starts``, ``steps`` apart."""
    if all(
        isinstance(c, int) and isinstance(s, int) and c == s and t == 1
        for c, s, t in zip(counts, x.shape, steps, strict=True)
    ):
        return x
    if x.data is not None:
        cut = tuple(np.arange(c) * t + s for s, c, t in zip(starts, counts, steps, strict=True))
        return g.const(x.data[np.ix_(*cut)])

    def compute(data: Any) -> Any:
        def element(*index: Any) -> Any:
            at = (
                i * t + s if t != 1 else i + s for i, s, t in zip(index, starts, steps, strict=True)
            )
            return data(*at)

        return te.compute(tuple(counts), element, name="piece")

    return g.te(compute, x, name="piece")


def _taken(
    g: Builder,
    x: Tensor,
    begin: Tensor,
    step: Tensor,
    counts: dict[int, tuple[int, Any]],
) -> Tensor:
    """Take elements from positions known only at run time.

    Args:
        g: the graph.
        x: what is cut.
        begin: the first place along each axis that is cut; never beyond the tensor.
        step: from one place to the next, likewise.
        counts: by axis, where the two others say something of it, and how many elements.
    """
    shape = tuple(counts[a][1] if a in counts else s for a, s in enumerate(x.shape))

    def compute(source: Any, starts: Any, steps: Any) -> Any:
        def element(*index: Any) -> Any:
            indices = list(index)
            for axis, (k, _) in counts.items():
                own = tirx.const(k, "int64")
                indices[axis] = index[axis].astype("int64") * steps(own) + starts(own)
            return source(*indices)

        return te.compute(shape, element, name="taken")

    return g.te(compute, x, begin, step, name="taken")


@slices(OPS)
def slice_(
    g: Builder,
    data: Tensor,
    axes: Sequence[AxisSlice],
    starts: Tensor,
    ends: Tensor,
    steps: Tensor | None,
) -> Tensor:
    """Every so many elements from one to another."""
    begin: list[Any] = [0] * data.rank
    count: list[Any] = list(data.shape)
    step = [1] * data.rank
    for axis, cut in enumerate(axes):
        if cut.taken is not None:
            begin[axis], count[axis], step[axis] = cut.taken.start, len(cut.taken), cut.taken.step
        elif not cut.is_whole:
            return _sliced(g, data, (starts, ends, steps), axes)
    return piece(g, data, begin, count, step)


def _sliced(
    g: Builder,
    data: Tensor,
    given: tuple[Tensor, Tensor, Tensor | None],
    axes: Sequence[AxisSlice],
) -> Tensor:
    """``Slice`` whose bounds or sizes are known only at run time."""
    entries = {cut.entry: axis for axis, cut in enumerate(axes) if cut.entry is not None}
    along = [entries[k] for k in sorted(entries)]
    starts, ends, steps = given
    jumps = g.const(np.ones(len(along), np.int64)) if steps is None else convert(g, steps, "int64")
    lengths = sizes.values(g, [data.shape[a] for a in along])
    bounds = (convert(g, t, "int64") for t in (starts, ends))
    first, last = (g.map(_bound(bool(i)), t, lengths, jumps) for i, t in enumerate(bounds))
    count = g.map(_steps, first, last, jumps)
    said = sizes.expected(g, data.rank)

    def make(number: Callable[[int], Any], step: Callable[[int], Any]) -> sizes.Decision:
        zero, own = tirx.const(0, "int64"), range(len(along))
        return [number(i) for i in own], tirx.all(*(tirx.NE(step(i), zero) for i in own))

    made = sizes.decided(g, [count, jumps], make, [said[a] for a in along])
    return _taken(g, data, first, jumps, {a: (k, made[k]) for k, a in enumerate(along)})


def _bound(is_stop: bool) -> Callable[..., Any]:
    def held(bound: Any, size: Any, step: Any) -> Any:
        zero = tirx.const(0, "int64")
        own = tirx.Select(bound < zero, bound + size, bound)
        ahead, back = (
            place(_arithmetic, own, size, back=back, is_stop=is_stop) for back in (False, True)
        )
        return tirx.Select(step > zero, ahead, back)

    return held


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "minimum": tirx.min,
    "maximum": tirx.max,
    "mod": tirx.floormod,
}


_arithmetic = mixed(lambda op, a, b: _OPERATORS[op](a, b))


def _steps(first: Any, last: Any, step: Any) -> Any:
    zero = tirx.const(0, "int64")
    safe = tirx.Select(tirx.EQ(step, zero), tirx.const(1, "int64"), step)
    return tirx.Max(zero - tirx.floordiv(first - last, safe), zero)


@OPS.lower("Split")
def split(
    g: Builder, input: Tensor, split: Tensor | None = None, *, axis: int, num_outputs: int | None
) -> tuple[Tensor, ...]:
    """Parts along an axis."""
    at = axis % input.rank
    size = input.shape[at]
    parts = None if split is None else sizes.known(split)
    if split is None and isinstance(size, int):
        count = num_outputs or g.outputs()
        each = -(-size // count)
        parts = [max(0, min(each, size - i * each)) for i in range(count)]
    if parts is None or not isinstance(size, int):
        return _parted(g, input, split, at, num_outputs or g.outputs())
    made = []
    start = 0
    for part in parts:
        starts, counts = [0] * input.rank, list(input.shape)
        starts[at], counts[at] = start, part
        made.append(piece(g, input, starts, counts, [1] * input.rank))
        start += part
    return tuple(made)


def _parted(g: Builder, x: Tensor, split: Tensor | None, at: int, count: int) -> tuple[Tensor, ...]:
    """``Split`` whose sizes are known only at run time; together they are the whole axis."""
    length = sizes.values(g, [x.shape[at]])
    number = count if split is None else sizes.count_of(split)

    def part(whole: Any, given: Any, k: Any) -> Any:
        if split is not None:
            return given(k).astype("int64")
        zero = tirx.const(0, "int64")
        each = tirx.floordiv(whole(zero) + (count - 1), tirx.const(count, "int64"))
        return tirx.Max(zero, tirx.Min(each, whole(zero) - k * each))

    def compute(whole: Any, *given: Any) -> Any:
        own = given[0] if given else None
        return te.compute((number,), lambda k: part(whole, own, k.astype("int64")), name="parts")

    operands = [length, *([] if split is None else [reshape(g, split, (number,))])]
    parts = g.te(compute, *operands, name="parts")

    def begun(given: Any) -> Any:
        k = te.reduce_axis((0, number), "k")
        zero = tirx.const(0, "int64")
        return te.compute(
            (number,), lambda i: te.sum(tirx.Select(k < i, given(k), zero), axis=k), name="begun"
        )

    begin, ones = g.te(begun, parts, name="begun"), g.const(np.ones(number, np.int64))

    def make(given: Callable[[int], Any], whole: Callable[[int], Any]) -> sizes.Decision:
        own = [given(i) for i in range(number)]
        return own, tirx.EQ(sum(own[1:], own[0]), whole(0))

    said = [sizes.expected(g, x.rank, i)[at] for i in range(number)]
    made = sizes.decided(g, [parts, length], make, said)
    return tuple(_taken(g, x, begin, ones, {at: (i, n)}) for i, n in enumerate(made))


@OPS.lower("Concat")
def concat(g: Builder, *inputs: Tensor, axis: int) -> Tensor:
    """One after the other along an axis."""
    if len(inputs) == 1:
        return inputs[0]
    if all(t.data is not None for t in inputs):
        return g.const(np.concatenate([np.asarray(t.data) for t in inputs], axis))
    at = axis % inputs[0].rank
    kept = [t for t in inputs if not (isinstance(t.shape[at], int) and t.shape[at] == 0)]
    if len(kept) == 1:
        return kept[0]
    if not kept:
        return inputs[0]
    others = [_agreed(kept, axis) if axis != at else None for axis in range(inputs[0].rank)]
    kept = [sizes.alike(g, t, others) for t in kept]
    if all(isinstance(t.shape[at], int) for t in kept):
        return g.emit(relax.op.concat([g.expr(t) for t in kept], at))
    # Relax writes "1 + n" where the compiler writes "n + 1", and compares sizes as they read.
    return g.te(lambda *parts: topi.concatenate(parts, axis=at), *kept, name="concat")


def _agreed(tensors: Sequence[Tensor], axis: int) -> Any:
    """The size that tensors have in common: a number, if any has one."""
    found = [t.shape[axis] for t in tensors]
    return next((size for size in found if isinstance(size, int)), found[0])


@pads(OPS, dtypes=ALL)
def pad(g: Builder, data: Tensor, plan: PadPlan) -> Tensor:
    """A border; a negative one cuts."""
    shape: tuple[Any, ...]
    if plan.is_known and all(_is_plain(axis, plan.mode) for axis in plan.axes):
        shape = tuple(axis.size + axis.before + axis.after for axis in plan.axes)
    else:
        shape = _padded(g, data, plan)
    fill = plan.value if plan.value is not None else g.const(np.zeros((), data.dtype))
    finite = fill.data is not None and bool(np.all(np.isfinite(fill.data)))
    operands = [] if finite else [reshape(g, fill, ())]
    operands += [] if plan.is_known else [plan.amounts]

    def beyond(rest: Sequence[Any]) -> Any:
        return tirx.const(np.asarray(fill.data).flat[0].item(), data.dtype) if finite else rest[0]()

    def compute(source: Any, *rest: Any) -> Any:
        borders = plan.axes if plan.is_known else [_read(rest[-1], plan, b) for b in plan.axes]

        def element(*index: Any) -> Any:
            at, tests = [], []
            for i, size, border in zip(index, source.shape, borders, strict=True):
                known = border.is_known
                low, high = border.grown(_arithmetic)
                if plan.mode != "constant":
                    at.append(_repeated(i, size, border, plan.mode))
                    continue
                spot = i if known and not border.before else i - border.before
                at.append(spot)
                tests += [spot >= 0] if not known or low > 0 else []
                tests += [spot < size] if not known or high > 0 else []
            value = source(*at)
            if not tests:
                return value
            return tirx.if_then_else(tirx.all(*tests), value, beyond(rest))

        return te.compute(shape, element, name="pad")

    return g.te(compute, data, *operands, name="pad")


def _read(amounts: Any, plan: PadPlan, border: AxisPad) -> AxisPad:
    """The border of an axis, in a kernel that is given all amounts."""
    if border.entry is None:
        return border
    both = (border.entry, border.entry + plan.count)
    low, high = (amounts(tirx.const(k, "int64")).astype("int64") for k in both)
    return replace(border, before=low, after=high)


def _is_plain(border: AxisPad, mode: str) -> bool:
    """Whether nothing can be wrong with the sizes: no cut of an open one, nor what repeats it."""
    if isinstance(border.size, int):
        return mode == "constant" or border.kept > 0 or not any(border.grown())
    both = border.before, border.after
    return min(both) >= 0 and (mode == "constant" or not any(both))


def _padded(g: Builder, data: Tensor, plan: PadPlan) -> tuple[Any, ...]:
    """Have a run compute sizes with their borders; there must be something to repeat."""

    def make(around: Callable[[int], Any], had: Callable[[int], Any]) -> sizes.Decision:
        full, tests, zero = [], [], tirx.const(0, "int64")
        for axis, border in enumerate(plan.axes):
            size = had(axis)
            if border.entry is not None:
                low, high = around(border.entry), around(border.entry + plan.count)
                kept = size + tirx.min(low, zero) + tirx.min(high, zero)
                tests.append(tirx.Or(kept > zero, tirx.max(low, high) <= zero))
                size = size + low + high
            full.append(size)
        return full, None if plan.mode == "constant" else tirx.all(*tests)

    operands = [plan.amounts, sizes.values(g, data.shape)]
    return sizes.decided(g, operands, make, sizes.expected(g, data.rank))


def _repeated(i: Any, size: Any, border: AxisPad, mode: str) -> Any:
    """Which element stands at a place of a padded axis."""
    known = border.is_known
    (first, behind), (low, high) = border.lost(_arithmetic), border.grown(_arithmetic)
    if known and not low and not high:
        return i + first if first else i
    kept = size - first - behind if not known or first or behind else size
    at = repeated(_arithmetic, i - low, kept, mode)
    return at + first if not known or first else at


@OPS.lower("Trilu")
def trilu(g: Builder, input: Tensor, k: Tensor | None = None, *, upper: int) -> Tensor:
    """One side of a diagonal."""
    known = [0] if k is None else sizes.known(k)
    zero = tirx.const(0, input.dtype)

    def compute(data: Any, *given: Any) -> Any:
        shift = given[0]().astype("int64") if given else tirx.const((known or [0])[0], "int64")

        def element(*index: Any) -> Any:
            row, column = index[-2].astype("int64") + shift, index[-1].astype("int64")
            keep = column >= row if upper else column <= row
            return tirx.Select(keep, data(*index), zero)

        return te.compute(data.shape, element, name="trilu")

    given = [] if k is None or known is not None else [reshape(g, k, ())]
    return g.te(compute, input, *given, name="trilu")
