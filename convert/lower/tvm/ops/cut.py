"""Parts of tensors, and tensors of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from edgeinfer.convert.lower.registry import Const, Refusal
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
    """Take elements from places known only at run time.

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
            places = list(index)
            for axis, (k, _) in counts.items():
                own = tirx.const(k, "int64")
                places[axis] = index[axis].astype("int64") * steps(own) + starts(own)
            return source(*places)

        return te.compute(shape, element, name="taken")

    return g.te(compute, x, begin, step, name="taken")


@OPS.lower("Slice")
def slice_(
    g: Builder,
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Const | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    """Every so many elements from one to another."""
    number = sizes.count_of(starts)
    along = [int(v) % data.rank for v in axes.array.reshape(-1)] if axes else list(range(number))
    first, last = sizes.known(starts), sizes.known(ends)
    stride = [1] * number if steps is None else sizes.known(steps)
    begin: list[Any] = [0] * data.rank
    count: list[Any] = list(data.shape)
    step = [1] * data.rank
    for place, axis in enumerate(along):
        found = None
        if first is not None and last is not None and stride is not None:
            found = _range(data.shape[axis], first[place], last[place], stride[place])
            step[axis] = stride[place]
        if found is None:
            return _sliced(g, data, (starts, ends, steps), along)
        begin[axis], count[axis] = found
    return piece(g, data, begin, count, step)


def _sliced(
    g: Builder, data: Tensor, given: tuple[Tensor, Tensor, Tensor | None], along: Sequence[int]
) -> Tensor:
    """``Slice`` whose bounds or sizes are known only at run time."""
    starts, ends, steps = given
    jumps = g.const(np.ones(len(along), np.int64)) if steps is None else convert(g, steps, "int64")
    lengths = sizes.values(g, [data.shape[a] for a in along])
    bounds = (convert(g, t, "int64") for t in (starts, ends))
    first, last = (g.map(_bound(is_end), t, lengths, jumps) for is_end, t in enumerate(bounds))
    count = g.map(_steps, first, last, jumps)
    said = sizes.expected(g, data.rank)

    def make(number: Callable[[int], Any], step: Callable[[int], Any]) -> sizes.Decision:
        zero, own = tirx.const(0, "int64"), range(len(along))
        return [number(i) for i in own], tirx.all(*(tirx.NE(step(i), zero) for i in own))

    made = sizes.decided(g, [count, jumps], make, [said[a] for a in along])
    return _taken(g, data, first, jumps, {a: (k, made[k]) for k, a in enumerate(along)})


def _bound(is_end: int) -> Callable[..., Any]:
    """An end as a place of the axis: of nothing there is none, and steps back end before it."""

    def held(place: Any, size: Any, step: Any) -> Any:
        zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
        wrapped = tirx.Select(place < zero, place + size, place)
        forwards = tirx.Min(tirx.Max(wrapped, zero), size)
        backwards = tirx.Min(tirx.Max(wrapped, zero - one if is_end else zero), size - one)
        return tirx.Select(step > zero, forwards, backwards)

    return held


def _steps(first: Any, last: Any, step: Any) -> Any:
    zero = tirx.const(0, "int64")
    safe = tirx.Select(tirx.EQ(step, zero), tirx.const(1, "int64"), step)
    return tirx.Max(zero - tirx.floordiv(first - last, safe), zero)


def _range(size: Any, low: int, high: int, step: int) -> tuple[Any, Any] | None:
    """The first place and how many there are; None where it is known only at run time."""
    if isinstance(size, int):
        start, stop, _ = slice(low, _stop(high, step, size), step).indices(size)
        return start, len(range(start, stop, step))
    return (0, size) if step == 1 and low == 0 and high >= 2**31 - 1 else None


def _stop(high: int, step: int, size: int) -> int | None:
    # Python reads a negative bound from the end; below the first element nothing ends a way back.
    return None if step < 0 and high < -size else high


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
    """A border; a negative one cuts."""
    along = [int(a) % data.rank for a in axes.array.reshape(-1)] if axes else list(range(data.rank))
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise Refusal(f"mode {mode!r}")
    around = sizes.known(pads)
    borders = None if around is None else _borders(data.rank, along, around)
    if borders is None or not _is_plain(data, borders, mode):
        shape = _padded(g, data, pads, along, mode)
    else:
        shape = tuple(s + sum(both) for s, both in zip(data.shape, borders, strict=True))
    fill = constant_value if constant_value is not None else g.const(np.zeros((), data.dtype))
    finite = fill.data is not None and bool(np.all(np.isfinite(fill.data)))
    operands = [] if finite else [reshape(g, fill, ())]
    operands += [] if borders is not None else [pads]

    def beyond(rest: Sequence[Any]) -> Any:
        return tirx.const(np.asarray(fill.data).flat[0].item(), data.dtype) if finite else rest[0]()

    def compute(source: Any, *rest: Any) -> Any:
        def element(*index: Any) -> Any:
            at, tests = [], []
            for axis, (i, size) in enumerate(zip(index, source.shape, strict=True)):
                both = (1, 1) if borders is None else borders[axis]
                low = _read(rest[-1], along, axis) if borders is None else both[0]
                place = i if isinstance(low, int) and not low else i - low
                if mode != "constant":
                    at.append(_mirrored(place, size, mode) if max(both) > 0 else place)
                    continue
                at.append(place)
                tests += [place >= 0] if both[0] > 0 else []
                tests += [place < size] if both[1] > 0 else []
            value = source(*at)
            if not tests:
                return value
            return tirx.if_then_else(tirx.all(*tests), value, beyond(rest))

        return te.compute(shape, element, name="pad")

    return g.te(compute, data, *operands, name="pad")


def _borders(rank: int, along: Sequence[int], around: Sequence[int]) -> list[tuple[int, int]]:
    found = [(0, 0)] * rank
    for i, axis in enumerate(along):
        found[axis] = around[i], around[i + len(along)]
    return found


def _read(pads: Any, along: Sequence[int], axis: int) -> Any:
    """What stands before an axis, where that is known only at run time."""
    if axis not in along:
        return 0
    return pads(tirx.const(along.index(axis), "int64")).astype("int64")


def _is_plain(data: Tensor, borders: Sequence[tuple[int, int]], mode: str) -> bool:
    """Whether nothing can be wrong with the sizes: no cut of an open one, nor what repeats it."""
    of_open = [
        both for size, both in zip(data.shape, borders, strict=True) if not isinstance(size, int)
    ]
    return all(min(both) >= 0 and (mode == "constant" or not any(both)) for both in of_open)


def _padded(
    g: Builder, data: Tensor, pads: Tensor, along: Sequence[int], mode: str
) -> tuple[Any, ...]:
    """Have a run compute sizes with their borders; there must be something to repeat."""
    count = len(along)

    def make(around: Callable[[int], Any], had: Callable[[int], Any]) -> sizes.Decision:
        full, tests, zero = [had(a) for a in range(data.rank)], [], tirx.const(0, "int64")
        for i, axis in enumerate(along):
            both = around(i) + around(i + count)
            tests.append(tirx.Or(had(axis) > zero, both <= zero))
            full[axis] = full[axis] + both
        return full, None if mode == "constant" else tirx.all(*tests)

    operands = [pads, sizes.values(g, data.shape)]
    return sizes.decided(g, operands, make, sizes.expected(g, data.rank))


def _mirrored(place: Any, size: Any, mode: str) -> Any:
    if mode == "edge":
        return tirx.max(0, tirx.min(place, size - 1))
    if mode == "wrap":
        return tirx.floormod(place, size)
    period = tirx.max(1, 2 * (size - 1))
    turned = tirx.floormod(place, period)
    return tirx.min(turned, period - turned)


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
