"""Images resized as Pillow does it, to the bit, normalised and laid out as a model takes them.

Pillow weighs the pixels of a window in whole numbers: across each row, rounded to a byte, then down
each column, rounded again (``ImagingResample``; a window is as wide as what one output pixel
covers). Windows and weights are given, so one function serves every size and filter. Or, as OpenCV
does it, the four pixels around each place are blended. What follows, the arithmetic of a record, is
done with the row that was just made: step by step as NumPy does it, or by a table of 256 values a
channel where elements are others than float32 and whole numbers of a byte.

Rows between the two steps hold four bytes a pixel, the last of no meaning, or one for grey. Every
read of pixels takes up to 16 bytes, so what follows a row must be readable: callers hand in the
last row as a copy with bytes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu, function, load, splat, store

BITS = 22
"""Of Pillow's weights behind the point: 32 less 8 of a pixel and 2 in which sums may run over."""

LOW = 12
"""Bits of the lower half of a weight, where halves of 16 bits are multiplied."""

TOGETHER = 4
"""Taps that are read at once, and rows that share the weights."""

ELEMENTS = {1: "uint8", 2: "uint16", 4: "uint32"}
"""What an output's element is to the kernel, by its bytes; only the table knows what it means."""

COUNTED = ("float32", "uint8")
"""Elements whose values are computed; of whole numbers from -128 on a byte holds the lower half."""


def functions(cpu: KernelCpu, *, pairs: bool) -> dict[str, tirx.PrimFunc]:
    """Build every function of a library, by name.

    Args:
        cpu: whose vectors are used.
        pairs: the CPU multiplies and adds neighbouring 16-bit numbers (AVX2).
    """
    made: dict[str, tirx.PrimFunc] = {
        "across_1": across_grey(),
        **{f"across_pairs_{c}": across_pairs(c) for c in (3, 4) if pairs},
        **{f"across_{c}": across(c) for c in (3, 4) if not pairs},
        **{f"sample_{c}": sample(c, picked=False) for c in (1, 3, 4)},
        **{f"sample_rows_{c}": sample(c, picked=True) for c in (1, 3, 4)},
    }
    made |= {f"down_{size}": down(cpu, size) for size in ELEMENTS}
    made |= {f"down_{kind}": down_counted(cpu, kind) for kind in COUNTED}
    return made | {f"blend_{c}_{k}": blend(cpu, c, k) for c in (1, 3, 4) for k in COUNTED}


def across(channels: int) -> tirx.PrimFunc:
    """Weigh pixels along rows.

    Inputs: pixels (rows, bytes); the first byte of each window; weights (columns, taps) int32; the
    first row to read, the first to write and how many. Output: (rows, columns, 4) of uint8.
    """

    def body(source: Buffer, first: Buffer, weights: Buffer, some: Buffer, out: Buffer) -> None:
        taps, columns = weights.shape[1], first.shape[0]

        def block(row: Expr, rows: int) -> None:
            with T.serial(columns) as x:
                sums = [T.alloc_buffer((4,), "int32") for _ in range(rows)]
                for total in sums:
                    store(total, [0], splat(T.int32(1 << (BITS - 1)), 4), 4)
                with T.serial(taps) as t:
                    weight = splat(T.BufferLoad(weights, [x, t]), 4)
                    for i, total in enumerate(sums):
                        where = [_at(some, 0) + row + i, T.BufferLoad(first, [x]) + t * channels]
                        pixel = tirx.Cast("int32x4", load(source, where, 4))
                        store(total, [0], load(total, [0], 4) + pixel * weight, 4)
                for i, total in enumerate(sums):
                    store(out, [_at(some, 1) + row + i, x, 0], _byte(load(total, [0], 4), 4), 4)

        _blocks(some, block)

    return _function(f"across_{channels}", "int32", ("columns", "taps"), 4, body)


