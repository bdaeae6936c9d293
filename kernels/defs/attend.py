"""Attention of a few new tokens to many, whose keys and values lie in one piece.

The softmax is computed block by block with a running largest score, as in ``attention``; each key
and value is read once for all rows that share it, and none behind the last token that is seen.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import math
from edgeinfer.kernels.defs.emit import Buffer, Expr, function, load, loop, registers, splat, store
from edgeinfer.records import dataclass

BLOCK = 16
"""Tokens between two corrections of the sums; elements of a vector."""

_ROWS = 8
"""Rows that read keys and values together."""

_HELD = 8
"""Sums that stay in registers: the more of a row they are, the longer the runs of memory."""

_LOWEST = -3.4028234e38


@dataclass(frozen=True, slots=True)
class Short:
    """One size.

    Attributes:
        batch: sequences.
        heads: Heads of keys and values.
        group: heads of queries that share one of them.
        tokens: new ones of a sequence, the last that there are.
        slots: Tokens for which the keys and values have room.
        size: Size of a head in queries and keys, a multiple of 16.
        width: Width of a head in values, likewise.
        scale: Scale of the products.
        causal: each token sees itself and those before it.
        counted: tokens of each sequence come with a call; otherwise every place holds one, and new
            tokens are the first.
        parallel: heads are shared out among threads.

    Raises:
        ValueError: no kernel has that size.
    """

    batch: int
    heads: int
    group: int
    tokens: int
    slots: int
    size: int
    width: int
    scale: float
    causal: bool
    counted: bool
    parallel: bool = False

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("batch", "heads", "group", "tokens", "slots"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: a count")
        for name in ("size", "width"):
            if getattr(self, name) < 1 or getattr(self, name) % BLOCK:
                raise ValueError(f"{name} {getattr(self, name)}: a multiple of {BLOCK}")

    @property
    def rows(self) -> int:
        """Of queries that read the same keys."""
        return self.group * self.tokens


def attend(what: Short) -> tirx.PrimFunc:
    """Attend.

    The kernel takes ``q`` (float32, (batch * heads, rows, size), a head's tokens side by side),
    ``k`` and ``v`` (float32, (batch * heads, tokens, size or width)), with ``counted`` ``length``
    (int32, (batch,)), and ``out`` (float32, (batch * heads, rows, width)). Lengths below zero or
    above the positions count as these. A row that sees nothing gets zeros.
    """
    count = what.batch * what.heads
    buffers: dict[str, tuple[tuple[int, ...], str]] = {
        "q": ((count, what.rows, what.size), "float32"),
        "k": ((count, what.slots, what.size), "float32"),
        "v": ((count, what.slots, what.width), "float32"),
    }
    if what.counted:
        buffers["length"] = ((what.batch,), "int32")
    buffers["out"] = ((count, what.rows, what.width), "float32")

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        with loop(count, what.parallel) as head:
            for first in range(0, what.rows, _ROWS):
                rows = range(first, min(first + _ROWS, what.rows))
                _Pass(what, named, head, list(rows)).write()

    return function("attend", buffers, body)


class _Pass:
    """A few rows over all tokens that any of them sees."""

    def __init__(self, what: Short, named: dict[str, Buffer], head: Expr, rows: list[int]) -> None:
        self.what, self.named, self.head, self.rows = what, named, head, rows
        self.best, self.total, self.shrink = (registers(len(rows)) for _ in range(3))
        self.scores = registers(len(rows) * BLOCK)
        slots = T.int32(what.slots)
        self.length: Expr = slots
        if what.counted:
            held = T.BufferLoad(named["length"], [head // what.heads])
            self.length = tirx.Max(tirx.Min(held, slots), T.int32(0))
        self.past: Expr = self.length - what.tokens if what.counted else T.int32(0)

    def write(self) -> None:
        """All of it."""
        what, out = self.what, self.named["out"]
        for row, number in enumerate(self.rows):
            T.buffer_store(self.best, T.float32(_LOWEST), [row])
            T.buffer_store(self.total, T.float32(0), [row])
            with T.serial(what.width // BLOCK) as i:
                store(out, [self.head, number, i * BLOCK], splat(T.float32(0), BLOCK), BLOCK)
        seen = max(self._sees(number) for number in self.rows)
        end = tirx.Min(self.past + seen, self.length) if what.causal else self.length
        end = tirx.Max(end, T.int32(0))
        with T.serial(tirx.floordiv(end + (BLOCK - 1), BLOCK)) as block:
            start = block * BLOCK
            count = tirx.Min(end - start, T.int32(BLOCK))
            self._score(start, count)
            for row, number in enumerate(self.rows):
                self._weigh(row, start, self._sees(number), end)
            self._gather(start, count)
        for row, number in enumerate(self.rows):
            total = T.BufferLoad(self.total, [row])
            # The sum is one at least where anything is seen.
            total = tirx.Select(total == T.float32(0), T.float32(1), total)
            with T.serial(what.width // BLOCK) as i:
                place = [self.head, number, i * BLOCK]
                store(out, place, load(out, place, BLOCK) / splat(total, BLOCK), BLOCK)

    def _sees(self, number: int) -> int:
        """How many of the new tokens a row sees."""
        return number % self.what.tokens + 1

    def _score(self, start: Expr, count: Expr) -> None:
        what, q, k = self.what, self.named["q"], self.named["k"]
        for row in range(len(self.rows)):
            store(self.scores, [row * BLOCK], splat(T.float32(_LOWEST), BLOCK), BLOCK)
        with T.serial(count) as t:
            sums = [registers(BLOCK) for _ in self.rows]
            for one in sums:
                store(one, [0], splat(T.float32(0), BLOCK), BLOCK)
            with T.serial(what.size // BLOCK) as d:
                key = load(k, [self.head, start + t, d * BLOCK], BLOCK)
                for number, one in zip(self.rows, sums, strict=True):
                    query = load(q, [self.head, number, d * BLOCK], BLOCK)
                    store(one, [0], load(one, [0], BLOCK) + query * key, BLOCK)
            for row, one in enumerate(sums):
                value = _summed(load(one, [0], BLOCK)) * T.float32(what.scale)
                T.buffer_store(self.scores, value, [row * BLOCK + t])

    def _weigh(self, row: int, start: Expr, sees: int, end: Expr) -> None:
        """Turn a row's scores into weights against the largest score so far."""
        limit = self.past + sees if self.what.causal else end
        tokens = T.ramp(start, 1, BLOCK)
        seen = tokens < T.broadcast(tirx.Min(limit, end), BLOCK)
        none = splat(T.float32(_LOWEST), BLOCK)
        score = tirx.Select(seen, load(self.scores, [row * BLOCK], BLOCK), none)
        store(self.scores, [row * BLOCK], score, BLOCK)
        before = registers(1)
        T.buffer_store(before, T.BufferLoad(self.best, [row]), [0])
        top = _reduced(load(self.scores, [row * BLOCK], BLOCK), tirx.Max)
        T.buffer_store(self.best, tirx.Max(T.BufferLoad(before, [0]), top), [row])
        best = T.BufferLoad(self.best, [row])
        weight = math.exp(load(self.scores, [row * BLOCK], BLOCK) - splat(best, BLOCK))
        # A block of which a row sees nothing would else count with the weight of one.
        weight = tirx.Select(seen, weight, splat(T.float32(0), BLOCK))
        store(self.scores, [row * BLOCK], weight, BLOCK)
        T.buffer_store(self.shrink, math.exp(T.BufferLoad(before, [0]) - best), [row])
        old = T.BufferLoad(self.total, [row]) * T.BufferLoad(self.shrink, [row])
        T.buffer_store(self.total, old + _summed(load(self.scores, [row * BLOCK], BLOCK)), [row])

    def _gather(self, start: Expr, count: Expr) -> None:
        """Add a block's values by their weights."""
        whole = self.what.width // BLOCK
        most = max(1, _HELD // len(self.rows))
        strip = next(n for n in range(min(most, whole), 0, -1) if whole % n == 0)
        with T.serial(whole // strip) as i:
            self._strip(start, count, [i * (strip * BLOCK) + n * BLOCK for n in range(strip)])

    def _strip(self, start: Expr, count: Expr, columns: list[Expr]) -> None:
        """Neighbouring elements of all rows, whose sums stay in registers."""
        out, v = self.named["out"], self.named["v"]
        held = [[registers(BLOCK) for _ in columns] for _ in self.rows]
        for row, (number, sums) in enumerate(zip(self.rows, held, strict=True)):
            shrink = splat(T.BufferLoad(self.shrink, [row]), BLOCK)
            for column, one in zip(columns, sums, strict=True):
                store(one, [0], load(out, [self.head, number, column], BLOCK) * shrink, BLOCK)
        with T.serial(count) as t:
            values = [load(v, [self.head, start + t, column], BLOCK) for column in columns]
            for row, sums in enumerate(held):
                weight = splat(T.BufferLoad(self.scores, [row * BLOCK + t]), BLOCK)
                for value, one in zip(values, sums, strict=True):
                    store(one, [0], load(one, [0], BLOCK) + weight * value, BLOCK)
        for number, sums in zip(self.rows, held, strict=True):
            for column, one in zip(columns, sums, strict=True):
                store(out, [self.head, number, column], load(one, [0], BLOCK), BLOCK)


def _summed(value: Expr) -> Expr:
    return _reduced(value, lambda a, b: a + b)


def _reduced(value: Expr, join: object) -> Expr:
    """Bring a vector down to one number, half by half."""
    width = BLOCK // 2
    while width:
        parts = [tirx.Shuffle([value], [T.int32(i + s) for i in range(width)]) for s in (0, width)]
        value = join(*parts)  # type: ignore[operator]
        width //= 2
    return value
