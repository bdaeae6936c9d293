"""Some rows of queries over all pages that any of them sees.

The softmax runs over groups of pages with a running largest score (Milakov and Gimelshein, 2018;
Dao et al., 2022). Tokens of a page lie in the lanes of a vector. Weights below ``exp(-60)`` are
exactly zero: products with numbers below the normal range are many times slower. Groups begin at
fixed positions, so a row's bits do not depend on the rows next to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu, load, prefetch, splat, store
from edgeinfer.kernels.defs.gemv import Dot
from edgeinfer.kernels.defs.llm.cache import PAGE
from edgeinfer.kernels.defs.llm.heads import Attend, page_of
from edgeinfer.kernels.defs.llm.steps import (
    across,
    added,
    between,
    fma,
    held,
    larger,
    zeros,
)

GROUP = 4
"""Pages whose scores become weights together: less waits for the largest one."""

AHEAD = 2
"""Pages that are prefetched."""

_LINE = 64

_LOWEST = -1e30
_NOTHING = -60.0
"""A score so much below the largest one weighs nothing."""

_LANES = 16


def ask_first(what: Attend, named: dict[str, Buffer], head: Expr, token: Expr) -> None:
    """Ask for the pages that a token sees first, while its query is made ready."""
    position = T.BufferLoad(named["positions"], [token])
    owner, first = T.BufferLoad(named["owner"], [token]), _first_page(what, position)
    with between(first, tirx.Min(first + AHEAD, position // PAGE + 1)) as place:
        page = page_of(named, owner, place)
        with T.serial(_lines(named["k"])) as line:
            _ask(named, page, head, line)
        _ask_factors(named, page, head)


def _first_page(what: Attend, position: Expr) -> Expr:
    if not what.window:
        return T.int32(0)
    return tirx.Max(position - (what.window - 1), T.int32(0)) // PAGE


def _lines(buffer: Buffer) -> int:
    """Lines of a page's keys, or values, of one head."""
    _, _, outer, inner = (int(size) for size in buffer.shape)
    return outer * inner // _in_line(buffer)


def _in_line(buffer: Buffer) -> int:
    """Elements of a line."""
    return _LINE * 8 // int(buffer.dtype.bits)