def across_pairs(channels: int) -> tirx.PrimFunc:
    """The same with AVX2, by halves of the weights: four taps of a pixel are two instructions.

    Weights are (columns, groups, 8) int16: the lower halves of four taps, then the upper ones.
    """

    def body(source: Buffer, first: Buffer, weights: Buffer, some: Buffer, out: Buffer) -> None:
        groups, columns = weights.shape[1], first.shape[0]

        def block(row: Expr, rows: int) -> None:
            with T.serial(columns) as x:
                sums = [[T.alloc_buffer((8,), "int32") for _ in range(2)] for _ in range(rows)]
                for halves in sums:
                    for half in halves:
                        store(half, [0], splat(T.int32(0), 8), 8)
                with T.serial(groups) as g:
                    word = tirx.reinterpret("int32x4", load(weights, [x, g, 0], 8))
                    spread = [_picked(word, [2 * h] * 4 + [2 * h + 1] * 4) for h in range(2)]
                    sides = [tirx.reinterpret("int16x16", s) for s in spread]
                    for i, halves in enumerate(sums):
                        start = _wide(T.BufferLoad(first, [x])) + _wide(g) * (channels * TOGETHER)
                        pixel = _run(source, _at(some, 0) + row + i, start, 16)
                        pixel = _paired(pixel, channels)
                        for half, side in zip(halves, sides, strict=True):
                            store(half, [0], load(half, [0], 8) + _multiplied(pixel, side), 8)
                for i, (low, high) in enumerate(sums):
                    both = load(low, [0], 8) + _shifted_up(load(high, [0], 8))
                    whole = _picked(both, range(4)) + _picked(both, range(4, 8))
                    whole = whole + splat(T.int32(1 << (BITS - 1)), 4)
                    store(out, [_at(some, 1) + row + i, x, 0], _byte(whole, 4), 4)

        _blocks(some, block)

    return _function(f"across_pairs_{channels}", "int16", ("columns", "groups", 8), 4, body)


def across_grey() -> tirx.PrimFunc:
    """The same for one channel; weights (columns, groups, 8) int32. Output: (rows, columns, 1)."""

    def body(source: Buffer, first: Buffer, weights: Buffer, some: Buffer, out: Buffer) -> None:
        groups, columns = weights.shape[1], first.shape[0]

        def block(row: Expr, rows: int) -> None:
            with T.serial(columns) as x:
                sums = [T.alloc_buffer((8,), "int32") for _ in range(rows)]
                for total in sums:
                    store(total, [0], splat(T.int32(0), 8), 8)
                with T.serial(groups) as g:
                    weight = load(weights, [x, g, 0], 8)
                    for i, total in enumerate(sums):
                        where = [_at(some, 0) + row + i, T.BufferLoad(first, [x]) + g * 8]
                        pixel = tirx.Cast("int32x8", load(source, where, 8))
                        store(total, [0], load(total, [0], 8) + pixel * weight, 8)
                for i, total in enumerate(sums):
                    held = load(total, [0], 8)
                    for width in (4, 2, 1):
                        held = _picked(held, range(width)) + _picked(held, range(width, 2 * width))
                    value = _byte(held + T.int32(1 << (BITS - 1)), 1)
                    store(out, [_at(some, 1) + row + i, x, 0], value, 1)

        _blocks(some, block)

    return _function("across_1", "int32", ("columns", "groups", 8), 1, body)


def sample(channels: int, *, picked: bool) -> tirx.PrimFunc:
    """Blend the four pixels around each place in float32, first down, then across.

    Inputs: two rows of bytes for each output row, or, ``picked``, all rows and the numbers of two
    of them (rows, 2); the bytes of two pixels (columns, 2); shares of both by column and by row,
    float32. Output: (rows, columns, 4 or 1) of uint8.
    """
    lanes = 1 if channels == 1 else 4
    rows, columns, size, held = (tirx.Var(n, "int32") for n in ("rows", "columns", "size", "held"))
    buffers = {
        "source": ((held, size) if picked else (rows, 2, size), "uint8"),
        **({"picks": ((rows, 2), "int32")} if picked else {}),
        "columns": ((columns, 2), "int32"),
        "by_column": ((columns, 2), "float32"),
        "by_row": ((rows, 2), "float32"),
        "out": ((rows, columns, lanes), "uint8"),
    }

    def body(source: Buffer, *given: Buffer) -> None:
        columns_of, by_column, by_row, out = given[-4:]
        with T.serial(rows) as y, T.serial(columns) as x:
            two = [[T.BufferLoad(given[0], [y, i])] if picked else [y, i] for i in range(2)]
            value = _between((source, two), (columns_of, by_column, x), (by_row, y), channels)
            store(out, [y, x, 0], value, lanes)

    name = f"sample_rows_{channels}" if picked else f"sample_{channels}"
    return function(name, buffers, body)


