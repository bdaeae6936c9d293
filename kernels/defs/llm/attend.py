"""Attention of a ragged batch over pages, and what comes before it: norms, turns, appending.

The softmax runs page by page with a running largest score (Milakov and Gimelshein, 2018; Dao et
al., 2022). Tokens of a page lie in the lanes of a vector. Weights below ``exp(-60)`` are exactly
zero: products with numbers below the normal range are many times slower.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.attention import PAGE
from edgeinfer.kernels.defs.emit import Buffer, Cpu, Expr, function, load, splat, store
from edgeinfer.kernels.defs.llm.cache import TABLE, Pages, append
from edgeinfer.kernels.defs.llm.rounding import inverse_root
from edgeinfer.kernels.defs.llm.steps import (
    SPAN,
    TOKENS,
    across,
    added,
    fma,
    held,
    larger,
    prefetch,
    span_of,
    zeros,
)
from edgeinfer.kernels.defs.rows import sweep

POSITIONS = 1 << 20
"""Of a sequence, at most."""

_LOWEST = -1e30
_NOTHING = -60.0
"""A score so much below the largest one weighs nothing."""

_LANES = 16


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention of one layer.

    Attributes:
        pages: the cache.
        heads: of queries.
        scale: of scores.
        window: tokens that each sees, itself included; 0 for all before it.
        cap: scores are bent to within plus and minus it; 0 for none.
        turned: elements of a head that are turned by position; 0 for none.
        epsilon: of the norms of queries and keys by head; None for none.
    """

    pages: Pages
    heads: int
    scale: float
    window: int = 0
    cap: float = 0.0
    turned: int = 0
    epsilon: float | None = None

    @property
    def label(self) -> str:
        """Its name in names of kernels."""
        p = self.pages
        sizes = f"{self.heads}_{p.heads}x{p.size}_{p.kind}_t{self.turned}_s{self.scale:.6g}"
        more = f"_w{self.window}" if self.window else ""
        more += f"_cap{self.cap:g}" if self.cap else ""
        more += f"_n{self.epsilon:.3g}" if self.epsilon is not None else ""
        return (sizes + more).replace(".", "p").replace("-", "m").replace("+", "")

    def together(self, cpu: Cpu) -> int:
        """Heads of queries that read a page together."""
        group = self.heads // self.pages.heads
        most = (cpu.registers - 4) // max(1, _LANES // cpu.lanes)
        return next(h for h in range(min(group, most), 0, -1) if group % h == 0)

    def strands(self, cpu: Cpu) -> int:
        """Sums that a score is made of: one would wait for its last step every time."""
        vectors = max(1, _LANES // cpu.lanes)
        return 2 if 2 * self.together(cpu) * vectors <= cpu.registers - 4 else 1

    def tile(self, cpu: Cpu) -> int:
        """Tokens of one sequence that read a page together."""
        vectors = max(1, _LANES // cpu.lanes)
        rows = 2 * self.together(cpu) * self.strands(cpu) * vectors
        return 2 if rows <= cpu.registers - 4 else 1


def _common(what: Attend) -> dict[str, tuple[tuple[int, ...], str]]:
    pages = what.pages
    made: dict[str, tuple[tuple[int, ...], str]] = {
        "q": ((TOKENS, what.heads + 2 * pages.heads, pages.size), "float32")
    }
    if what.turned:
        half = what.turned // 2
        made |= dict.fromkeys(("cos", "sin"), ((POSITIONS, half), "float32"))
    if what.epsilon is not None:
        made |= dict.fromkeys(("qn", "kn"), ((pages.size,), "float32"))
    made |= dict.fromkeys(("positions", "owner"), ((TOKENS,), "int32"))
    return {**made, "table": ((TABLE,), "int32"), **pages.buffers()}


def turn(cpu: Cpu, what: Attend) -> tirx.PrimFunc:
    """Norm and turn queries and keys, and append keys and values to the cache.

    The kernel takes ``q`` (tokens, heads, size; behind the queries keys and values), ``cos`` and
    ``sin`` (positions, turned / 2), norms ``qn`` and ``kn``, ``positions`` and ``owner`` of tokens,
    ``table``, the cache and ``span`` of tokens; its fourth number is the length of a table's row.
    """
    buffers = {**_common(what), "span": ((SPAN,), "int32")}

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        first, end = span_of(named["span"])
        with T.serial(first, end) as token:
            with T.serial(what.heads) as head:
                _ready(cpu, what, named, token, head, "qn")
            with T.serial(what.pages.heads) as head:
                _ready(cpu, what, named, token, what.heads + head, "kn")
                _append_both(what, named, token, head)

    return function("turn", buffers, body)


def _append_both(what: Attend, named: dict[str, Buffer], token: Expr, head: Expr) -> None:
    pages = what.pages
    position = T.BufferLoad(named["positions"], [token])
    page = _page(named, T.BufferLoad(named["owner"], [token]), position // PAGE)
    for which, base in ((0, what.heads), (1, what.heads + pages.heads)):
        append(pages, named, which, (token, base + head), (page, head, position % PAGE))


def _page(named: dict[str, Buffer], owner: Expr, place: Expr) -> Expr:
    return T.BufferLoad(named["table"], [owner * T.BufferLoad(named["span"], [3]) + place])


def _ready(
    cpu: Cpu, what: Attend, named: dict[str, Buffer], token: Expr, head: Expr, norm: str
) -> None:
    """Norm and turn one head where it lies."""
    q, size = named["q"], what.pages.size
    if what.epsilon is not None:
        factor = inverse_root(cpu, size, what.epsilon, lambda i, n: load(q, [token, head, i], n))

        def scale(i: Expr, width: int) -> None:
            value = load(q, [token, head, i], width) * splat(T.BufferLoad(factor, [0]), width)
            store(q, [token, head, i], value * load(named[norm], [i], width), width)

        sweep(cpu, size, scale)
    if not what.turned:
        return
    half, position = what.turned // 2, T.BufferLoad(named["positions"], [token])

    def pair(i: Expr, width: int) -> None:
        a = held(load(q, [token, head, i], width), width)
        b = held(load(q, [token, head, i + half], width), width)
        c = held(load(named["cos"], [position, i], width), width)
        s = held(load(named["sin"], [position, i], width), width)
        one, two, cos, sin = (load(v, [0], width) for v in (a, b, c, s))
        less = splat(T.float32(0), width) - two
        store(q, [token, head, i], fma(less, sin, one * cos, width), width)
        store(q, [token, head, i + half], fma(one, sin, two * cos, width), width)

    sweep(cpu, half, pair)


def attend(cpu: Cpu, what: Attend, tile: int, *, fused: bool) -> tirx.PrimFunc:
    """Attend each token of a batch to its sequence.

    The kernel takes what ``turn`` takes, ``tiles`` (the first token of each tile of ``tile``
    neighbours of one sequence) and ``out`` (tokens, heads, size) before ``span``, whose items are
    (tile, head of keys).

    Args:
        cpu: that it is for.
        what: of the attention.
        tile: tokens of an item.
        fused: it does the work of ``turn`` first; for batches in which each token is its
            sequence's only one.
    """
    pages = what.pages
    buffers = {
        **_common(what),
        "tiles": ((TOKENS,), "int32"),
        "out": ((TOKENS, what.heads, pages.size), "float32"),
        "span": ((SPAN,), "int32"),
    }
    group, together = what.heads // pages.heads, what.together(cpu)

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        first, end = span_of(named["span"])
        with T.serial(first, end) as item:
            head = item % pages.heads
            token = T.BufferLoad(named["tiles"], [item // pages.heads])
            if fused:
                with T.serial(group) as h:
                    _ready(cpu, what, named, token, head * group + h, "qn")
                _ready(cpu, what, named, token, what.heads + head, "kn")
                _append_both(what, named, token, head)
            with T.serial(group // together) as part:
                base = head * group + part * together
                rows = [(t, base + h) for t in range(tile) for h in range(together)]
                _Pass(cpu, what, named, head, token, rows).write()

    return function("attend", buffers, body)


class _Pass:
    """Some rows of queries over all pages that any of them sees."""

    def __init__(
        self,
        cpu: Cpu,
        what: Attend,
        named: dict[str, Buffer],
        head: Expr,
        first: Expr,
        rows: list[tuple[int, Expr]],
    ) -> None:
        self.what, self.pages, self.named, self.head = what, what.pages, named, head
        self.first, self.rows, self.strands = first, rows, what.strands(cpu)
        count, size = len(rows), what.pages.size
        vectors = max(1, _LANES // cpu.lanes)
        most = max(1, (cpu.registers - 4) // (count * vectors))
        self.wide = next(w for w in (4, 2, 1) if size // 16 % w == 0 and (w == 1 or w <= most))
        self.best = T.alloc_buffer((count,), "float32")
        self.total = T.alloc_buffer((count,), "float32")
        self.query = T.alloc_buffer((count, size), "float32")
        self.sums = T.alloc_buffer((count,), "float32")
        self.scores = T.alloc_buffer((count, PAGE), "float32")
        self.shrink = T.alloc_buffer((count,), "float32")
        self.result = T.alloc_buffer((count, size), "float32")

    def write(self) -> None:
        """All of it."""
        self._begin()
        named, window = self.named, self.what.window
        start = T.BufferLoad(named["positions"], [self.first])
        last = start + self.rows[-1][0]
        owner = T.BufferLoad(named["owner"], [self.first])
        begin = tirx.Max(start - (window - 1), T.int32(0)) // PAGE if window else T.int32(0)
        with T.serial(begin, last // PAGE + 1) as place:
            page = _page(named, owner, place)
            self._score(page, _page(named, owner, tirx.Min(place + 1, last // PAGE)))
            for row, (token, _) in enumerate(self.rows):
                self._weigh(row, place * PAGE, start + token, page)
            # What lies behind the last token is whatever was there, NaN too.
            count = last + 1 - place * PAGE
            with T.If(count >= T.int32(PAGE)):
                with T.Then():
                    self._gather(page, T.int32(PAGE))
                with T.Else():
                    self._gather(page, count)
        for row, (token, head) in enumerate(self.rows):
            total = T.BufferLoad(self.total, [row])
            with T.serial(self.pages.size // 16) as i:
                value = load(self.result, [row, i * 16], 16) / splat(total, 16)
                store(named["out"], [self.first + token, head, i * 16], value, 16)

    def _begin(self) -> None:
        size, scale = self.pages.size, splat(T.float32(self.what.scale), 16)
        for row, (token, head) in enumerate(self.rows):
            T.buffer_store(self.best, T.float32(_LOWEST), [row])
            T.buffer_store(self.total, T.float32(0), [row])
            sums = zeros(16)
            with T.serial(size // 16) as i:
                value = load(self.named["q"], [self.first + token, head, i * 16], 16) * scale
                store(self.query, [row, i * 16], value, 16)
                store(self.result, [row, i * 16], splat(T.float32(0), 16), 16)
                if self.pages.quantized:
                    again = load(self.query, [row, i * 16], 16)
                    store(sums, [0], load(sums, [0], 16) + again, 16)
            if self.pages.quantized:
                T.buffer_store(self.sums, across(load(sums, [0], 16), 16, added), [row])

    def _score(self, page: Expr, following: Expr) -> None:
        """Products with all keys of a page, without the factors of its tokens."""
        strands, size = self.strands, self.pages.size
        sums = [[zeros(16) for _ in range(strands)] for _ in self.rows]
        item = {"float16": 2, "uint8": 1, "float32": 4}[self.pages.kind]
        lines = max(1, 64 // (16 * item))
        step = max(strands, lines)
        with T.serial(size // step) as outer:
            for k in range(0, step, lines):
                element = (outer * step + k) * 16
                prefetch(self.named["k"], [following, self.head, outer * step + k, 0])
                prefetch(self.named["v"], [following, self.head, element // size, element % size])
            for k in range(step):
                d = outer * step + k
                key = held(self._wide(load(self.named["k"], [page, self.head, d, 0], 16)), 16)
                for row, parts in enumerate(sums):
                    factor = splat(T.BufferLoad(self.query, [row, d]), 16)
                    into = parts[k % strands]
                    store(into, [0], fma(load(key, [0], 16), factor, load(into, [0], 16), 16), 16)
        for row, parts in enumerate(sums):
            value = load(parts[0], [0], 16)
            for part in parts[1:]:
                value = value + load(part, [0], 16)
            store(self.scores, [row, 0], value, 16)

    def _wide(self, value: Expr) -> Expr:
        return value if self.pages.kind == "float32" else tirx.Cast("float32x16", value)

    def _factor(self, page: Expr, which: int, kind: int) -> Expr:
        return load(self.named["factors"], [page, self.head, which, kind, 0], PAGE)

    def _weigh(self, row: int, start: Expr, position: Expr, page: Expr) -> None:
        """Turn a row's scores into weights against the largest score so far."""
        score = load(self.scores, [row, 0], 16)
        if self.pages.quantized:
            less = splat(T.float32(0) - T.BufferLoad(self.sums, [row]), 16)
            score = fma(self._factor(page, 0, 1), less, score, 16) * self._factor(page, 0, 0)
        if self.what.cap:
            cap = splat(T.float32(self.what.cap), 16)
            score = math.named(score / cap, math.tanh) * cap
        tokens = T.ramp(start, 1, 16)
        seen = tokens <= T.broadcast(position, 16)
        if self.what.window:
            edge = T.broadcast(position - self.what.window, 16)
            seen = tirx.And(seen, tokens > edge)
        kept = held(tirx.Select(seen, score, splat(T.float32(_LOWEST), 16)), 16)
        before = held(T.BufferLoad(self.best, [row]))
        most = across(load(kept, [0], 16), 16, larger)
        T.buffer_store(self.best, tirx.Max(T.BufferLoad(before, [0]), most), [row])
        best = T.BufferLoad(self.best, [row])
        below = held(load(kept, [0], 16) - splat(best, 16), 16)
        weight = math.exp_to_one(load(below, [0], 16))
        counts = tirx.And(seen, load(below, [0], 16) > splat(T.float32(_NOTHING), 16))
        store(self.scores, [row, 0], tirx.Select(counts, weight, splat(T.float32(0), 16)), 16)
        shrink = held(math.exp_to_one(T.BufferLoad(before, [0]) - best))
        T.buffer_store(self.shrink, T.BufferLoad(shrink, [0]), [row])
        more = across(load(self.scores, [row, 0], 16), 16, added)
        total = fma(T.BufferLoad(self.total, [row]), T.BufferLoad(shrink, [0]), more, 1)
        T.buffer_store(self.total, total, [row])

    def _gather(self, page: Expr, count: Expr) -> None:
        """Add a page's values by their weights, those of its first tokens."""
        offsets = T.alloc_buffer((len(self.rows),), "float32")
        if self.pages.quantized:
            none = splat(T.float32(0), 16)
            there = T.ramp(T.int32(0), 1, 16) < T.broadcast(count, 16)
            for row in range(len(self.rows)):
                scaled = load(self.scores, [row, 0], 16) * self._factor(page, 1, 0)
                store(self.scores, [row, 0], tirx.Select(there, scaled, none), 16)
                moved = load(self.scores, [row, 0], 16) * self._factor(page, 1, 1)
                kept = held(tirx.Select(there, moved, none), 16)
                less = T.float32(0) - across(load(kept, [0], 16), 16, added)
                T.buffer_store(offsets, less, [row])
        wide = self.wide
        with T.serial(self.pages.size // 16 // wide) as i:
            sums = [[zeros(16) for _ in range(wide)] for _ in self.rows]
            for row, parts in enumerate(sums):
                for k, part in enumerate(parts):
                    value = load(self.result, [row, (i * wide + k) * 16], 16)
                    value = value * splat(T.BufferLoad(self.shrink, [row]), 16)
                    if self.pages.quantized:
                        kept = held(value, 16)
                        value = load(kept, [0], 16) + splat(T.BufferLoad(offsets, [row]), 16)
                    store(part, [0], value, 16)
            with T.serial(count) as t:
                values = []
                for k in range(wide):
                    at = [page, self.head, t, (i * wide + k) * 16]
                    values.append(held(self._wide(load(self.named["v"], at, 16)), 16))
                for row, parts in enumerate(sums):
                    weight = splat(T.BufferLoad(self.scores, [row, t]), 16)
                    for part, value in zip(parts, values, strict=True):
                        more = fma(weight, load(value, [0], 16), load(part, [0], 16), 16)
                        store(part, [0], more, 16)
            for row, parts in enumerate(sums):
                for k, part in enumerate(parts):
                    store(self.result, [row, (i * wide + k) * 16], load(part, [0], 16), 16)
