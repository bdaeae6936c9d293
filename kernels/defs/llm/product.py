"""Rows of weights times the vectors of some tokens.

At few tokens memory sets the pace, and one core reads faster from several addresses far apart than
from one: with ``streams`` of them, stream ``j`` walks through the ``j``-th part of the matrix, and
each asks for its bytes ahead. What is summed, and in which order, depends on neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, function, load, prefetch, splat, store
from edgeinfer.kernels.defs.gemv import Dot
from edgeinfer.kernels.defs.llm import pairs, tiles
from edgeinfer.kernels.defs.llm.form import STEP, SUPER, Form
from edgeinfer.kernels.defs.llm.rounding import rounded_buffers
from edgeinfer.kernels.defs.llm.steps import (
    SPAN,
    TOKENS,
    between,
    fma,
    held,
    span_of,
    zeros,
)
from edgeinfer.records import dataclass

Epilogue = Literal["store", "add", "silu", "gelu_tanh"]
"""What becomes of a sum: it is written, added to what is there, or the gate of one that lies half
the matrix behind it."""

LINE = 64
"""Bytes that memory is read by."""


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        dot: Product of the processor.
        form: Form of the weights.
        rows: Rows of the matrix, a multiple of the processor's.
        columns: Columns of the matrix, a multiple of 32.
        width: tokens at once.
        epilogue: what becomes of the sums.
        bias: there is one.
        target: elements of a row of the result.
        cap: sums are bent to within plus and minus it; 0 for none.
        streams: positions of the matrix that are read together, at most.
        ahead: bytes that each stream asks for ahead; 0 for none.
        more: Whether something is added to the sums of each token; of a gated one only.
    """

    dot: Dot
    form: Form
    rows: int
    columns: int
    width: int
    epilogue: Epilogue
    target: int
    bias: bool = False
    cap: float = 0.0
    streams: int = 1
    ahead: int = 0
    more: bool = False

    @property
    def gated(self) -> bool:
        """Whether rows come in pairs."""
        return self.epilogue in ("silu", "gelu_tanh")

    @property
    def tiled(self) -> bool:
        """Whether tiles of AMX multiply."""
        return self.dot.tiles and self.width == tiles.WIDTH and not self.form.floats

    @property
    def runs(self) -> int:
        """Runs of rows of which one, or one pair, is an item by itself."""
        return self.rows // self.dot.rows // (2 if self.gated else 1)

    @property
    def together(self) -> int:
        """Runs, or pairs of them, that are walked together."""
        most = max(1, self.streams // 2) if self.gated else self.streams
        return next(s for s in range(most, 0, -1) if self.runs % s == 0)

    @property
    def items(self) -> int:
        """That a team shares out."""
        return self.runs // self.together

    @property
    def name(self) -> str:
        """Of the kernel."""
        more = f"{'_bias' if self.bias else ''}{f'_cap{self.cap:g}' if self.cap else ''}"
        more += "_more" if self.more else ""
        sizes = f"{self.rows}x{self.columns}_{self.target}"
        return f"product_{self.form.label}_{sizes}_{self.epilogue}{more}_w{self.width}".replace(
            ".", "p"
        )


def product(what: Product) -> tirx.PrimFunc:
    """Multiply.

    The kernel takes the buffers of the form, with a bias ``bias`` (rows), for integers the buffers
    of ``rounded_buffers``, for floats ``x`` (tokens, columns), ``more`` (tokens, rows) where it
    is added to the sums, ``y`` (tokens, target) and ``span`` of items and, behind them, the number
    of tiles of ``width`` tokens. Rows ``r`` are written to columns ``r`` of ``y``, which may begin
    inside a row of a larger array.
    """
    buffers = buffers_of(what)

    def body(*made: Buffer) -> None:
        named = dict(zip(buffers, made, strict=True))
        first, end = span_of(named["span"])
        count = T.BufferLoad(named["span"], [2])
        with _tiles_of(what) as more:
            used = {**named, **more}
            with between(first, end) as item:
                if what.tiled:
                    _unpack(what, used, item)
                with T.serial(count) as tile:
                    token = tile * what.width
                    if what.gated:
                        gated(what, used, item, token, token)
                    else:
                        _plain(what, used, item, token)

    return function("product", buffers, body)


def buffers_of(what: Product, matrices: int = 1) -> dict[str, tuple[tuple[int, ...], str]]:
    """What a product takes, by name; of several matrices, one lies below the other."""
    given: dict[str, tuple[tuple[int, ...], str]] = (
        {"x": ((TOKENS, what.columns), "float32")}
        if what.form.floats
        else rounded_buffers(what.columns)
    )
    return {
        **what.form.buffers(what.rows * matrices, what.columns, what.dot.rows),
        **({"bias": ((what.rows,), "float32")} if what.bias else {}),
        **given,
        **({"more": ((TOKENS, what.rows), "float32")} if what.more else {}),
        "y": ((TOKENS, what.target), "float32"),
        "span": ((SPAN,), "int32"),
    }


def walked(
    what: Product, named: dict[str, Buffer], ats: list[Expr], first: Expr, behind: int = 0
) -> list[list[Buffer]]:
    """Sum runs of rows, for each of some tokens; there are others of the same item before them."""
    if what.tiled:
        return [_walk_tiles(what, named, at, first, behind + j) for j, at in enumerate(ats)]
    walk = _walk_floats if what.form.floats else _walk
    return walk(what, named, ats, first)


def gated(what: Product, named: dict[str, Buffer], item: Expr, first: Expr, into: Expr) -> None:
    """Multiply pairs of runs from ``item`` on and write them to rows of ``y`` from ``into`` on."""
    runs = _runs_of(what, item)
    ats, behind = runs[: what.together], runs[what.together :]
    if what.streams > 1:
        both = walked(what, named, runs, first)
        gates, others = both[: len(ats)], both[len(ats) :]
    else:
        # Both together would not stay in registers.
        gates = walked(what, named, ats, first)
        others = walked(what, named, behind, first, len(ats))
    if what.more:
        for at, totals in zip(runs, [*gates, *others], strict=True):
            _add_more(what, named["more"], (first, at), totals)
    for j, (gate, other) in enumerate(zip(gates, others, strict=True)):
        _gate(what, named, (into, item % what.runs + j * what.items), (gate, other))


def _plain(what: Product, named: dict[str, Buffer], item: Expr, first: Expr) -> None:
    ats = _runs_of(what, item)
    for at, totals in zip(ats, walked(what, named, ats, first), strict=True):
        _finish(what, named, at, first, totals)


def _finish(
    what: Product, named: dict[str, Buffer], at: Expr, first: Expr, totals: list[Buffer]
) -> None:
    rows = what.dot.rows
    for column, total in enumerate(totals):
        value = load(total, [0], rows)
        if what.bias:
            value = value + load(named["bias"], [at * rows], rows)
        if what.cap:
            cap = splat(T.float32(what.cap), rows)
            value = math.named(value / cap, math.tanh) * cap
        place = [first + column, at * rows]
        if what.epilogue == "add":
            value = value + load(named["y"], place, rows)
        store(named["y"], place, value, rows)


def _add_more(what: Product, more: Buffer, place: tuple[Expr, Expr], totals: list[Buffer]) -> None:
    """Add what stands in a run of columns of ``more``, from a token on."""
    rows, (first, at) = what.dot.rows, place
    for column, total in enumerate(totals):
        given = load(more, [first + column, at * rows], rows)
        store(total, [0], load(total, [0], rows) + given, rows)


def _gate(
    what: Product,
    named: dict[str, Buffer],
    place: tuple[Expr, Expr],
    totals: tuple[list[Buffer], list[Buffer]],
) -> None:
    """Write one pair of runs: to a row of ``y`` on, at a run of its columns."""
    rows, (into, at) = what.dot.rows, place
    for column, (gate, other) in enumerate(zip(*totals, strict=True)):
        value, factor = load(gate, [0], rows), load(other, [0], rows)
        opened = math.named(value, silu if what.epilogue == "silu" else gelu_tanh)
        store(named["y"], [into + column, at * rows], opened * factor, rows)


def silu(x: Expr) -> Expr:
    """``x * sigmoid(x)``."""
    return x * math.sigmoid(x)


def gelu_tanh(x: Expr) -> Expr:
    """The tanh form of GELU."""
    half, one = math.constant(0.5, x), math.constant(1.0, x)
    root, third = math.constant(0.7978845608028654, x), math.constant(0.044715, x)
    return half * x * (one + math.named(root * (x + third * x * x * x), math.tanh))


def _walk(
    what: Product, named: dict[str, Buffer], ats: list[Expr], first: Expr
) -> list[list[Buffer]]:
    """Sum runs of rows, for each of some tokens, over all steps of 32 columns."""
    form, rows = what.form, what.dot.rows
    totals = [[zeros(rows) for _ in range(what.width)] for _ in ats]
    with T.serial(what.columns // STEP) as g:
        for at, into in zip(ats, totals, strict=True):
            _ask_ahead(what, named["w"], at, g)
            _ask_factors(what, named, at, g)
            weights = [held(v, rows * 4, "uint8") for v in _weights(form, named["w"], at, g, rows)]
            scales = _factors(form, named, "s", form.scale, at, g, rows)
            offsets = _factors(form, named, "m", form.offset, at, g, rows) if form.offset else None
            for column, sums in enumerate(_sums_of_all(what, weights, named, first, g)):
                token, total = first + column, into[column]
                for scale, whole in zip(scales, sums, strict=True):
                    _add_whole(named, (token, g), whole, scale, total)
                for place, offset in enumerate(offsets or []):
                    _add_offset(what, named, (token, g, place), offset, total)
    return totals


def _tiles_of(what: Product) -> AbstractContextManager[dict[str, Buffer]]:
    if not what.tiled:
        return nullcontext({})
    return tiles.configured(what.form, what.columns, len(_runs_of(what, 0)))


def _runs_of(what: Product, item: Expr) -> list[Expr]:
    """Return the runs of an item in the order in which they are walked; gates come first."""
    ats = [item + j * what.items for j in range(what.together)]
    return [*ats, *(at + what.runs for at in ats)] if what.gated else ats


def _unpack(what: Product, named: dict[str, Buffer], item: Expr) -> None:
    """Keep an item's weights as tiles take them, for all tokens."""
    with T.serial(what.columns // STEP) as g:
        for run, at in enumerate(_runs_of(what, item)):
            _ask_ahead(what, named["w"], at, g)
            weights = _weights(what.form, named["w"], at, g, what.dot.rows)
            tiles.unpack(what.form, weights, named["unpacked"], run, g)


def _walk_tiles(
    what: Product, named: dict[str, Buffer], at: Expr, first: Expr, run: int
) -> list[Buffer]:
    """The same for one run, by tiles; what tiles sum up is used a batch later."""
    totals = [zeros(what.dot.rows) for _ in range(what.width)]
    steps = tiles.steps_together(what.form, what.columns)
    batches = what.columns // STEP // steps

    def use(batch: Expr) -> None:
        for step in range(steps):
            _add_step(what, named, (at, first, batch), step, totals)

    tiles.multiply(what.form, what.columns, named, run, first, T.int32(0))
    with T.serial(batches - 1) as batch:
        tiles.multiply(what.form, what.columns, named, run, first, batch + 1)
        use(batch)
    use(T.int32(batches - 1))
    return totals


def _add_step(
    what: Product,
    named: dict[str, Buffer],
    place: tuple[Expr, Expr, Expr],
    step: int,
    totals: list[Buffer],
) -> None:
    """Add what tiles summed up in a step of a batch, of a run and of tokens from the first on."""
    (at, first, batch), form, rows = place, what.form, what.dot.rows
    g = batch * tiles.steps_together(form, what.columns) + step
    for part, scale in enumerate(_factors(form, named, "s", form.scale, at, g, rows)):
        sums = tiles.summed(form, what.columns, named["whole"], batch, step, part)
        for column, (one, total) in enumerate(zip(sums, totals, strict=True)):
            _add_whole(named, (first + column, g), one, scale, total)
    if form.offset:
        for part, offset in enumerate(_factors(form, named, "m", form.offset, at, g, rows)):
            for column, total in enumerate(totals):
                _add_offset(what, named, (first + column, g, part), offset, total)


def _add_whole(
    named: dict[str, Buffer], place: tuple[Expr, Expr], whole: Expr, scale: Buffer, total: Buffer
) -> None:
    """Add a group's sum of integers, at a token and a step."""
    rows = int(total.shape[0])
    factor = load(scale, [0], rows) * splat(T.BufferLoad(named["scales"], list(place)), rows)
    wide = tirx.Cast(f"float32x{rows}", whole)
    store(total, [0], fma(wide, factor, load(total, [0], rows), rows), rows)


def _add_offset(
    what: Product,
    named: dict[str, Buffer],
    place: tuple[Expr, Expr, int],
    offset: Buffer,
    total: Buffer,
) -> None:
    """Add what a group's offset comes to, at a token, a step and a place in it."""
    rows = what.dot.rows
    given = splat(_sum_of(what.form, named["sums"], *place), rows)
    store(total, [0], fma(load(offset, [0], rows), given, load(total, [0], rows), rows), rows)


def _sum_of(form: Form, sums: Buffer, token: Expr, g: Expr, place: int) -> Expr:
    """What the vector sums to over a group."""
    if form.group >= STEP:
        return T.BufferLoad(sums, [token, g, 0]) + T.BufferLoad(sums, [token, g, 1])
    return T.BufferLoad(sums, [token, g, place])


def _steps_ahead(what: Product) -> int:
    return max(1, what.ahead // (what.form.bits * what.dot.rows * 4))


def _ask_factors(what: Product, named: dict[str, Buffer], at: Expr, g: Expr) -> None:
    """Ask for scales and offsets of the step whose weights are requested.

    For one token alone (0.95 to 0.99 of the time on Zen 4): with more there is as much to do as to
    wait for, and each line requested is one instruction more (1.00 to 1.06 with eight tokens).
    """
    if not what.ahead or what.width > 1:
        return
    place = _first_group(what.form, g + _steps_ahead(what))
    for name in ("s", "m") if what.form.offset else ("s",):
        prefetch(named[name], [at, place, 0])


def _ask_ahead(what: Product, w: Buffer, at: Expr, g: Expr) -> None:
    if not what.ahead:
        return
    line = what.dot.rows * 4
    size, further = what.form.bits * line, _steps_ahead(what)
    # Tiles multiply for so long that lines would be pushed out of the first cache.
    level = 2 if what.tiled else 1
    for start in range(0, size, LINE):
        prefetch(w, [at, g + further, start // line, start % line], level)


def _weights(form: Form, w: Buffer, at: Expr, g: Expr, rows: int) -> list[Expr]:
    """One step of all rows: eight vectors, of the first 16 columns first."""
    size = rows * 4
    vectors = [load(w, [at, g, v, 0], size) for v in range(form.bits)]
    if form.bits == 8:
        return vectors
    low = [tirx.bitwise_and(v, _bytes(15, size)) for v in vectors[:4]]
    high = [tirx.shift_right(v, _bytes(4, size)) for v in vectors[:4]]
    nibbles = low + high
    if form.bits == 4:
        return nibbles
    made = []
    for j, nibble in enumerate(nibbles):
        if form.bits == 5:
            bit = _moved(vectors[4], 4 - j, size, 16)
        else:
            bit = _moved(vectors[4 + j // 4], 4 - 2 * (j % 4), size, 48)
        made.append(tirx.bitwise_or(nibble, bit))
    return made


def _moved(plane: Expr, left: int, size: int, mask: int) -> Expr:
    """Bits of a plane where a nibble's next ones are."""
    if left > 0:
        plane = tirx.shift_left(plane, _bytes(left, size))
    elif left < 0:
        plane = tirx.shift_right(plane, _bytes(-left, size))
    return tirx.bitwise_and(plane, _bytes(mask, size))


def _bytes(value: int, size: int) -> Expr:
    return splat(tirx.const(value, "uint8"), size)


def _first_group(form: Form, g: Expr) -> Expr:
    """The first of a step's groups."""
    return g * (STEP // form.group) if form.group <= STEP else g // (form.group // STEP)


def _factors(
    form: Form,
    named: dict[str, Buffer],
    name: str,
    kind: str,
    at: Expr,
    g: Expr,
    rows: int,
) -> list[Buffer]:
    """Scales or offsets of a step's groups."""
    groups = max(1, STEP // form.group)
    wide = f"float32x{rows}"
    found = []
    for i in range(groups):
        place = _first_group(form, g) + i
        value = tirx.Cast(wide, load(named[name], [at, place, 0], rows))
        if kind == "codes":
            outer = load(named[f"{name}d"], [at, g // (SUPER // STEP), 0], rows)
            value = value * tirx.Cast(wide, outer)
        found.append(held(value, rows))
    return found


def _sums_of_all(
    what: Product, weights: list[Buffer], named: dict[str, Buffer], first: Expr, g: Expr
) -> Iterator[list[Expr]]:
    """Sums of each token, see ``_sums``; two at once where an instruction takes two."""
    twos = what.width // 2 if what.dot.together == 2 else 0
    parts = pairs.zipped(weights) if twos else []
    form = what.form
    each, groups = min(form.group, STEP) // 8, max(1, STEP // form.group)
    for token in (first + 2 * k for k in range(twos)):
        found: list[list[Expr]] = [[], []]
        for i in range(groups):
            place = g, 2 * each * i
            both = pairs.multiplied(parts[each * i :][:each], named["words"], token, place)
            for k, (into, sums) in enumerate(zip(found, both, strict=True)):
                into.append(pairs.added(sums, _start(form, named, token + k, g, i)))
        yield from found
    for column in range(2 * twos, what.width):
        yield _sums(what, weights, named, first + column, g)


def _start(form: Form, named: dict[str, Buffer], token: Expr, g: Expr, group: int) -> Expr | None:
    """What a group's sum begins with, for what weights of zero are stored as."""
    if not form.zero:
        return None
    count = T.BufferLoad(named["starts"], [token, g, group])
    if form.group >= STEP:
        count = count + T.BufferLoad(named["starts"], [token, g, 1])
    return count * T.int32(-form.zero)


def _sums(
    what: Product, weights: list[Buffer], named: dict[str, Buffer], token: Expr, g: Expr
) -> list[Expr]:
    """Sums of products over a step's groups, as 32-bit integers."""
    form, rows = what.form, what.dot.rows
    each = min(form.group, STEP) // 4
    found = []
    for i in range(max(1, STEP // form.group)):
        factors = []
        for j in range(i * each, (i + 1) * each):
            word = splat(T.BufferLoad(named["words"], [token, g, j]), rows)
            value = tirx.reinterpret(f"int8x{rows * 4}", word)
            factors.append((load(weights[j], [0], rows * 4), value))
        count = _start(form, named, token, g, i)
        start = None if count is None else splat(count, rows)
        found.append(_DOTS[what.dot.name](factors, start, rows, form))
    return found


Factors = list[tuple[Expr, Expr]]


def _avx2(factors: Factors, start: Expr, rows: int, form: Form) -> Expr:
    """Factors of products in 16 bits, as many added there as fit for sure."""
    halves, wide = f"int16x{rows * 2}", f"int32x{rows}"
    ones = T.broadcast(tirx.const(1, "int16"), rows * 2)
    sums = []
    for weight, value in factors:
        left, right = weight, value
        if form.bits == 8:
            # One factor has no sign: the weight's goes to the vector.
            signed = tirx.reinterpret(f"int8x{rows * 4}", weight)
            left, right = (
                T.call_llvm_pure_intrin(f"int8x{rows * 4}", "llvm.x86.avx2.psign.b", v, signed)
                for v in (signed, value)
            )
        sums.append(T.call_llvm_pure_intrin(halves, "llvm.x86.avx2.pmadd.ub.sw", left, right))
    fit = {4: 8, 5: 4, 6: 2, 8: 1}[form.bits]
    whole = start
    for at in range(0, len(sums), fit):
        some = sums[at : at + fit]
        while len(some) > 1:
            joined = [a + b for a, b in zip(some[::2], some[1::2], strict=False)]
            some = joined + some[len(some) - len(some) % 2 :]
        one = T.call_llvm_pure_intrin(wide, "llvm.x86.avx2.pmadd.wd", some[0], ones)
        whole = one if whole is None else whole + one
    return whole


def _vnni(factors: Factors, start: Expr, rows: int, form: Form) -> Expr:
    whole = splat(T.int32(0), rows) if start is None else start
    for weight, value in factors:
        name = f"llvm.x86.avx512.vpdpbusd.{rows * 32}"
        whole = T.call_llvm_pure_intrin(f"int32x{rows}", name, whole, weight, value)
    return whole


def _sdot(factors: Factors, start: Expr, rows: int, form: Form) -> Expr:
    whole = splat(T.int32(0), rows) if start is None else start
    for weight, value in factors:
        signed = tirx.reinterpret(f"int8x{rows * 4}", weight)
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        whole = T.call_llvm_pure_intrin(f"int32x{rows}", name, whole, signed, value)
    return whole


_DOTS: dict[str, Callable[[Factors, Expr, int, Form], Expr]] = {
    "vnni512": _vnni,
    "vnni256": _vnni,
    "avx2": _avx2,
    "sdot": _sdot,
}


def _walk_floats(
    what: Product, named: dict[str, Buffer], ats: list[Expr], first: Expr
) -> list[list[Buffer]]:
    """The same for weights that are floats, one column after the other."""
    form, rows = what.form, what.dot.rows
    totals = [[zeros(rows) for _ in range(what.width)] for _ in ats]
    size = rows * form.bits // 8
    further = what.ahead // size
    each = max(1, LINE // size)
    with T.serial(what.columns // each) as outer:
        for at in ats:
            if what.ahead:
                prefetch(named["w"], [at, outer * each + further, 0])
        for inner in range(each):
            k = outer * each + inner
            for at, into in zip(ats, totals, strict=True):
                weight = held(widened(load(named["w"], [at, k, 0], rows), form.floats, rows), rows)
                for column, total in enumerate(into):
                    value = splat(T.BufferLoad(named["x"], [first + column, k]), rows)
                    store(
                        total,
                        [0],
                        fma(load(weight, [0], rows), value, load(total, [0], rows), rows),
                        rows,
                    )
    return totals


def widened(value: Expr, kind: str, width: int) -> Expr:
    """Stored floats as float32."""
    lanes = "" if width == 1 else f"x{width}"
    if kind == "float32":
        return value
    if kind == "float16":
        return tirx.Cast(f"float32{lanes}", value)
    wide = tirx.Cast(f"uint32{lanes}", value)
    shifted = tirx.shift_left(wide, splat(tirx.const(16, "uint32"), width))
    return tirx.reinterpret(f"float32{lanes}", shifted)
