"""What data chooses: indices that hold something, and boxes that are no other's.

How much there is is known only at run time: a kernel has memory for as much as there can be, and
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, function

COUNT = ((1,), "int64")
"""The last result of each kernel: how much of the others holds something."""


def nonzero(size: Expr, dtype: str) -> tirx.PrimFunc:
    """Find where elements are not zero, in their order.

    The kernel takes ``x`` (size) and gives ``at`` (int64, size) and their number.
    """
    buffers = {"x": ((size,), dtype), "at": ((size,), "int64"), "count": COUNT}

    def body(x: Buffer, at: Buffer, count: Buffer) -> None:
        T.buffer_store(count, T.int64(0), [0])
        with T.serial(size) as i:
            value = T.BufferLoad(x, [i])
            there = value if dtype == "bool" else value != tirx.const(0, dtype)
            if dtype.startswith("float"):
                # NaN is not zero, either; LLVM's comparison is ordered.
                there = tirx.Or(there, tirx.isnan(value))
            with T.If(there), T.Then():
                _append(at, count, [], tirx.Cast("int64", i))

    return function("nonzero", buffers, body, results=2)


def listed(count: int) -> tirx.PrimFunc:
    """Write numbers that are given as arguments into a vector (int64, count)."""
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name("listed")
        T.func_attr({"tirx.noalias": True})
        numbers = [T.arg(f"n{i}", T.int64()) for i in range(count)]
        out = T.arg("out", T.Buffer((count,), "int64", align=8))
        for i, number in enumerate(numbers):
            T.buffer_store(out, number, [i])
    return builder.get()


def decided(
    operands: Sequence[tuple[int, str]],
    count: int,
    again: Sequence[int],
    make: Callable[..., tuple[Sequence[Expr], Expr | None]],
) -> tirx.PrimFunc:
    """Compute sizes, each once, and whether there are such ones.

    The kernel takes vectors and gives (int64): one if there are, else zero; the sizes, or zeros;
    and some of them again.

    Args:
        operands: elements and type of each vector.
        count: number of the sizes.
        again: which sizes follow once more.
        make: gets functions that read an element as int64; gives the sizes, and a condition
            without which there are none.
    """
    vectors = {f"i{k}": ((size,), dtype) for k, (size, dtype) in enumerate(operands)}
    buffers = {**vectors, "sizes": ((1 + count + len(again),), "int64")}

    def body(*given: Buffer) -> None:
        *vectors, out = given
        one, zero = T.int64(1), T.int64(0)

        def held(place: int) -> Expr:
            return T.BufferLoad(out, [place])

        readers = [lambda i, v=v: T.BufferLoad(v, [i]).astype("int64") for v in vectors]
        sizes, holds = make(*readers)
        for i, size in enumerate(sizes, 1):
            T.buffer_store(out, size, [i])
        tests = [held(i) >= zero for i in range(1, count + 1)]
        test = tirx.all(*tests, *([] if holds is None else [holds]))
        T.buffer_store(out, tirx.Select(test, one, zero), [0])
        for i in range(1, count + 1):
            T.buffer_store(out, held(i) * held(0), [i])
        for place, i in enumerate(again, count + 1):
            T.buffer_store(out, held(1 + i), [place])

    return function("sizes", buffers, body)


def _append(out: Buffer, count: Buffer, column: list[int], value: Expr) -> None:
    """Write behind what there is, and count it."""
    number = T.BufferLoad(count, [0])
    T.buffer_store(out, value, [number, *column])
    T.buffer_store(count, number + T.int64(1), [0])


def best(rows: int, size: int, count: int, dtype: str, *, largest: bool) -> tirx.PrimFunc:
    """Find the positions of the best elements of each row, the best first.

    The kernel takes ``x`` (rows, size) and gives ``at`` (int64, rows, count). Of equal elements the
    first is the better one; NaN is more than infinity. What is found so far is a heap with the
    worst on top, so that most elements of a long row are looked at once.

    Args:
        rows: Rows of the input.
        size: Size of a row.
        count: positions of each row, at least one and at most all.
        dtype: Element type of the elements.
        largest: which are better.
    """
    buffers = {"x": ((rows, size), dtype), "at": ((rows, count), "int64")}

    def body(x: Buffer, at: Buffer) -> None:
        with T.serial(rows) as r:
            state = T.alloc_buffer((2,), "int64")

            def held(place: Expr) -> Expr:
                return T.BufferLoad(at, [r, place])

            def worse(one: Expr, other: Expr) -> Expr:
                a, b = T.BufferLoad(x, [r, one]), T.BufferLoad(x, [r, other])
                low, high = (a, b) if largest else (b, a)
                less, same = low < high, tirx.EQ(a, b)
                if dtype.startswith("float"):
                    unlike = tirx.And(math.is_nan(high), tirx.Not(math.is_nan(low)))
                    less = tirx.Or(less, unlike)
                    same = tirx.Or(same, tirx.And(math.is_nan(a), math.is_nan(b)))
                return tirx.Or(less, tirx.And(same, one > other))

            def exchange(a: Expr, b: Expr) -> None:
                kept = T.alloc_buffer((1,), "int64")
                T.buffer_store(kept, held(a), [0])
                T.buffer_store(at, held(b), [r, a])
                T.buffer_store(at, T.BufferLoad(kept, [0]), [r, b])

            def sink(start: Expr, end: Expr) -> None:
                """Move an element down until nothing below it is worse."""
                place, child = T.BufferLoad(state, [0]), T.BufferLoad(state, [1])
                T.buffer_store(state, start, [0])
                with T.While(place * 2 + 1 < end):
                    T.buffer_store(state, place * 2 + 1, [1])
                    other = tirx.Min(child + 1, end - 1)
                    with T.If(worse(held(other), held(child))), T.Then():
                        T.buffer_store(state, other, [1])
                    with T.If(worse(held(child), held(place))):
                        with T.Then():
                            exchange(place, child)
                            T.buffer_store(state, child, [0])
                        with T.Else():
                            T.buffer_store(state, end, [0])

            whole = T.int64(count)
            with T.serial(count) as i:
                T.buffer_store(at, tirx.Cast("int64", i), [r, i])
            with T.serial(count // 2) as i:
                sink(T.int64(count // 2 - 1) - tirx.Cast("int64", i), whole)
            with T.serial(size - count) as i:
                new = tirx.Cast("int64", i) + whole
                with T.If(worse(held(T.int64(0)), new)), T.Then():
                    T.buffer_store(at, new, [r, 0])
                    sink(T.int64(0), whole)
            with T.serial(count - 1) as i:
                end = T.int64(count - 1) - tirx.Cast("int64", i)
                exchange(T.int64(0), end)
                sink(T.int64(0), end)

    return function("best", buffers, body)


def suppressed(
    batches: Expr, classes: Expr, boxes: Expr, most: Expr, *, centred: bool, scored: bool
) -> tirx.PrimFunc:
    """Choose boxes, the best of each class first, that overlap none of those chosen before.

    The kernel takes ``boxes`` (batches, boxes, 4), ``scores`` (batches, classes, boxes), how many
    are wanted of a class (int64, 1), the overlap that two may have and the score that one must have
    more than (float32, 1 each). It gives batch, class and box of each (int64, batches * classes *
    most, 3) and their number. Of equal scores the first box is the better one.

    Args:
        batches: Batches of the boxes.
        classes: Classes of the scores.
        boxes: Boxes of each batch.
        most: boxes of a class that there is memory for.
        centred: boxes are a centre, width and height, not two corners.
        scored: the last limit counts.
    """
    buffers = {
        "boxes": ((batches, boxes, 4), "float32"),
        "scores": ((batches, classes, boxes), "float32"),
        "wanted": ((1,), "int64"),
        "overlap": ((1,), "float32"),
        "least": ((1,), "float32"),
        "chosen": ((batches * classes * most, 3), "int64"),
        "count": COUNT,
    }

    def body(*given: Buffer) -> None:
        box, score, wanted, overlap, least, chosen, count = given
        T.buffer_store(count, T.int64(0), [0])
        left = T.alloc_buffer((boxes,), "int32")
        state = T.alloc_buffer((3,), "int64")
        limit = tirx.Min(T.BufferLoad(wanted, [0]), tirx.Cast("int64", most))
        with T.serial(batches) as b, T.serial(classes) as c:

            def get(index: Expr) -> Expr:
                return T.BufferLoad(score, [b, c, index])

            # How many are left, how many were taken, the place of the best one.
            for slot in range(2):
                T.buffer_store(state, T.int64(0), [slot])
            with T.serial(boxes) as i:
                fits = get(i) > T.BufferLoad(least, [0]) if scored else tirx.const(1, "bool")
                with T.If(fits), T.Then():
                    _append(left, state, [], tirx.Cast("int32", i))
            number, taken = T.BufferLoad(state, [0]), T.BufferLoad(state, [1])
            with T.While(tirx.all(number > T.int64(0), taken < limit)):
                best = T.BufferLoad(state, [2])
                T.buffer_store(state, tirx.Cast("int64", T.BufferLoad(left, [0])), [2])
                with T.serial(number) as i:
                    index = T.BufferLoad(left, [i])
                    with T.If(get(index) > get(best)), T.Then():
                        T.buffer_store(state, tirx.Cast("int64", index), [2])
                at = T.BufferLoad(count, [0])
                T.buffer_store(chosen, tirx.Cast("int64", b), [at, 0])
                T.buffer_store(chosen, tirx.Cast("int64", c), [at, 1])
                T.buffer_store(chosen, best, [at, 2])
                T.buffer_store(count, at + T.int64(1), [0])
                T.buffer_store(state, taken + T.int64(1), [1])
                ends = T.alloc_buffer((1,), "int64")
                T.buffer_store(ends, number, [0])
                T.buffer_store(state, T.int64(0), [0])
                with T.serial(T.BufferLoad(ends, [0])) as i:
                    other = T.BufferLoad(left, [i])
                    ratio = _overlap(box, b, best, other, centred)
                    apart = tirx.Not(ratio > T.BufferLoad(overlap, [0]))
                    with T.If(tirx.all(tirx.Cast("int64", other) != best, apart)), T.Then():
                        _append(left, state, [], other)

    return function("suppressed", buffers, body)


def _overlap(boxes: Buffer, batch: Expr, one: Expr, other: Expr, centred: bool) -> Expr:
    """Intersection over union; nothing of boxes that have no area."""

    def sides(index: Expr, axis: int) -> tuple[Expr, Expr]:
        first, second = (T.BufferLoad(boxes, [batch, index, axis + k]) for k in (0, 2))
        if centred:
            half = _rounded(second / T.float32(2))
            return first - half, first + half
        return tirx.Min(first, second), tirx.Max(first, second)

    shared, areas = [], [T.float32(1), T.float32(1)]
    for axis in range(2):
        (a, b), (c, d) = sides(one, axis), sides(other, axis)
        shared.append(tirx.Min(b, d) - tirx.Max(a, c))
        areas = [_rounded(area * size) for area, size in zip(areas, (b - a, d - c), strict=True)]
    inside = _rounded(shared[0] * shared[1])
    union = _rounded(_rounded(areas[0] + areas[1]) - inside)
    zero = T.float32(0)
    real = tirx.all(*(v > zero for v in (*shared, *areas, union)))
    return tirx.Select(real, inside / union, zero)


def _rounded(value: Expr) -> Expr:
    """Keep LLVM from joining a product and a sum, which is rounded once instead of twice."""
    return T.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", value)


def regions(
    shape: tuple[Expr, ...], count: Expr, size: tuple[int, int], *, ratio: int, scale: float,
    half: bool, largest: bool,
) -> tirx.PrimFunc:  # fmt: skip
    """Bring regions of images to one size: of each bin the mean of samples, or the largest share.

    The kernel takes ``x`` (shape), ``rois`` (count, 4), the image of each (int64, count) and
    gives (count, channels, *size).

    Args:
        shape: Shape of the images: batch, channels, height and width.
        count: regions.
        size: bins down and across.
        ratio: samples of a bin along an axis; 0 is as many as it has pixels.
        scale: Scale of the regions' coordinates.
        half: pixels are at the middle of their positions.
        largest: take the largest share of a sample, not the mean.
    """
    batch, channels, *space = shape
    buffers = {
        "x": (shape, "float32"),
        "rois": ((count, 4), "float32"),
        "image": ((count,), "int64"),
        "y": ((count, channels, *size), "float32"),
    }

    def body(x: Buffer, rois: Buffer, image: Buffer, y: Buffer) -> None:
        with T.parallel(count) as r, T.serial(channels) as c:
            own = T.BufferLoad(image, [r])
            own = tirx.Max(T.int64(0), tirx.Min(own, tirx.Cast("int64", batch - 1)))
            ends = [_ends(rois, r, axis, size[axis], scale, half, ratio) for axis in range(2)]
            with T.serial(size[0]) as down, T.serial(size[1]) as across:
                total = T.alloc_buffer((1,), "float32")
                T.buffer_store(total, T.float32(0), [0])
                (_, _, high), (_, _, wide) = ends
                with T.serial(high) as i, T.serial(wide) as j:
                    taps = [
                        _taps(end, place, step, space[axis])
                        for axis, (end, place, step) in enumerate(
                            zip(ends, (down, across), (i, j), strict=True)
                        )
                    ]
                    shares = [
                        T.BufferLoad(x, [own, c, row, column]) * (of_row * of_column)
                        for row, of_row in taps[0]
                        for column, of_column in taps[1]
                    ]
                    before = T.BufferLoad(total, [0])
                    if largest:
                        most = shares[0]
                        for share in shares[1:]:
                            most = tirx.Max(most, share)
                        is_first = tirx.all(i == 0, j == 0)
                        value = tirx.Select(is_first, most, tirx.Max(before, most))
                    else:
                        value = before + (shares[0] + shares[1] + shares[2] + shares[3])
                    T.buffer_store(total, value, [0])
                value = T.BufferLoad(total, [0])
                samples = tirx.Cast("float32", tirx.Max(T.int32(1), high * wide))
                T.buffer_store(y, value if largest else value / samples, [r, c, down, across])

    return function("regions", buffers, body)


def _ends(
    rois: Buffer, r: Expr, axis: int, bins: int, scale: float, half: bool, ratio: int
) -> tuple[Expr, Expr, Expr]:
    """Where a region starts, how long a bin is, and how many samples it has."""
    offset = T.float32(0.5 if half else 0.0)
    first, last = (
        T.BufferLoad(rois, [r, (1 - axis) + k]) * T.float32(scale) - offset for k in (0, 2)
    )
    length = last - first if half else tirx.Max(last - first, T.float32(1))
    step = length / T.float32(bins)
    if ratio:
        return first, step, T.int32(ratio)
    # Beyond this no image is sampled in a time that anyone waits for.
    held = tirx.Max(T.float32(0), tirx.Min(tirx.ceil(step), T.float32(1 << 15)))
    return first, step, tirx.Cast("int32", held)


def _taps(
    end: tuple[Expr, Expr, Expr], place: Expr, step: Expr, size: Expr
) -> list[tuple[Expr, Expr]]:
    """Both neighbours of a sample along an axis, and their weights; none outside."""
    first, length, samples = end
    inner = (tirx.Cast("float32", step) + T.float32(0.5)) * length / tirx.Cast("float32", samples)
    at = first + tirx.Cast("float32", place) * length + inner
    wide = tirx.Cast("float32", size)
    seen = tirx.all(at >= T.float32(-1), at <= wide)
    held = tirx.Max(T.float32(0), tirx.Min(at, wide - T.float32(1)))
    low = tirx.floor(held)
    far = held - low
    zero, one = T.float32(0), T.float32(1)
    row = tirx.Cast("int64", low)
    next_ = tirx.Min(row + 1, tirx.Cast("int64", size) - 1)
    return [
        (row, tirx.Select(seen, one - far, zero)),
        (next_, tirx.Select(seen, far, zero)),
    ]
