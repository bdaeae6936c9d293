"""A matrix of 4-bit or 8-bit integers, scaled by blocks, times one vector or a few.

Such a product reads each weight once, so memory sets its pace. Rows stand side by side: each lane
sums one row, four weights at an instruction, and nothing is added across lanes. The vectors are
rounded to 8 bits by blocks of 32 as they come in, with a scale for each block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import dots
from edgeinfer.kernels.defs.emit import (
    Buffer,
    Expr,
    KernelCpu,
    function,
    load,
    loop,
    prefetch,
    splat,
    store,
)
from edgeinfer.kernels.defs.fold import folded
from edgeinfer.kernels.defs.math import is_nan
from edgeinfer.records import dataclass
from edgeinfer.types import Array

BLOCK = 32
"""Elements of a vector that share a scale; weights that do are a multiple of it."""

_ZERO = 8
"""What the nibble of a zero weight holds."""

_FULL = 127
_LEAST = 1e-35
"""Below it, 127 over a value need not be a number."""


@dataclass(frozen=True, slots=True)
class Dot:
    """How a CPU multiplies bytes.

    Attributes:
        name: ``vnni512``, ``vnni256``, ``avx2``, ``sdot`` or ``smmla``.
        rows: rows side by side, one in each 32-bit lane of a vector.
        together: vectors that one instruction multiplies.
        tiles: Whether it has AMX tiles, too.
    """

    name: str
    rows: int
    together: int = 1
    tiles: bool = False


DOTS = {
    "x86-64-v4-amx": Dot("vnni512", 16, tiles=True),
    "x86-64-v4-vnni": Dot("vnni512", 16),
    "x86-64-v3-vnni": Dot("vnni256", 8),
    "x86-64-v3": Dot("avx2", 8),
    "x86-64-v4": Dot("avx2", 8),
    "cortex-a76": Dot("sdot", 4),
    "apple-m": Dot("sdot", 4),
    "neoverse-v1": Dot("smmla", 4, together=2),
}
"""By machine."""

_AHEAD = 4096
"""Bytes of weights that are prefetched: of several vectors each is multiplied for so long that
the processor does not ask early enough by itself."""

_AHEAD_OF_STREAM = 2048
"""Likewise of each place where weights are read from several: one vector is multiplied as fast as
they come, and they come faster so to a core of a Xeon with AMX."""

_LINE = 64

_TILE = 4
"""Vectors at once: more sums than that leave the registers."""


@dataclass(frozen=True, slots=True)
class ProductForm:
    """What a product is made of, beyond its sizes.

    Attributes:
        zeros: rows have a zero for each of their scales, which the kernel takes behind ``s``.
        scales: element type of scales, ``float16`` or ``float32``.
        step: elements of a vector that share a scale; a multiple of 32 that divides the weights'.
        fine: what rounding to 8 bits leaves of a vector is rounded to 8 bits itself and multiplied
            too: the error is below 1/64000 of the largest element of a block, not 1/254.
    """

    zeros: bool = False
    scales: str = "float16"
    step: int = BLOCK
    fine: bool = False


_PLAIN = ProductForm()


def pack_int4(q: Array, dot: Dot, block: int = BLOCK) -> Array:
    """Lay nibbles (N, K), 0 to 15, out as (N / rows, K / 32, 4, rows * 4) bytes.

    Rows and blocks that are not full are filled up. Each byte holds weights ``k`` and ``k + 16`` of
    a block; four bytes of a row lie side by side, for ``smmla`` eight.
    """
    q = _filled(q, dot.rows, block, _ZERO)
    n, k = q.shape
    halves = q.reshape(n, k // BLOCK, 2, BLOCK // 2)
    return _laid(halves[:, :, 0] | (halves[:, :, 1] << 4), dot)


def pack_int8(q: Array, dot: Dot, block: int = BLOCK) -> Array:
    """Lay bytes (N, K) out as (N / rows, K / 32, 8, rows * 4), filled up likewise."""
    q = _filled(q, dot.rows, block, 0)
    n, k = q.shape
    return _laid(q.reshape(n, k // BLOCK, BLOCK), dot)


def pack_scales(scales: Array, dot: Dot) -> Array:
    """Lay scales, or zeros, (N, blocks) out as (N / rows, blocks, rows), rows filled up."""
    scales = _filled(scales, dot.rows, 1, 0)
    n, blocks = scales.shape
    return np.ascontiguousarray(scales.reshape(n // dot.rows, dot.rows, blocks).transpose(0, 2, 1))


def _filled(array: Array, rows: int, columns: int, value: int) -> Array:
    n, k = array.shape
    return np.pad(array, ((0, -n % rows), (0, -k % columns)), constant_values=value)


def _laid(bytes_: Array, dot: Dot) -> Array:
    """Bring the bytes (N, groups, bytes of a group) of neighbouring rows together."""
    n, groups, count = bytes_.shape
    if dot.together == 1:
        parts = bytes_.reshape(n // dot.rows, dot.rows, groups, count // 4, 4)
        laid = parts.transpose(0, 2, 3, 1, 4)
    else:
        pairs = bytes_.reshape(n // dot.rows, dot.rows // 2, 2, groups, count // 8, 8)
        laid = pairs.transpose(0, 3, 4, 1, 2, 5)
    return np.ascontiguousarray(laid.reshape(n // dot.rows, groups, count // 4, dot.rows * 4))


def gemv_int4(
    dot: Dot,
    n: int,
    k: int,
    block: int = BLOCK,
    vectors: int = 1,
    parallel: bool = True,
    form: ProductForm = _PLAIN,
) -> tirx.PrimFunc:
    """``y = x @ ((q - 8) * scale).T`` for nibbles laid out by ``pack_int4``.

    The kernel takes ``w``, ``s`` (laid out by ``pack_scales``), with zeros ``z`` (uint8, likewise;
    they take the place of 8), ``x`` (float32, (vectors, K)) and ``y`` (float32, (vectors, N)).

    Args:
        dot: Product of the CPU.
        n: rows.
        k: columns.
        block: weights that share a scale: 32, 64 or 128; the last one of a row may be shorter.
        vectors: that are multiplied at once, each weight being read once for four of them.
        parallel: rows are shared out among threads.
        form: zeros, scales, and how vectors are rounded.

    Raises:
        ValueError: the block is no multiple of 32, or a size is none.
    """
    return _gemv(_Plan(dot, n, k, 4, block, vectors, form), parallel)


def gemv_int8(
    dot: Dot,
    n: int,
    k: int,
    block: int = BLOCK,
    vectors: int = 1,
    parallel: bool = True,
    form: ProductForm = _PLAIN,
) -> tirx.PrimFunc:
    """``y = x @ (q * scale).T`` for bytes laid out by ``pack_int8``; otherwise as ``gemv_int4``.

    Zeros are int8.
    """
    return _gemv(_Plan(dot, n, k, 8, block, vectors, form), parallel)


def _gemv(plan: _Plan, parallel: bool) -> tirx.PrimFunc:
    n, k, block, columns = plan.n, plan.k, plan.block, plan.columns
    if block % BLOCK or min(n, k, block, columns) < 1:
        raise ValueError(
            f"({n}, {k}) by blocks of {block}, {columns} vectors: sizes from 1, and blocks of a "
            f"multiple of {BLOCK}"
        )
    step = plan.form.step
    if step % BLOCK or step < 1 or block % step:
        raise ValueError(f"{step} elements of a vector with a scale, of blocks of {block}")
    rows, kind = plan.dot.rows, "uint8" if plan.bits == 4 else "int8"
    factors = (plan.blocks, plan.scales, rows)
    buffers = {
        "w": ((plan.blocks, plan.groups, plan.bits, rows * 4), kind),
        "s": (factors, plan.form.scales),
        **({"z": (factors, kind)} if plan.form.zeros else {}),
        "x": ((columns, k), "float32"),
        "y": ((columns, n), "float32"),
    }
    streams = plan.streams
    runs = plan.blocks // streams
    # Threads take whole runs of rows; short ones even out what else the machine does.
    share = next((c for c in (8, 4, 2) if runs % c == 0 and runs // c >= 8), 1)
    width = _TILE // plan.terms
    tiles, rest = divmod(columns, width)

    def body(*given: Buffer) -> None:
        *weights, x, y = given
        rounded = _round(plan, x)
        with loop(runs // share, parallel) as outer, T.serial(share) as inner:
            ats = [outer * share + inner + stream * runs for stream in range(streams)]
            if tiles:
                with T.serial(tiles) as tile:
                    _tile(plan, (*weights, y), rounded, ats, (tile * width, width))
            if rest:
                _tile(plan, (*weights, y), rounded, ats, (tiles * width, rest))

    return function(f"gemv_int{plan.bits}", buffers, body)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one kernel."""

    dot: Dot
    n: int
    k: int
    bits: int
    block: int
    columns: int
    form: ProductForm

    @property
    def terms(self) -> int:
        """Vectors of 8 bits that each one becomes."""
        return 2 if self.form.fine else 1

    @property
    def blocks(self) -> int:
        """Runs of rows that stand side by side."""
        return -(-self.n // self.dot.rows)

    @property
    def streams(self) -> int:
        """Places far apart that weights are read from together."""
        is_one = self.dot.tiles and self.columns == 1
        fit = (s for s in (4, 2) if self.blocks % s == 0 and self.blocks // s >= 32)
        return next(fit, 1) if is_one else 1

    @property
    def scales(self) -> int:
        """Of a row."""
        return -(-self.k // self.block)

    @property
    def groups(self) -> int:
        """Of 32 weights of a row, those that fill its last block up among them."""
        return self.scales * self.block // BLOCK

    @property
    def shift(self) -> int:
        """What each weight was moved by, to be taken off with the sum of the vector's block."""
        return _ZERO if self.bits == 4 else 0

    def start(self, rounded: _Rounded, term: Expr, group: Expr) -> Expr:
        """What sums over a block begin with."""
        if self.form.zeros:
            return splat(T.int32(0), self.dot.rows)
        return splat(T.BufferLoad(rounded.starts, [term, group]), self.dot.rows)


@dataclass(frozen=True, slots=True)
class _Rounded:
    """Vectors in 8 bits; of those with two terms, both, one behind the other.

    Attributes:
        words: four neighbouring elements each; (terms, K / 32, 8), and for instructions that
            multiply two vectors (terms / 2, K / 32, 16), two words of each in turns.
        scales: Scales of the blocks; (terms, K / 32).
        starts: what is added to a sum over a block, for weights that were moved; where these have
            zeros, the sums of the blocks.
    """

    words: Buffer
    scales: Buffer
    starts: Buffer


def _tile(
    plan: _Plan, buffers: tuple[Buffer, ...], rounded: _Rounded, ats: list[Expr], columns: Columns
) -> None:
    """Multiply some runs of rows by some vectors."""
    w, s, *zeros, y = buffers
    (first, width), rows, inside = columns, plan.dot.rows, plan.block // BLOCK
    sums = [[_zeros(rows) for _ in range(width)] for _ in ats]
    with T.serial(plan.scales) as g:
        for at, totals in zip(ats, sums, strict=True):
            scale = tirx.Cast(f"float32x{rows}", load(s, [at, g, 0], rows))
            moved = [tirx.Cast(f"int32x{rows}", load(z, [at, g, 0], rows)) for z in zeros]
            with _unrolled(inside) as i:
                part = g * inside + i
                _ask_ahead(plan, w, at, part)
                _add_block(
                    plan,
                    _weights(plan, w, at, part),
                    (scale, moved),
                    rounded,
                    (first, part),
                    totals,
                )
    for at, totals in zip(ats, sums, strict=True):
        for column, total in enumerate(totals):
            _stored(plan, y, first + column, at, total)


def _add_block(
    plan: _Plan,
    weights: list[Expr],
    factors: tuple[Expr, list[Expr]],
    rounded: _Rounded,
    place: tuple[Expr, Expr],
    totals: list[Buffer],
) -> None:
    """Add what a block of a run comes to, by vectors from the first on."""
    (scale, moved), (first, part), rows, terms = factors, place, plan.dot.rows, plan.terms
    given = (first * terms, len(totals) * terms)
    wholes = _SUMS[plan.dot.name](plan, weights, rounded, given, part)
    for term, whole in enumerate(wholes):
        at_term = [first * terms + term, part]
        factor = scale * splat(T.BufferLoad(rounded.scales, at_term), rows)
        for zero in moved:
            whole = whole - zero * splat(T.BufferLoad(rounded.starts, at_term), rows)
        value = tirx.Cast(f"float32x{rows}", whole) * factor
        total = totals[term // terms]
        store(total, [0], load(total, [0], rows) + value, rows)


def _unrolled(count: int) -> Any:
    return T.unroll(count) if count > 1 else T.serial(count)


def _stored(plan: _Plan, y: Buffer, column: Expr, at: Expr, total: Buffer) -> None:
    """Write sums; of the last run only those of rows that there are."""
    rows, left = plan.dot.rows, plan.n % plan.dot.rows
    whole = load(total, [0], rows)
    if not left:
        store(y, [column, at * rows], whole, rows)
        return
    with T.If(at < plan.n // rows):
        with T.Then():
            store(y, [column, at * rows], whole, rows)
        with T.Else():
            for row in range(left):
                last = plan.n - left + row
                T.buffer_store(y, T.BufferLoad(total, [row]), [column, last])


def _zeros(rows: int) -> Buffer:
    made = T.alloc_buffer((rows,), "float32")
    store(made, [0], splat(T.float32(0), rows), rows)
    return made


def _round(plan: _Plan, x: Buffer) -> _Rounded:
    """Round vectors by blocks; four neighbours become one 32-bit number."""
    together, groups, count = plan.dot.together, plan.groups, plan.columns * plan.terms
    runs = -(-count // together)
    into = _Rounded(
        T.alloc_buffer((runs, groups, 8 * together), "int32"),
        T.alloc_buffer((count, groups), "float32"),
        T.alloc_buffer((count, groups), "int32"),
    )
    inside = plan.form.step // BLOCK
    full, left = divmod(plan.k, plan.form.step)
    with T.serial(plan.columns) as column:
        with T.serial(full) as step:
            _round_step(plan, x, into, column, step * inside, plan.form.step)
        if left:
            _round_step(plan, x, into, column, T.int32(full * inside), left)
        known = full * inside + -(-left // BLOCK)
        if known < groups:
            with T.serial(groups - known) as g, T.serial(plan.terms) as term:
                _empty(plan, into, column * plan.terms + term, known + g)
    if count % together:
        # The last vector has no partner.
        with T.serial(groups) as g:
            for j in range(8):
                _word(plan, into, count, g, j, T.int32(0))
    return into


def _empty(plan: _Plan, into: _Rounded, term: Expr, g: Expr) -> None:
    for j in range(8):
        _word(plan, into, term, g, j, T.int32(0))
    T.buffer_store(into.scales, T.float32(0), [term, g])
    T.buffer_store(into.starts, T.int32(0), [term, g])


def _word(plan: _Plan, into: _Rounded, term: Expr, g: Expr, j: Expr, word: Expr) -> None:
    if plan.dot.together == 1:
        T.buffer_store(into.words, word, [term, g, j])
        return
    place = j // 2 * 4 + term % 2 * 2 + j % 2
    T.buffer_store(into.words, word, [term // 2, g, place])


def _round_step(plan: _Plan, x: Buffer, into: _Rounded, column: Expr, g: Expr, count: int) -> None:
    """Round what shares a scale, from block ``g`` on; elements that lack are zeros."""
    largest = T.alloc_buffer((1,), "float32")
    sizes = folded(
        KernelCpu(plan.dot.rows, 2 * plan.dot.rows),
        count,
        0.0,
        _larger,
        lambda at, width: tirx.abs(load(x, [column, g * BLOCK + at], width)),
    )
    T.buffer_store(largest, sizes, [0])
    full, left = divmod(count, BLOCK)
    if full:
        with T.serial(full) as i:
            _round_block(plan, (x, largest), into, column, g + i, BLOCK)
    if left:
        _round_block(plan, (x, largest), into, column, g + full, left)


def _larger(a: Expr, b: Expr) -> Expr:
    """The larger one, or the one that is no number: results are none either, then."""
    return tirx.Select(tirx.Or(a > b, is_nan(a)), a, b)


def _round_block(
    plan: _Plan, given: tuple[Buffer, Buffer], into: _Rounded, column: Expr, g: Expr, count: int
) -> None:
    """Round up to 32 elements against the largest."""
    x, bound = given
    first = column * plan.terms
    largest = T.BufferLoad(bound, [0])
    totals = [T.alloc_buffer((1,), "int32") for _ in range(plan.terms)]
    for term, total in enumerate(totals):
        size = largest / T.float32(_FULL * (2 * _FULL) ** term)
        T.buffer_store(into.scales, size, [first + term, g])
        T.buffer_store(total, T.int32(0), [0])
    inverse = tirx.Select(largest > T.float32(_LEAST), T.float32(_FULL) / largest, T.float32(0))

    def four(j: Expr, there: int) -> None:
        parts = [[T.int32(0)] * 4 for _ in totals]
        for b in range(there):
            value = T.BufferLoad(x, [column, g * BLOCK + j * 4 + b]) * inverse
            for one in parts:
                nearest = tirx.nearbyint(value)
                one[b] = tirx.Cast("int32", nearest)
                value = (value - nearest) * T.float32(2 * _FULL)
        for term, (total, one) in enumerate(zip(totals, parts, strict=True)):
            four_sum = T.BufferLoad(total, [0]) + one[0] + one[1] + one[2] + one[3]
            T.buffer_store(total, four_sum, [0])
            _word(plan, into, first + term, g, j, _joined(one))

    if count == BLOCK and plan.dot.together == 1:
        _round_whole(plan, (x, inverse), (into, totals), column, g)
    elif count == BLOCK:
        with T.serial(8) as j:
            four(j, 4)
    else:
        for j in range(8):
            four(j, min(4, max(0, count - 4 * j)))
    factor = 1 if plan.form.zeros else -plan.shift
    for term, total in enumerate(totals):
        start = T.BufferLoad(total, [0]) * T.int32(factor)
        T.buffer_store(into.starts, start, [first + term, g])


def _round_whole(
    plan: _Plan,
    given: tuple[Buffer, Expr],
    made: tuple[_Rounded, list[Buffer]],
    column: Expr,
    g: Expr,
) -> None:
    """Round 32 elements by vectors."""
    (x, inverse), (into, totals), lanes = given, made, plan.dot.rows
    sums = [T.alloc_buffer((lanes,), "int32") for _ in totals]
    for start in range(0, BLOCK, lanes):
        value = load(x, [column, g * BLOCK + start], lanes) * splat(inverse, lanes)
        for term, held in enumerate(sums):
            nearest = tirx.nearbyint(value)
            whole = tirx.Cast(f"int32x{lanes}", nearest)
            store(held, [0], whole + load(held, [0], lanes) if start else whole, lanes)
            words = tirx.reinterpret(_words(lanes // 4), tirx.Cast(f"int8x{lanes}", whole))
            store(into.words, [column * plan.terms + term, g, start // 4], words, lanes // 4)
            value = (value - nearest) * splat(T.float32(2 * _FULL), lanes)
    for total, held in zip(totals, sums, strict=True):
        with T.serial(lanes) as i:
            value = T.BufferLoad(total, [0]) + T.BufferLoad(held, [i])
            T.buffer_store(total, value, [0])


def _words(count: int) -> str:
    return "int32" if count == 1 else f"int32x{count}"


def _joined(parts: list[Expr]) -> Expr:
    """Four bytes as one number."""
    word = tirx.bitwise_and(parts[0], T.int32(255))
    for b in range(1, 4):
        one = tirx.shift_left(tirx.bitwise_and(parts[b], T.int32(255)), T.int32(8 * b))
        word = tirx.bitwise_or(word, one)
    return word


def _ask_ahead(plan: _Plan, w: Buffer, at: Expr, g: Expr) -> None:
    """Ask for what comes some blocks later, of this run of rows or of those behind it."""
    line = plan.dot.rows * 4
    size = plan.bits * line
    further = (_AHEAD if plan.streams == 1 else _AHEAD_OF_STREAM) // size
    for start in range(0, size, _LINE):
        prefetch(w, [at, g + further, start // line, start % line])


def _weights(plan: _Plan, w: Buffer, at: Expr, g: Expr) -> list[Expr]:
    """One block of all rows, as it lies; nibbles as bytes, first those of its first half."""
    bytes_ = plan.dot.rows * 4
    vectors = [load(w, [at, g, v, 0], bytes_) for v in range(plan.bits)]
    if plan.bits == 8:
        return vectors
    low = [tirx.bitwise_and(v, splat(tirx.const(15, "uint8"), bytes_)) for v in vectors]
    high = [tirx.shift_right(v, splat(tirx.const(4, "uint8"), bytes_)) for v in vectors]
    return low + high


Columns = tuple[Expr, int]
"""The first vector, and how many."""


def _by_column(
    add: Callable[[dots.Pairs, Expr, int, int], Expr],
) -> Callable[[_Plan, list[Expr], _Rounded, Columns, Expr], list[Expr]]:
    """Sums of one block of all rows, as 32-bit integers, for one vector after the other."""

    def sums(
        plan: _Plan, weights: list[Expr], rounded: _Rounded, columns: Columns, g: Expr
    ) -> list[Expr]:
        first, width = columns
        rows, found = plan.dot.rows, []
        for column in range(width):
            pairs = []
            for j, weight in enumerate(weights):
                word = splat(T.BufferLoad(rounded.words, [first + column, g, j]), rows)
                pairs.append((weight, tirx.reinterpret(f"int8x{rows * 4}", word)))
            found.append(add(pairs, plan.start(rounded, first + column, g), rows, plan.bits))
        return found

    return sums


def _smmla(
    plan: _Plan, weights: list[Expr], rounded: _Rounded, columns: Columns, g: Expr
) -> list[Expr]:
    """Two vectors times two rows at an instruction, eight weights of each."""
    first, width = columns
    found: list[Expr] = []
    for pair in range(-(-width // 2)):
        sums = [T.broadcast(T.int32(0), 4)] * 2
        for index, weight in enumerate(weights):
            eight, rows = divmod(index, 2)
            words = load(rounded.words, [first // 2 + pair, g, eight * 4], 4)
            value = tirx.reinterpret("int8x16", words)
            signed = tirx.reinterpret("int8x16", weight) if plan.bits == 4 else weight
            sums[rows] = T.call_llvm_pure_intrin(
                "int32x4", "llvm.aarch64.neon.smmla.v4i32.v16i8", sums[rows], value, signed
            )
        for column in range(2 * pair, min(2 * pair + 2, width)):
            start = plan.start(rounded, first + column, g)
            lanes = [column % 2 * 2 + lane for lane in (0, 1, 4, 5)]
            found.append(tirx.Shuffle(sums, [tirx.const(i, "int32") for i in lanes]) + start)
    return found


_SUMS = {
    "vnni512": _by_column(dots.vnni),
    "vnni256": _by_column(dots.vnni),
    "avx2": _by_column(dots.avx2),
    "sdot": _by_column(dots.sdot),
    "smmla": _smmla,
}