def _ask(named: dict[str, Buffer], page: Expr, head: Expr, line: Expr) -> None:
    """Ask for one line of keys and one of values.

    They go into the second cache, which waits for more lines at once than the first one can.
    """
    for buffer in (named["k"], named["v"]):
        element, inner = line * _in_line(buffer), int(buffer.shape[-1])
        prefetch(buffer, [page, head, element // inner, element % inner], level=2)


def _ask_factors(named: dict[str, Buffer], page: Expr, head: Expr) -> None:
    if (factors := named.get("factors")) is not None:
        for which in range(4):
            prefetch(factors, [page, head, which // 2, which % 2, 0], level=2)


class _Pass(ABC):
    """What both kinds of caches have in common."""

    def __init__(
        self,
        cpu: KernelCpu,
        dot: Dot,
        what: Attend,
        named: dict[str, Buffer],
        head: Expr,
        first: Expr,
        rows: list[tuple[int, Expr]],
    ) -> None:
        self.cpu, self.dot, self.what, self.pages = cpu, dot, what, what.pages
        self.named, self.head, self.first, self.rows = named, head, first, rows
        size = what.pages.size
        self.best, self.total, self.shrink = (self._each(1) for _ in range(3))
        self.scores, self.result = self._each(GROUP * PAGE), self._each(size)
        self.start = T.BufferLoad(named["positions"], [first])
        self.last = self.start + rows[-1][0]
        self.owner = T.BufferLoad(named["owner"], [first])

    def _each(self, count: int, dtype: str = "float32") -> list[Buffer]:
        """Memory of each row."""
        return [T.alloc_buffer((count,), dtype) for _ in self.rows]

    def write(self) -> None:
        """All of it."""
        pages, first = self.last // PAGE + 1, _first_page(self.what, self.start)
        for row, (token, head) in enumerate(self.rows):
            T.buffer_store(self.best[row], T.float32(_LOWEST), [0])
            T.buffer_store(self.total[row], T.float32(0), [0])
            with T.serial(self.pages.size // 16) as i:
                store(self.result[row], [i * 16], splat(T.float32(0), 16), 16)
            self.begin(row, token, head)
        with between(first // GROUP, (pages - 1) // GROUP + 1) as group:
            low = tirx.Max(first, group * GROUP)
            high = tirx.Min(pages, group * GROUP + GROUP)
            with between(low, high) as place:
                self.score(place, place - group * GROUP)
            for row, (token, _) in enumerate(self.rows):
                self._weigh(row, group * GROUP * PAGE, self.start + token)
            self.gather(group * GROUP, low, high)
        for row, (token, head) in enumerate(self.rows):
            total = T.BufferLoad(self.total[row], [0])
            with T.serial(self.pages.size // 16) as i:
                value = load(self.result[row], [i * 16], 16) / splat(total, 16)
                store(self.named["out"], [self.first + token, head, i * 16], value, 16)

    @abstractmethod
    def begin(self, row: int, token: int, head: Expr) -> None:
        """Read a row's query."""

    @abstractmethod
    def score(self, place: Expr, at: Expr) -> None:
        """Score the tokens of a page, the ``at``-th of its group."""

    @abstractmethod
    def gather(self, base: Expr, low: Expr, high: Expr) -> None:
        """Add the values of pages from ``low`` on, of the group that begins at ``base``."""

    def page(self, place: Expr) -> Expr:
        """Its number."""
        return page_of(self.named, self.owner, place)

    def following(self, place: Expr) -> Expr:
        """Number of the page that is prefetched."""
        return self.page(tirx.Min(place + AHEAD, self.last // PAGE))

    def bent(self, score: Expr) -> Expr:
        """A score as it is before the softmax."""
        if not self.what.cap:
            return score
        cap = splat(T.float32(self.what.cap), 16)
        return math.named(score / cap, math.tanh) * cap

    def _weigh(self, row: int, start: Expr, position: Expr) -> None:
        """Turn a row's scores of a group into weights against the largest score so far."""
        scores, best = self.scores[row], self.best[row]
        seen, kept = [], []
        for v in range(GROUP):
            tokens = T.ramp(start + v * PAGE, 1, 16)
            sees = tokens <= T.broadcast(position, 16)
            if self.what.window:
                sees = tirx.And(sees, tokens > T.broadcast(position - self.what.window, 16))
            seen.append(sees)
            lowest = splat(T.float32(_LOWEST), 16)
            kept.append(held(tirx.Select(sees, load(scores, [v * 16], 16), lowest), 16))
        before = held(T.BufferLoad(best, [0]))
        most = load(kept[0], [0], 16)
        for more in kept[1:]:
            most = tirx.Max(most, load(more, [0], 16))
        T.buffer_store(best, tirx.Max(T.BufferLoad(before, [0]), across(most, 16, larger)), [0])
        now = held(T.BufferLoad(best, [0]))
        for v, (sees, score) in enumerate(zip(seen, kept, strict=True)):
            below = held(load(score, [0], 16) - splat(T.BufferLoad(now, [0]), 16), 16)
            weight = math.exp_to_one(load(below, [0], 16))
            counts = tirx.And(sees, load(below, [0], 16) > splat(T.float32(_NOTHING), 16))
            store(scores, [v * 16], tirx.Select(counts, weight, splat(T.float32(0), 16)), 16)
        shrink = held(math.exp_to_one(T.BufferLoad(before, [0]) - T.BufferLoad(now, [0])))
        T.buffer_store(self.shrink[row], T.BufferLoad(shrink, [0]), [0])
        whole = load(scores, [0], 16)
        for v in range(1, GROUP):
            whole = whole + load(scores, [v * 16], 16)
        more = across(whole, 16, added)
        total = fma(T.BufferLoad(self.total[row], [0]), T.BufferLoad(shrink, [0]), more, 1)
        T.buffer_store(self.total[row], total, [0])


class FloatPass(_Pass):
    """Over a cache of floats."""

    def begin(self, row: int, token: int, head: Expr) -> None:
        """Scale the query."""
        if not row:
            self.query = self._each(self.pages.size)
        scale = splat(T.float32(self.what.scale), 16)
        with T.serial(self.pages.size // 16) as i:
            value = load(self.named["q"], [self.first + token, head, i * 16], 16) * scale
            store(self.query[row], [i * 16], value, 16)

    def score(self, place: Expr, at: Expr) -> None:
        """Multiply with all keys of a page."""
        size, strands = self.pages.size, self.what.strands(self.cpu)
        page, following = self.page(place), self.following(place)
        sums = [[zeros(16) for _ in range(strands)] for _ in self.rows]
        lines = 2 if self.pages.kind == "float16" else 1
        step = max(strands, lines)
        with T.serial(size // step) as outer:
            for k in range(0, step, lines):
                _ask(self.named, following, self.head, (outer * step + k) // lines)
            for k in range(step):
                d = outer * step + k
                key = held(self._wide(load(self.named["k"], [page, self.head, d, 0], 16)), 16)
                for row, parts in enumerate(sums):
                    factor = splat(T.BufferLoad(self.query[row], [d]), 16)
                    into = parts[k % strands]
                    store(into, [0], fma(load(key, [0], 16), factor, load(into, [0], 16), 16), 16)
        for row, parts in enumerate(sums):
            value = load(parts[0], [0], 16)
            for part in parts[1:]:
                value = value + load(part, [0], 16)
            store(self.scores[row], [at * 16], self.bent(value), 16)

    def _wide(self, value: Expr) -> Expr:
        return value if self.pages.kind == "float32" else tirx.Cast("float32x16", value)

    def gather(self, base: Expr, low: Expr, high: Expr) -> None:
        """Add the values of a page's first tokens by their weights."""
        vectors = max(1, _LANES // self.cpu.lanes)
        most = max(1, (self.cpu.registers - 4) // (len(self.rows) * vectors))
        runs = self.pages.size // 16
        wide = next(w for w in (4, 2, 1) if runs % w == 0 and (w == 1 or w <= most))
        with T.serial(runs // wide) as i:
            sums = [[zeros(16) for _ in range(wide)] for _ in self.rows]
            for row, parts in enumerate(sums):
                for k, part in enumerate(parts):
                    value = load(self.result[row], [(i * wide + k) * 16], 16)
                    shrink = splat(T.BufferLoad(self.shrink[row], [0]), 16)
                    store(part, [0], value * shrink, 16)
            with between(low, high) as place:
                # What lies behind the last token is whatever was there, NaN too.
                count = self.last + 1 - place * PAGE
                with T.If(count >= T.int32(PAGE)):
                    with T.Then():
                        self._add(sums, place, place - base, i * wide, T.int32(PAGE))
                    with T.Else():
                        self._add(sums, place, place - base, i * wide, count)
            for row, parts in enumerate(sums):
                for k, part in enumerate(parts):
                    store(self.result[row], [(i * wide + k) * 16], load(part, [0], 16), 16)

    def _add(self, sums: list[list[Buffer]], place: Expr, at: Expr, run: Expr, count: Expr) -> None:
        page = self.page(place)
        with T.serial(count) as t:
            values = []
            for k in range(len(sums[0])):
                index = [page, self.head, t, (run + k) * 16]
                values.append(held(self._wide(load(self.named["v"], index, 16)), 16))
            for row, parts in enumerate(sums):
                weight = splat(T.BufferLoad(self.scores[row], [at * 16 + t]), 16)
                for part, value in zip(parts, values, strict=True):
                    more = fma(weight, load(value, [0], 16), load(part, [0], 16), 16)
                    store(part, [0], more, 16)


_DIGIT = 128
_MOST = 63 * _DIGIT + 63
"""Numbers are taken as two digits of 7 bits: bytes times such, two by two, fit 16 bits."""

_LEAST = 1e-30


class IntegerPass(_Pass):
    """Over a cache of integers: queries and weights are rounded to 14 bits, the rest is exact."""

    def begin(self, row: int, token: int, head: Expr) -> None:
        """Round the query to two digits an element."""
        size, lanes = self.pages.size, _LANES
        if not row:
            self.unit, self.whole = self._each(1), self._each(1, "int32")
            self.query = self._each(2 * size // 4, "int32")
            self.digits = self._each(2 * GROUP * 4, "int32")
            self.offset = self._each(1, "int32")
            self.of_value = [T.alloc_buffer((GROUP * PAGE,), "float32") for _ in range(2)]
            for buffer in self.of_value:
                with T.serial(GROUP) as v:
                    store(buffer, [v * 16], splat(T.float32(0), 16), 16)

        def line(i: Expr) -> Expr:
            return load(self.named["q"], [self.first + token, head, i * 16], 16)

        most, none = zeros(lanes), splat(T.float32(0), lanes)
        with T.serial(size // lanes) as i:
            value = line(i)
            store(most, [0], tirx.Max(load(most, [0], 16), tirx.Max(value, none - value)), 16)
        largest = held(across(load(most, [0], 16), 16, larger))
        inverse = self._unit(self.unit[row], largest, self.what.scale)
        sums = zeros(lanes, "int32")
        with T.serial(size // lanes) as i:
            whole = self._rounded(line(i), inverse)
            store(sums, [0], load(sums, [0], 16) + load(whole, [0], 16), 16)
            self._split(whole, self.query[row], i * 4, size // 4)
        total = across(load(sums, [0], 16), 16, added, "int32")
        T.buffer_store(self.whole[row], total, [0])

    def _unit(self, into: Buffer, largest: Buffer, scale: float = 1.0) -> Buffer:
        """Keep what one step stands for; returns how many steps one is."""
        bound = T.BufferLoad(largest, [0])
        T.buffer_store(into, bound * T.float32(scale / _MOST), [0])
        fits = bound > T.float32(_LEAST)
        return held(tirx.Select(fits, T.float32(_MOST) / bound, T.float32(0)))

    def _rounded(self, value: Expr, inverse: Buffer) -> Buffer:
        steps = tirx.nearbyint(value * splat(T.BufferLoad(inverse, [0]), 16))
        return held(tirx.Cast("int32x16", steps), 16, "int32")

    def _split(self, whole: Buffer, into: Buffer, at: Expr, second: int) -> None:
        """Write both digits of 16 numbers as words of four, the lower ones ``second`` behind."""
        value = load(whole, [0], 16)
        half, seven = (splat(T.int32(n), 16) for n in (_DIGIT // 2, 7))
        high = held(tirx.shift_right(value + half, seven), 16, "int32")
        low = value - tirx.shift_left(load(high, [0], 16), seven)
        for place, digit in ((at, load(high, [0], 16)), (at + second, low)):
            words = tirx.reinterpret("int32x4", tirx.Cast("int8x16", digit))
            store(into, [place], words, 4)

    @property
    def _moved(self) -> int:
        """What bytes are less where instructions take them with a sign."""
        return 128 if self.dot.name == "sdot" and self.pages.kind == "uint8" else 0

    def _bytes(self, stored: Buffer) -> list[Buffer]:
        """Elements of bytes as they are multiplied: one of each byte, or the low and the high."""
        size = self.dot.rows * 4
        value = load(stored, [0], size)

        def splat8(number: int) -> Expr:
            return splat(tirx.const(number, "uint8"), size)

        if self.pages.halves == 2:
            parts = [tirx.bitwise_and(value, splat8(15)), tirx.shift_right(value, splat8(4))]
            return [held(part, size, "uint8") for part in parts]
        if self._moved:
            return [held(tirx.bitwise_xor(value, splat8(128)), size, "uint8")]
        return [stored]

    def _dot(self, into: Buffer, data: Buffer, word: Expr) -> None:
        """Add products of bytes with the four digits of a word."""
        rows = self.dot.rows
        wide, size = f"int32x{rows}", rows * 4
        digits = tirx.reinterpret(f"int8x{size}", splat(word, rows))
        value, total = load(data, [0], size), load(into, [0], rows)
        call = T.call_llvm_pure_intrin
        if self.dot.name == "sdot":
            signed = tirx.reinterpret(f"int8x{size}", value)
            more = call(wide, "llvm.aarch64.neon.sdot.v4i32.v16i8", total, signed, digits)
        elif self.dot.name == "avx2":
            halves = f"int16x{rows * 2}"
            pairs = call(halves, "llvm.x86.avx2.pmadd.ub.sw", value, digits)
            ones = T.broadcast(tirx.const(1, "int16"), rows * 2)
            more = total + call(wide, "llvm.x86.avx2.pmadd.wd", pairs, ones)
        else:
            more = call(wide, f"llvm.x86.avx512.vpdpbusd.{rows * 32}", total, value, digits)
        store(into, [0], more, rows)

    def _joined(self, sums: list[Buffer]) -> Expr:
        high, low = (load(part, [0], self.dot.rows) for part in sums)
        return tirx.shift_left(high, splat(T.int32(7), self.dot.rows)) + low

    def score(self, place: Expr, at: Expr) -> None:
        """Multiply with all keys of a page, and keep the factors of its values."""
        pages, lanes, head = self.pages, self.dot.rows, self.head
        page, following = self.page(place), self.following(place)
        words = pages.size // 4 // pages.halves
        with T.serial(words) as w:
            _ask(self.named, following, head, w)
        _ask_factors(self.named, following, head)
        for start in range(0, PAGE, lanes):
            sums = [[zeros(lanes, "int32") for _ in range(2)] for _ in self.rows]
            with T.serial(words) as w:
                stored = load(self.named["k"], [page, head, w, start * 4], lanes * 4)
                parts = self._bytes(held(stored, lanes * 4, "uint8"))
                for half, data in enumerate(parts):
                    for row, both in enumerate(sums):
                        for digit, into in enumerate(both):
                            index = digit * (pages.size // 4) + half * words + w
                            self._dot(into, data, T.BufferLoad(self.query[row], [index]))
            zero = held(self._factor(page, 0, 1, start), lanes)
            for row, both in enumerate(sums):
                moved = tirx.Cast(f"int32x{lanes}", load(zero, [0], lanes))
                moved = moved - splat(T.int32(self._moved), lanes)
                less = moved * splat(T.BufferLoad(self.whole[row], [0]), lanes)
                value = tirx.Cast(f"float32x{lanes}", self._joined(both) - less)
                unit = splat(T.BufferLoad(self.unit[row], [0]), lanes)
                scaled = held(value * (self._factor(page, 0, 0, start) * unit), lanes)
                store(self.scores[row], [at * 16 + start], load(scaled, [0], lanes), lanes)
        if self.what.cap:
            for scores in self.scores:
                store(scores, [at * 16], self.bent(load(scores, [at * 16], 16)), 16)
        there = T.ramp(place * PAGE, 1, 16) <= T.broadcast(self.last, 16)
        for kind, buffer in enumerate(self.of_value):
            factor = load(self.named["factors"], [page, head, 1, kind, 0], 16)
            store(buffer, [at * 16], tirx.Select(there, factor, splat(T.float32(0), 16)), 16)

    def _factor(self, page: Expr, which: int, kind: int, start: int) -> Expr:
        return load(self.named["factors"], [page, self.head, which, kind, start], self.dot.rows)

    def gather(self, base: Expr, low: Expr, high: Expr) -> None:
        """Add values by weights that are rounded against the largest one of the group."""
        for row in range(len(self.rows)):
            self._round_weights(row)
        lanes, halves = self.dot.rows, self.pages.halves
        runs = self.pages.size // halves // lanes
        # A word of digits stays in a register for all vectors that it is multiplied with.
        words = len(self.rows) * 2
        most = max(1, (self.cpu.registers - 2 - words) // (words * halves + 1))
        wide = next(w for w in (4, 2, 1) if runs % w == 0 and (w == 1 or w <= most))
        with T.serial(runs // wide) as i:
            count = wide * halves
            sums = [
                [[zeros(lanes, "int32") for _ in "ab"] for _ in range(count)] for _ in self.rows
            ]
            with between(low, high) as place, T.serial(PAGE // 4) as w:
                page = self.page(place)
                for k in range(wide):
                    index = [page, self.head, w, (i * wide + k) * lanes * 4]
                    stored = held(load(self.named["v"], index, lanes * 4), lanes * 4, "uint8")
                    for half, data in enumerate(self._bytes(stored)):
                        for row, parts in enumerate(sums):
                            for digit, into in enumerate(parts[half * wide + k]):
                                at = digit * GROUP * 4 + (place - base) * 4 + w
                                self._dot(into, data, T.BufferLoad(self.digits[row], [at]))
            for row, parts in enumerate(sums):
                for which, both in enumerate(parts):
                    half, k = divmod(which, wide)
                    at = half * (self.pages.size // 2) + (i * wide + k) * lanes
                    self._merge(row, at, both)

    def _merge(self, row: int, at: Expr, both: list[Buffer]) -> None:
        lanes = self.dot.rows
        whole = self._joined(both) - splat(T.BufferLoad(self.offset[row], [0]), lanes)
        value = held(tirx.Cast(f"float32x{lanes}", whole), lanes)
        shrink = splat(T.BufferLoad(self.shrink[row], [0]), lanes)
        old = held(load(self.result[row], [at], lanes) * shrink, lanes)
        unit = splat(T.BufferLoad(self.of_weight[row], [0]), lanes)
        more = fma(load(value, [0], lanes), unit, load(old, [0], lanes), lanes)
        store(self.result[row], [at], more, lanes)

    def _round_weights(self, row: int) -> None:
        """Multiply a group's weights by the values' scales and round them to two digits."""
        if not row:
            self.of_weight = self._each(1)
        scores, (scale, zero) = self.scores[row], self.of_value
        shares = []
        for v in range(GROUP):
            value = load(scores, [v * 16], 16) * load(scale, [v * 16], 16)
            shares.append(held(value, 16))
        most = load(shares[0], [0], 16)
        for share in shares[1:]:
            most = tirx.Max(most, load(share, [0], 16))
        inverse = self._unit(self.of_weight[row], held(across(most, 16, larger)))
        sums = zeros(16, "int32")
        for v, share in enumerate(shares):
            whole = self._rounded(load(share, [0], 16), inverse)
            moved = tirx.Cast("int32x16", load(zero, [v * 16], 16))
            moved = moved - splat(T.int32(self._moved), 16)
            store(sums, [0], load(sums, [0], 16) + load(whole, [0], 16) * moved, 16)
            self._split(whole, self.digits[row], T.int32(v * 4), GROUP * 4)
        total = across(load(sums, [0], 16), 16, added, "int32")
        T.buffer_store(self.offset[row], total, [0])
