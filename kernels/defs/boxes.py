"""Boxes behind a detector: which rows of scores reach a threshold, and which boxes are one object.

Each step of the arithmetic is rounded as NumPy rounds it, so that what lies at a limit falls to the
same side.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, function, load, splat, store

LANES = 8
"""Boxes that are compared at once; callers fill up to a multiple of it."""

_MINUS_INFINITY = -(1 << 23)
"""Its bits, as a whole number."""

FREE = -1
"""Of a box that belongs to no object yet."""


def functions() -> dict[str, tirx.PrimFunc]:
    """Build every function of a library, by name."""
    return {"peaks_down": peaks_down(), "peaks_across": peaks_across(), "groups": groups()}


def peaks_down() -> tirx.PrimFunc:
    """The largest number of each column.

    Inputs: numbers (rows, columns); the first row that counts. Output: (columns,), float32. NaN is
    left out; -inf where there is nothing else.
    """
    rows, columns = tirx.Var("rows", "int32"), tirx.Var("columns", "int32")
    buffers = {
        "source": ((rows, columns), "float32"),
        "first": ((1,), "int32"),
        "out": ((columns,), "float32"),
    }

    def body(source: Buffer, first: Buffer, out: Buffer) -> None:
        begin = T.BufferLoad(first, [0])

        def some(column: Expr, width: int) -> None:
            best = T.alloc_buffer((width,), "float32")
            store(best, [0], splat(_least(), width), width)
            with T.serial(rows - begin) as r:
                value = load(source, [begin + r, column], width)
                store(best, [0], _larger(value, load(best, [0], width)), width)
            store(out, [column], load(best, [0], width), width)

        with T.serial(columns // (4 * LANES)) as block:
            some(block * (4 * LANES), 4 * LANES)
        with T.serial(columns % (4 * LANES)) as rest:
            some(columns - columns % (4 * LANES) + rest, 1)

    return function("peaks_down", buffers, body)


def peaks_across() -> tirx.PrimFunc:
    """The largest number of each row.

    Inputs: numbers (rows, columns); the first column that counts. Output: (rows,), float32. NaN is
    left out; -inf where there is nothing else.
    """
    rows, columns = tirx.Var("rows", "int32"), tirx.Var("columns", "int32")
    buffers = {
        "source": ((rows, columns), "float32"),
        "first": ((1,), "int32"),
        "out": ((rows,), "float32"),
    }

    def body(source: Buffer, first: Buffer, out: Buffer) -> None:
        begin = T.BufferLoad(first, [0])
        count = columns - begin
        with T.serial(rows) as r:
            many = T.alloc_buffer((LANES,), "float32")
            best = T.alloc_buffer((1,), "float32")
            store(many, [0], splat(_least(), LANES), LANES)
            with T.serial(count // LANES) as block:
                value = load(source, [r, begin + block * LANES], LANES)
                store(many, [0], _larger(value, load(many, [0], LANES)), LANES)
            held = load(many, [0], LANES)
            for width in (4, 2, 1):
                parts = [
                    tirx.Shuffle([held], [T.int32(i + s) for i in range(width)]) for s in (0, width)
                ]
                held = _larger(*parts)
            T.buffer_store(best, held, [0])
            with T.serial(count % LANES) as rest:
                value = T.BufferLoad(source, [r, columns - 1 - rest])
                T.buffer_store(best, _larger(value, T.BufferLoad(best, [0])), [0])
            T.buffer_store(out, T.BufferLoad(best, [0]), [r])

    return function("peaks_across", buffers, body)


def _least() -> Expr:
    return tirx.reinterpret("float32", T.int32(_MINUS_INFINITY))


def _larger(value: Expr, best: Expr) -> Expr:
    """Take a value only where it is larger, which NaN is not."""
    return tirx.Select(value > best, value, best)


def groups() -> tirx.PrimFunc:
    """Give each box the number of the object that it belongs to, the best box first.

    Inputs: corners (4, boxes): left, top, right, bottom; areas (boxes,); classes (boxes,) int32;
    the overlap above which a box is the same object as a better one, float32; how many objects are
    wanted and whether one has one class only, int32. Output: (boxes,) int32; on entry ``FREE`` for
    boxes, anything else for what fills up the vectors. Boxes behind the last object stay free.
    """
    boxes = tirx.Var("boxes", "int32")
    buffers = {
        "corners": ((4, boxes), "float32"),
        "areas": ((boxes,), "float32"),
        "classes": ((boxes,), "int32"),
        "limit": ((1,), "float32"),
        "most": ((2,), "int32"),
        "out": ((boxes,), "int32"),
    }

    def body(*given: Buffer) -> None:
        corners, areas, classes, limit, most, out = given
        found = T.alloc_buffer((1,), "int32")
        T.buffer_store(found, T.int32(0), [0])
        with T.serial(boxes) as i:
            number = T.BufferLoad(found, [0])
            is_free = T.BufferLoad(out, [i]) == T.int32(FREE)
            with T.If(tirx.all(is_free, number < T.BufferLoad(most, [0]))), T.Then():
                with T.serial(boxes // LANES - i // LANES) as step:
                    block = (i // LANES + step) * LANES
                    ratio = _overlap(corners, areas, i, block)
                    before = load(out, [block], LANES)
                    same = ratio > splat(T.BufferLoad(limit, [0]), LANES)
                    same = same & (before == splat(T.int32(FREE), LANES))
                    alike = load(classes, [block], LANES) == splat(
                        T.BufferLoad(classes, [i]), LANES
                    )
                    any_class = splat(T.BufferLoad(most, [1]) == T.int32(0), LANES)
                    same = same & (alike | any_class)
                    number_ = splat(T.BufferLoad(found, [0]), LANES)
                    store(out, [block], tirx.Select(same, number_, before), LANES)
                T.buffer_store(out, T.BufferLoad(found, [0]), [i])
                T.buffer_store(found, T.BufferLoad(found, [0]) + 1, [0])

    return function("groups", buffers, body)


def _overlap(corners: Buffer, areas: Buffer, one: Expr, block: Expr) -> Expr:
    """Intersection over union of a box and others."""
    zero = splat(T.float32(0), LANES)

    def both(side: int) -> tuple[Expr, Expr]:
        single = splat(T.BufferLoad(corners, [side, one]), LANES)
        return single, load(corners, [side, block], LANES)

    lengths = [
        tirx.Max(tirx.Min(*both(axis + 2)) - tirx.Max(*both(axis)), zero) for axis in range(2)
    ]
    inside = _rounded(lengths[0] * lengths[1])
    sums = _rounded(splat(T.BufferLoad(areas, [one]), LANES) + load(areas, [block], LANES))
    union = _rounded(sums - inside)
    return tirx.Select(union > zero, inside / union, zero)


def _rounded(value: Expr) -> Expr:
    """Keep LLVM from joining a product and a sum, which is rounded once instead of twice."""
    return T.call_llvm_pure_intrin(f"float32x{LANES}", "llvm.arithmetic.fence", value)