def blend(cpu: KernelCpu, channels: int, kind: str) -> tirx.PrimFunc:
    """Blend the four pixels around each place, normalise and lay out, in one pass.

    Inputs: as of ``sample``, ``picked``, but shares by column for each byte of two pixels
    (columns, 8) where a pixel has several; then as of ``down_counted``. Output: all elements of the
    tensor.
    """
    names = ("rows", "columns", "size", "held", "width", "elements")
    rows, columns, size, held, width, elements = (tirx.Var(n, "int32") for n in names)
    buffers = {
        "source": ((held, size), "uint8"),
        "picks": ((rows, 2), "int32"),
        "columns": ((columns, 2), "int32"),
        "by_column": ((columns, 2 if channels == 1 else 8), "float32"),
        "by_row": ((rows, 2), "float32"),
        **_finishing(width),
        "out": ((elements,), kind),
    }

    def body(source: Buffer, *given: Buffer) -> None:
        picks, columns_of, by_column, by_row, norm, shifts, place, line, out = given
        with T.serial(rows) as y:
            with T.serial(_at(place, 1)) as x:
                two = [T.BufferLoad(picks, [y, i]) for i in range(2)]
                if channels == 1:
                    rows_of = [[row] for row in two]
                    value = _between((source, rows_of), (columns_of, by_column, x), (by_row, y), 1)
                    store(line, [x], value, 1)
                else:
                    _store_pixel(
                        (source, two), (columns_of, by_column, x), (by_row, y), line, channels
                    )
            _finish(cpu, channels == 1, (norm, shifts, place, line, out), y)

    return function(f"blend_{channels}_{kind}", buffers, body)


def _store_pixel(
    pixels: tuple[Buffer, Sequence[Expr]],
    across: tuple[Buffer, Buffer, Expr],
    down: tuple[Buffer, Expr],
    line: Buffer,
    channels: int,
) -> None:
    """Do what ``_between`` does, at once for both sides, which mostly lie next to each other."""
    (source, rows), (columns_of, by_column, x) = pixels, across
    left, right = (T.BufferLoad(columns_of, [x, i]) for i in range(2))
    with T.If(right == left + channels):
        with T.Then():
            beside = [_run(source, row, left, 8) for row in rows]
            store(line, [x * 4], _both(beside, (by_column, x), down, channels), 4)
        with T.Else():
            apart = [_joined(source, row, (left, right), channels) for row in rows]
            store(line, [x * 4], _both(apart, (by_column, x), down, channels), 4)


def _joined(source: Buffer, row: Expr, columns_of: Sequence[Expr], channels: int) -> Expr:
    """Two pixels of a row as if they lay side by side."""
    pair = [_run(source, row, place, 4) for place in columns_of]
    lanes = [*range(channels), *range(4, 4 + channels), 7, 7][:8]
    return tirx.Shuffle(pair, [T.int32(i) for i in lanes])


def _both(
    pixels: Sequence[Expr], across: tuple[Buffer, Expr], down: tuple[Buffer, Expr], channels: int
) -> Expr:
    """Blend four pixels, of which both of a row lie in one vector."""
    (by_column, x), (by_row, y), kind = across, down, "float32x8"
    shares = [splat(T.BufferLoad(by_row, [y, i]), 8) for i in range(2)]
    tall = _blend([tirx.Cast(kind, p) for p in pixels], shares, kind)
    wide = _fenced(tall * load(by_column, [x, 0], 8), kind)
    sides = [_picked(wide, range(start, start + 4)) for start in (0, channels)]
    value = _fenced(sides[0] + sides[1], "float32x4") + splat(T.float32(0.5), 4)
    return tirx.Cast("uint8x4", tirx.Cast("int32x4", value))


