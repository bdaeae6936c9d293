"""Attention over a cache of keys and values in pages, for one new token or many.

The softmax is computed page by page with a running largest score (Milakov and Gimelshein, 2018; Dao
et al., 2022), so that nothing as long as the context is written. The tokens of a page lie side by
side in the keys and so in the lanes of a vector; in the values the elements of a head do. Several
heads that share keys and values (grouped-query attention) and several new tokens read a page once.

Caches hold float16, or 8 or 4 bits with a scale and a zero for each token and head. The scale of a
token's key comes out of the sum over its elements, so scores need one multiplication a token for
it; that of its value goes into its weight.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, function, load, splat, store
from edgeinfer.records import dataclass

PAGE = 16
"""Tokens of a page."""

_LOWEST = -1e30
"""Below any score; its difference to itself is a number."""

_ROWS = 8
"""Rows of scores that are worked on at once."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer.

    Attributes:
        pages: that there are.
        heads: Heads of keys and values.
        size: elements of a head; a multiple of 16, of 32 with 4 bits.
        kind: ``float16``, ``uint8`` or ``uint4``.
    """

    pages: int
    heads: int
    size: int
    kind: str = "float16"

    def __post_init__(self) -> None:
        """Check kind and size.

        Raises:
            ValueError: no kernel has them.
        """
        if self.kind not in ("float16", "uint8", "uint4"):
            raise ValueError(f"a cache of {self.kind}: float16, uint8 or uint4")
        step = 32 if self.kind == "uint4" else 16
        if self.size <= 0 or self.size % step:
            raise ValueError(f"heads of {self.size} elements: a multiple of {step}")

    @property
    def key_shape(self) -> tuple[int, int, int, int]:
        """(pages, heads, elements, tokens); two elements a byte with 4 bits, i and i + size / 2."""
        return (self.pages, self.heads, self._held, PAGE)

    @property
    def value_shape(self) -> tuple[int, int, int, int]:
        """(pages, heads, tokens, elements); as for keys."""
        return (self.pages, self.heads, PAGE, self._held)

    @property
    def factor_shape(self) -> tuple[int, int, int, int, int]:
        """Scales and zeros, float32: (pages, heads, key or value, scale or zero, tokens)."""
        return (self.pages, self.heads, 2, 2, PAGE)

    @property
    def element(self) -> str:
        """Element type of the buffers."""
        return "float16" if self.kind == "float16" else "uint8"

    @property
    def quantized(self) -> bool:
        """Whether tokens have scales."""
        return self.kind != "float16"

    @property
    def levels(self) -> int:
        """Steps between the smallest and the largest value."""
        return 15 if self.kind == "uint4" else 255

    @property
    def _held(self) -> int:
        return self.size // 2 if self.kind == "uint4" else self.size

    def buffers(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """What kernels take of it, by name."""
        made: dict[str, tuple[tuple[int, ...], str]] = {
            "k": (self.key_shape, self.element),
            "v": (self.value_shape, self.element),
        }
        if self.quantized:
            made["factors"] = (self.factor_shape, "float32")
        return made


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call.

    Attributes:
        cache: that it reads.
        tokens: new ones at the end of the context, whose keys and values the cache has already.
        heads: Heads of the queries, a multiple of the cache's.
        scale: Scale of the products; one over the square root of the head's size unless given.
        window: each token sees so many, itself included; 0 for all before it.
        table: pages that a context may have.
    """

    cache: LayerCache
    tokens: int
    heads: int
    table: int
    scale: float | None = None
    window: int = 0

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: they do not fit.
        """
        if self.heads % self.cache.heads:
            raise ValueError(f"{self.heads} heads of queries over {self.cache.heads} of keys")
        if self.window < 0 or self.tokens < 1 or self.table < 1:
            raise ValueError("window, tokens and table are counts")


def attention(what: AttentionCall) -> tirx.PrimFunc:
    """Attend.

    The kernel takes ``q`` (float32, (tokens, heads, size)), the cache's ``k``, ``v`` and, with
    scales, ``factors``, ``table`` (int32, the context's pages in order), ``length`` (int32, one
    element: tokens of the context, the new ones included, at least as many as these) and ``out``
    (float32, (tokens, heads, size)).
    """
    cache = what.cache
    group = what.heads // cache.heads
    # Rows of one pass: the heads of a group, and as many tokens as leave them in registers.
    heads = next(h for h in range(min(group, _ROWS), 0, -1) if group % h == 0)
    tokens = next(t for t in range(max(1, _ROWS // heads), 0, -1) if what.tokens % t == 0)
    buffers = {
        "q": ((what.tokens, what.heads, cache.size), "float32"),
        **cache.buffers(),
        "table": ((what.table,), "int32"),
        "length": ((1,), "int32"),
        "out": ((what.tokens, what.heads, cache.size), "float32"),
    }
    passes = (group // heads) * (what.tokens // tokens)

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        with T.parallel(cache.heads * passes) as at:
            head = at // passes
            first_head = head * group + (at % passes) % (group // heads) * heads
            first_token = (at % passes) // (group // heads) * tokens
            rows = [(first_token + t, first_head + h) for t in range(tokens) for h in range(heads)]
            _Pass(what, named, head, rows).write()

    return function("attention", buffers, body)


class _Pass:
    """A few rows of queries over all pages that any of them sees."""

    def __init__(
        self,
        what: AttentionCall,
        named: dict[str, Buffer],
        head: Expr,
        rows: list[tuple[Expr, Expr]],
    ) -> None:
        self.what, self.cache, self.named, self.head, self.rows = (
            what,
            what.cache,
            named,
            head,
            rows,
        )
        count, size = len(rows), what.cache.size
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
        length = T.BufferLoad(self.named["length"], [0])
        past = length - self.what.tokens
        last = past + self.rows[-1][0]
        first = past + self.rows[0][0]
        start = tirx.Max(first - self.what.window + 1, T.int32(0)) if self.what.window else 0
        with T.serial(start // PAGE, last // PAGE + 1) as place:
            page = T.BufferLoad(self.named["table"], [place])
            self._score(page)
            for row, (token, _) in enumerate(self.rows):
                self._weigh(row, place * PAGE, past + token, page)
            # Positions behind the last token hold what was there, NaN too, which no weight stops.
            count = last + 1 - place * PAGE
            with T.If(count >= T.int32(PAGE)):
                with T.Then():
                    self._gather(page, T.int32(PAGE))
                with T.Else():
                    self._gather(page, count)
        for row, (token, head) in enumerate(self.rows):
            total = T.BufferLoad(self.total, [row])
            with T.serial(self.cache.size // 16) as i:
                value = load(self.result, [row, i * 16], 16) / splat(total, 16)
                store(self.named["out"], [token, head, i * 16], value, 16)

    def _begin(self) -> None:
        size = self.cache.size
        scale = size**-0.5 if self.what.scale is None else self.what.scale
        for row, (token, head) in enumerate(self.rows):
            T.buffer_store(self.best, T.float32(_LOWEST), [row])
            T.buffer_store(self.total, T.float32(0), [row])
            T.buffer_store(self.sums, T.float32(0), [row])
            with T.serial(size // 16) as i:
                value = load(self.named["q"], [token, head, i * 16], 16)
                store(self.query, [row, i * 16], value * splat(T.float32(scale), 16), 16)
                store(self.result, [row, i * 16], splat(T.float32(0), 16), 16)
            if self.cache.quantized:
                with T.serial(size) as d:
                    value = T.BufferLoad(self.sums, [row]) + T.BufferLoad(self.query, [row, d])
                    T.buffer_store(self.sums, value, [row])

    def _score(self, page: Expr) -> None:
        """Products with all keys of a page, without the factors of its tokens."""
        keys, half = self.named["k"], self.cache.size // 2
        sums = [T.alloc_buffer((PAGE,), "float32") for _ in self.rows]
        for one in sums:
            store(one, [0], splat(T.float32(0), PAGE), PAGE)

        def add(d: Expr, key: Expr) -> None:
            for row, one in enumerate(sums):
                factor = splat(T.BufferLoad(self.query, [row, d]), PAGE)
                store(one, [0], load(one, [0], PAGE) + key * factor, PAGE)

        with T.serial(self.cache.key_shape[2]) as d:
            held = load(keys, [page, self.head, d, 0], PAGE)
            if self.cache.kind == "uint4":
                low, high = _nibbles(held)
                add(d, low)
                add(d + half, high)
            else:
                add(d, tirx.Cast(f"float32x{PAGE}", held))
        for row, one in enumerate(sums):
            store(self.scores, [row, 0], load(one, [0], PAGE), PAGE)

    def _factor(self, page: Expr, which: int, kind: int) -> Expr:
        return load(self.named["factors"], [page, self.head, which, kind, 0], PAGE)

    def _weigh(self, row: int, start: Expr, position: Expr, page: Expr) -> None:
        """Turn a row's scores into weights against the largest score so far."""
        score = load(self.scores, [row, 0], PAGE)
        if self.cache.quantized:
            moved = score - self._factor(page, 0, 1) * splat(T.BufferLoad(self.sums, [row]), PAGE)
            score = moved * self._factor(page, 0, 0)
        tokens = T.ramp(start, 1, PAGE)
        seen = tokens <= T.broadcast(position, PAGE)
        if self.what.window:
            edge = T.broadcast(position - self.what.window, PAGE)
            seen = tirx.And(seen, tokens > edge)
        none = splat(T.float32(_LOWEST), PAGE)
        store(self.scores, [row, 0], tirx.Select(seen, score, none), PAGE)
        before = T.alloc_buffer((1,), "float32")
        T.buffer_store(before, T.BufferLoad(self.best, [row]), [0])
        with T.serial(PAGE) as t:
            value = tirx.Max(T.BufferLoad(self.best, [row]), T.BufferLoad(self.scores, [row, t]))
            T.buffer_store(self.best, value, [row])
        best = T.BufferLoad(self.best, [row])
        weight = math.exp(load(self.scores, [row, 0], PAGE) - splat(best, PAGE))
        # A page of which a row sees nothing would else count with the weight of one.
        store(self.scores, [row, 0], tirx.Select(seen, weight, splat(T.float32(0), PAGE)), PAGE)
        T.buffer_store(self.shrink, math.exp(T.BufferLoad(before, [0]) - best), [row])
        value = T.BufferLoad(self.total, [row]) * T.BufferLoad(self.shrink, [row])
        T.buffer_store(self.total, value, [row])
        with T.serial(PAGE) as t:
            value = T.BufferLoad(self.total, [row]) + T.BufferLoad(self.scores, [row, t])
            T.buffer_store(self.total, value, [row])

    def _gather(self, page: Expr, count: Expr) -> None:
        """Add a page's values by their weights, those of its first tokens."""
        offsets = T.alloc_buffer((len(self.rows),), "float32")
        if self.cache.quantized:
            for row in range(len(self.rows)):
                scaled = load(self.scores, [row, 0], PAGE) * self._factor(page, 1, 0)
                store(self.scores, [row, 0], scaled, PAGE)
                T.buffer_store(offsets, T.float32(0), [row])
                with T.serial(count) as t:
                    zero = T.BufferLoad(self.named["factors"], [page, self.head, 1, 1, t])
                    moved = T.BufferLoad(self.scores, [row, t]) * zero
                    T.buffer_store(offsets, T.BufferLoad(offsets, [row]) - moved, [row])
        self._gather_elements(page, count, offsets)

    def _gather_elements(self, page: Expr, count: Expr, offsets: Buffer) -> None:
        halves = 2 if self.cache.kind == "uint4" else 1
        with T.serial(self.cache.size // halves // 16) as i:
            sums = [[T.alloc_buffer((16,), "float32") for _ in range(halves)] for _ in self.rows]
            for row, parts in enumerate(sums):
                for half, one in enumerate(parts):
                    old = load(self.result, [row, self._element(i, half)], 16)
                    value = old * splat(T.BufferLoad(self.shrink, [row]), 16)
                    if self.cache.quantized:
                        value = value + splat(T.BufferLoad(offsets, [row]), 16)
                    store(one, [0], value, 16)
            with T.serial(count) as t:
                held = load(self.named["v"], [page, self.head, t, i * 16], 16)
                wide = _nibbles(held) if halves == 2 else (tirx.Cast("float32x16", held),)
                for row, parts in enumerate(sums):
                    weight = splat(T.BufferLoad(self.scores, [row, t]), 16)
                    for one, value in zip(parts, wide, strict=True):
                        store(one, [0], load(one, [0], 16) + weight * value, 16)
            for row, parts in enumerate(sums):
                for half, one in enumerate(parts):
                    store(self.result, [row, self._element(i, half)], load(one, [0], 16), 16)

    def _element(self, i: Expr, half: int) -> Expr:
        return i * 16 + half * (self.cache.size // 2)


def _nibbles(held: Expr) -> tuple[Expr, Expr]:
    low = tirx.bitwise_and(held, splat(tirx.const(15, "uint8"), 16))
    high = tirx.shift_right(held, splat(tirx.const(4, "uint8"), 16))
    return tirx.Cast("float32x16", low), tirx.Cast("float32x16", high)


def append(cache: LayerCache, tokens: int, table: int) -> tirx.PrimFunc:
    """Write the keys and values of new tokens into the cache.

    The kernel takes ``key`` and ``value`` (float32, (tokens, heads, size)), ``table`` (int32),
    ``length`` (int32, one element: tokens of the context, the new ones included) and the cache's
    ``k``, ``v`` and, with scales, ``factors``, which it writes. A token's scale is a step of its
    range with zero in it, rounded to the nearest, ties to even; values that are not finite are the
    caller's fault.
    """
    given = ((tokens, cache.heads, cache.size), "float32")
    buffers = {
        "key": given,
        "value": given,
        "table": ((table,), "int32"),
        "length": ((1,), "int32"),
        **cache.buffers(),
    }

    def body(*arguments: Buffer) -> None:
        named = dict(zip(buffers, arguments, strict=True))
        with T.serial(tokens) as token, T.serial(cache.heads) as head:
            position = T.BufferLoad(named["length"], [0]) - tokens + token
            page = T.BufferLoad(named["table"], [position // PAGE])
            place = (page, head, position % PAGE)
            for which, name in enumerate(("key", "value")):
                _append_one(cache, named, which, (named[name], token), place)

    return function("append", buffers, body)


def _append_one(
    cache: LayerCache,
    named: dict[str, Buffer],
    which: int,
    source: tuple[Buffer, Expr],
    place: tuple[Expr, Expr, Expr],
) -> None:
    given, token = source
    page, head, at = place
    target = named["v" if which else "k"]

    def put(d: Expr, value: Expr) -> None:
        T.buffer_store(target, value, [page, head, at, d] if which else [page, head, d, at])

    if not cache.quantized:
        with T.serial(cache.size) as d:
            put(d, tirx.Cast("float16", T.BufferLoad(given, [token, head, d])))
        return
    low, high = (T.alloc_buffer((1,), "float32") for _ in range(2))
    for bound in (low, high):
        T.buffer_store(bound, T.float32(0), [0])
    with T.serial(cache.size) as d:
        value = T.BufferLoad(given, [token, head, d])
        T.buffer_store(low, tirx.Min(T.BufferLoad(low, [0]), value), [0])
        T.buffer_store(high, tirx.Max(T.BufferLoad(high, [0]), value), [0])
    span = T.BufferLoad(high, [0]) - T.BufferLoad(low, [0])
    step = tirx.Select(span > T.float32(0), span / T.float32(cache.levels), T.float32(1))
    scale = T.alloc_buffer((1,), "float32")
    T.buffer_store(scale, step, [0])
    zero = T.alloc_buffer((1,), "float32")
    T.buffer_store(zero, tirx.nearbyint(-T.BufferLoad(low, [0]) / T.BufferLoad(scale, [0])), [0])
    T.buffer_store(named["factors"], T.BufferLoad(scale, [0]), [page, head, which, 0, at])
    T.buffer_store(named["factors"], T.BufferLoad(zero, [0]), [page, head, which, 1, at])

    def code(d: Expr) -> Expr:
        value = T.BufferLoad(given, [token, head, d]) / T.BufferLoad(scale, [0])
        moved = tirx.nearbyint(value) + T.BufferLoad(zero, [0])
        inside = tirx.Max(tirx.Min(moved, T.float32(cache.levels)), T.float32(0))
        return tirx.Cast("uint8", inside)

    if cache.kind == "uint8":
        with T.serial(cache.size) as d:
            put(d, code(d))
        return
    half = cache.size // 2
    with T.serial(half) as d:
        put(d, tirx.bitwise_or(code(d), tirx.shift_left(code(d + half), tirx.const(4, "uint8"))))