def _between(
    pixels: tuple[Buffer, Sequence[Sequence[Expr]]],
    across: tuple[Buffer, Buffer, Expr],
    down: tuple[Buffer, Expr],
    channels: int,
) -> Expr:
    """Blend four pixels in float32, first down, then across, and round to bytes."""
    (source, rows), (columns_of, by_column, x), (by_row, y) = pixels, across, down
    lanes = 1 if channels == 1 else 4
    kind = _like("float32", lanes)
    sides = []
    for side in range(2):
        place = T.BufferLoad(columns_of, [x, side])
        pair = [tirx.Cast(kind, load(source, [*row, place], lanes)) for row in rows]
        shares = [splat(T.BufferLoad(by_row, [y, i]), lanes) for i in range(2)]
        sides.append(_blend(pair, shares, kind))
    shares = [splat(T.BufferLoad(by_column, [x, i]), lanes) for i in range(2)]
    value = _blend(sides, shares, kind) + splat(T.float32(0.5), lanes)
    return tirx.Cast(_like("uint8", lanes), tirx.Cast(_like("int32", lanes), value))


def down(cpu: KernelCpu, size: int) -> tirx.PrimFunc:
    """Weigh rows down columns, and turn bytes into what the model takes.

    Inputs: rows of bytes, as many as fill vectors; the first row of each window; weights (rows,
    taps) int32; the table (channels, 256); the byte of a pixel that each channel takes; where the
    image lies: the first element, columns, bytes of a pixel, and elements from one channel, row
    and column to the next; memory for one row. Output: all elements of the tensor.
    """
    names = ("held", "bytes", "rows", "taps", "channels", "elements")
    held, width, rows, taps, channels, elements = (tirx.Var(n, "int32") for n in names)
    kind, lanes = ELEMENTS[size], cpu.lanes
    buffers = {
        "source": ((held, width), "uint8"),
        "first": ((rows,), "int32"),
        "weights": ((rows, taps), "int32"),
        "table": ((channels, 256), kind),
        "order": ((channels,), "int32"),
        "place": ((6,), "int32"),
        "line": ((width,), "uint8"),
        "out": ((elements,), kind),
    }

    def body(*given: Buffer) -> None:
        source, first, weights, table, order, place, line, out = given
        start, columns, pixel, by_channel, by_row, by_column = (_at(place, i) for i in range(6))
        with T.serial(rows) as y:
            _weigh_down(lanes, (source, first, weights), line, y)
            with T.serial(channels) as c, T.serial(columns) as x:
                level = T.BufferLoad(line, [x * pixel + T.BufferLoad(order, [c])])
                value = T.BufferLoad(table, [c, tirx.Cast("int32", level)])
                T.buffer_store(out, value, [start + c * by_channel + y * by_row + x * by_column])

    return function(f"down_{size}", buffers, body)


def down_counted(cpu: KernelCpu, kind: str) -> tirx.PrimFunc:
    """The same without a table: ``(pixel * scale - mean) / std``, each step rounded to float32.

    Inputs, after the weights: scale, mean and std (3, 4) of the channels; where in a pixel each
    channel lies, in bits (4,); the place and a row as of ``down``. Output: all elements of the
    tensor.
    """
    names = ("held", "bytes", "rows", "taps", "elements")
    held, width, rows, taps, elements = (tirx.Var(n, "int32") for n in names)
    buffers = {
        "source": ((held, width), "uint8"),
        "first": ((rows,), "int32"),
        "weights": ((rows, taps), "int32"),
        **_finishing(width),
        "out": ((elements,), kind),
    }

    def body(*given: Buffer) -> None:
        source, first, weights, norm, shifts, place, line, out = given
        finish = norm, shifts, place, line, out
        with T.serial(rows) as y:
            _weigh_down(cpu.lanes, (source, first, weights), line, y)
            with T.If(_at(place, 2) == 1):
                with T.Then():
                    _finish(cpu, True, finish, y)
                with T.Else():
                    _finish(cpu, False, finish, y)

    return function(f"down_{kind}", buffers, body)


def _weigh_down(lanes: int, by: tuple[Buffer, Buffer, Buffer], line: Buffer, y: Expr) -> None:
    """Weigh the rows of one window."""
    source, first, weights = by
    with T.serial(source.shape[1] // (2 * lanes)) as step:
        sums = [T.alloc_buffer((lanes,), "int32") for _ in range(2)]
        for total in sums:
            store(total, [0], splat(T.int32(1 << (BITS - 1)), lanes), lanes)
        with T.serial(weights.shape[1]) as t:
            weight = splat(T.BufferLoad(weights, [y, t]), lanes)
            for i, total in enumerate(sums):
                where = [T.BufferLoad(first, [y]) + t, (step * 2 + i) * lanes]
                value = tirx.Cast(f"int32x{lanes}", load(source, where, lanes))
                store(total, [0], load(total, [0], lanes) + value * weight, lanes)
        for i, total in enumerate(sums):
            done = _byte(load(total, [0], lanes), lanes)
            store(line, [(step * 2 + i) * lanes], done, lanes)


def _finishing(width: Expr) -> dict[str, tuple[Sequence[Expr], str]]:
    return {
        "norm": ((3, 4), "float32"),
        "shifts": ((4,), "int32"),
        "place": ((6,), "int32"),
        "line": ((width,), "uint8"),
    }


def _finish(cpu: KernelCpu, grey: bool, given: tuple[Buffer, ...], y: Expr) -> None:
    """Normalise a row and lay it out: by channels, or by pixels."""
    place = given[2]
    start, by_column = _at(place, 0) + y * _at(place, 4), _at(place, 5)
    if grey:
        _by_channel(cpu, grey, given, start)
        return
    with T.If(by_column == 1):
        with T.Then():
            _by_channel(cpu, grey, given, start)
        with T.Else():
            _by_pixel(given, start)


def _by_channel(cpu: KernelCpu, grey: bool, given: tuple[Buffer, ...], start: Expr) -> None:
    norm, shifts, place, line, out = given
    count, by_channel = _at(place, 1), _at(place, 3)

    def some(c: Expr, x: Expr, lanes: int) -> None:
        if grey:
            level = tirx.Cast(_like("int32", lanes), load(line, [x], lanes))
        else:
            level = _levels(line, x, lanes, splat(_at(shifts, c), lanes))
        parts = [splat(T.BufferLoad(norm, [i, c]), lanes) for i in range(3)]
        store(out, [start + c * by_channel + x], _counted(level, parts, lanes, out.dtype), lanes)

    with T.serial(1 if grey else 3) as c:
        with T.serial(count // cpu.lanes) as step:
            some(c, step * cpu.lanes, cpu.lanes)
        with T.serial(count % cpu.lanes) as x:
            some(c, count - count % cpu.lanes + x, 1)


def _by_pixel(given: tuple[Buffer, ...], start: Expr) -> None:
    """Write two pixels a step, four elements of each; what follows replaces the last of them."""
    norm, shifts, place, line, out = given
    done = (_at(place, 1) - 1) // 2 * 2
    parts = [_picked(load(norm, [i, 0], 4), [*range(4), *range(4)]) for i in range(3)]

    def pair(x: Expr, order: Sequence[int]) -> None:
        level = tirx.Cast("int32x8", _picked(load(line, [x * 4], 8), order))
        values = _counted(level, parts, 8, out.dtype)
        for i in range(2):
            four = _picked(values, range(4 * i, 4 * i + 4))
            store(out, [start + (x + i) * 3], four, 4)

    with T.If(_at(shifts, 0) == 0):
        with T.Then(), T.serial(done // 2) as step:
            pair(step * 2, range(8))
        with T.Else(), T.serial(done // 2) as step:
            pair(step * 2, (2, 1, 0, 3, 6, 5, 4, 7))
    with T.serial(_at(place, 1) - done) as i:
        for c in range(3):
            level = _levels(line, done + i, 1, _at(shifts, c))
            one = [T.BufferLoad(norm, [k, c]) for k in range(3)]
            store(out, [start + (done + i) * 3 + c], _counted(level, one, 1, out.dtype), 1)


def _levels(line: Buffer, x: Expr, lanes: int, shift: Expr) -> Expr:
    """Read one byte of each pixel of four."""
    words = tirx.reinterpret(_like("int32", lanes), load(line, [x * 4], 4 * lanes))
    return (words >> shift) & splat(T.int32(255), lanes)


def _counted(level: Expr, parts: Sequence[Expr], lanes: int, dtype: str) -> Expr:
    """Compute a value as NumPy does it."""
    kind = _like("float32", lanes)
    scale, mean, std = parts
    value = (_fenced(tirx.Cast(kind, level) * scale, kind) - mean) / std
    if dtype == "uint8":
        value = tirx.Cast(_like("int32", lanes), value)
    return tirx.Cast(_like(dtype, lanes), value)


def _function(
    name: str, weights: str, axes: Sequence[str | int], pixel: int, body: object
) -> tirx.PrimFunc:
    known = {n: tirx.Var(n, "int32") for n in ("rows", "bytes", "made", *map(str, axes))}
    sizes = [known[a] if isinstance(a, str) else a for a in axes]
    buffers = {
        "source": ((known["rows"], known["bytes"]), "uint8"),
        "first": ((sizes[0],), "int32"),
        "weights": (sizes, weights),
        "some": ((3,), "int32"),
        "out": ((known["made"], sizes[0], pixel), "uint8"),
    }
    return function(name, buffers, body)  # type: ignore[arg-type]  # one of the bodies above


def _blocks(some: Buffer, block: object) -> None:
    """Take rows a few at a time, so that weights are read once for them."""
    count = _at(some, 2)
    with T.serial(count // TOGETHER) as b:
        block(b * TOGETHER, TOGETHER)  # type: ignore[operator]
    with T.serial(count % TOGETHER) as r:
        block(count - count % TOGETHER + r, 1)  # type: ignore[operator]


def _at(buffer: Buffer, index: int) -> Expr:
    return T.BufferLoad(buffer, [index])


def _like(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"{kind}x{lanes}"


def _picked(vector: Expr, lanes: Sequence[int] | range) -> Expr:
    # TVM lets no more lanes come out than go in.
    given = [vector, vector] if len(lanes) > int(str(vector.ty).partition("x")[2]) else [vector]
    return tirx.Shuffle(given, [T.int32(i) for i in lanes])


def _byte(value: Expr, lanes: int) -> Expr:
    """Drop the bits behind the point and keep it within a byte."""
    whole = value >> splat(T.int32(BITS), lanes)
    low, high = splat(T.int32(0), lanes), splat(T.int32(255), lanes)
    return tirx.Cast(_like("uint8", lanes), tirx.Min(tirx.Max(whole, low), high))


def _wide(index: Expr) -> Expr:
    return tirx.Cast("int64", index)


def _run(source: Buffer, row: Expr, start: Expr, lanes: int) -> Expr:
    """Read bytes of a row; indices of 64 bits let one register count for several rows."""
    return T.BufferLoad(source, [_wide(row), T.ramp(_wide(start), T.int64(1), lanes)])


def _paired(pixels: Expr, channels: int) -> Expr:
    """Spread four pixels to 16 bits: channels of two taps side by side, then of two more."""
    zero = splat(tirx.const(0, "uint8"), 16)
    lanes: list[int] = []
    for pair in range(2):
        for c in range(4):
            for tap in (2 * pair, 2 * pair + 1):
                lanes += [tap * channels + c if c < 3 else 16, 16]
    both = tirx.Shuffle([pixels, zero], [T.int32(i) for i in lanes])
    return tirx.reinterpret("int16x16", both)


def _multiplied(one: Expr, other: Expr) -> Expr:
    return T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx2.pmadd.wd", one, other)


def _shifted_up(value: Expr) -> Expr:
    return value << splat(T.int32(LOW), 8)


def _blend(pair: Sequence[Expr], shares: Sequence[Expr], kind: str) -> Expr:
    """Weigh two values, each step rounded to float32: LLVM would join product and sum."""
    parts = [_fenced(a * b, kind) for a, b in zip(pair, shares, strict=True)]
    return _fenced(parts[0] + parts[1], kind)


def _fenced(value: Expr, kind: str) -> Expr:
    return T.call_llvm_pure_intrin(kind, "llvm.arithmetic.fence", value)
