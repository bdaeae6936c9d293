"""Keys and values in pages, as the kernels of a step take them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, load, registers, splat, store
from edgeinfer.kernels.defs.llm.steps import across, held, larger, smaller
from edgeinfer.records import dataclass

PAGE = 16
"""Tokens of a page."""

TABLE = 1 << 24
"""Entries of all sequences' tables."""

_LEVELS = {"uint8": 255, "uint4": 15}


@dataclass(frozen=True, slots=True)
class Pages:
    """The cache of one layer.

    Floats: keys are (pages, heads, elements, tokens of a page), values (pages, heads, tokens,
    elements). Integers lie by fours, as instructions multiply them: of keys (pages, heads,
    elements / 4, tokens * 4), of values (pages, heads, tokens / 4, elements * 4); with 4 bits
    elements ``i`` and ``i + size / 2`` share a byte. Then ``factors`` are (pages, heads, key or
    value, scale or zero, tokens) float32.

    Attributes:
        heads: Heads of keys and values.
        size: elements of a head, a multiple of 16, with 4 bits of 32.
        kind: ``float16``, ``uint8``, ``uint4`` or ``float32``.
    """

    heads: int
    size: int
    kind: str

    @property
    def most(self) -> int:
        """Pages that an index of 32 bits reaches."""
        return min(1 << 20, (2**31 - 1) // (self.heads * self.size * PAGE))

    @property
    def quantized(self) -> bool:
        """Whether tokens have scales."""
        return self.kind in _LEVELS

    @property
    def halves(self) -> int:
        """Elements of a byte."""
        return 2 if self.kind == "uint4" else 1

    def buffers(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """What kernels take of it, by name."""
        most, heads, size = self.most, self.heads, self.size
        if not self.quantized:
            return {
                "k": ((most, heads, size, PAGE), self.kind),
                "v": ((most, heads, PAGE, size), self.kind),
            }
        held_size = size // self.halves
        return {
            "k": ((most, heads, held_size // 4, PAGE * 4), "uint8"),
            "v": ((most, heads, PAGE // 4, held_size * 4), "uint8"),
            "factors": ((most, heads, 2, 2, PAGE), "float32"),
        }


def append(
    pages: Pages,
    named: dict[str, Buffer],
    which: int,
    source: tuple[Expr, Expr],
    place: tuple[Expr, Expr, Expr],
) -> None:
    """Write a token's key (0) or value (1) of one head.

    Args:
        pages: the cache.
        named: ``q`` (tokens, heads, size) that holds it, and the cache's buffers.
        which: key or value.
        source: token and head in ``q``.
        place: page, head of the cache, and token of the page.
    """
    token, head = source

    def line(i: Expr) -> Expr:
        return load(named["q"], [token, head, i * 16], 16)

    write = _append_rounded if pages.quantized else _append_floats
    write(pages, named, which, line, place)


def _append_floats(
    pages: Pages,
    named: dict[str, Buffer],
    which: int,
    line: Callable[[Expr], Expr],
    place: tuple[Expr, Expr, Expr],
) -> None:
    page, to, at = place
    with T.serial(pages.size // 16) as i:
        value = line(i) if pages.kind == "float32" else tirx.Cast("float16x16", line(i))
        if which:
            store(named["v"], [page, to, at, i * 16], value, 16)
            return
        kept = registers(16, pages.kind)
        store(kept, [0], value, 16)
        for lane in range(16):
            one = T.BufferLoad(kept, [lane])
            T.buffer_store(named["k"], one, [page, to, i * 16 + lane, at])


def _append_rounded(
    pages: Pages,
    named: dict[str, Buffer],
    which: int,
    line: Callable[[Expr], Expr],
    place: tuple[Expr, Expr, Expr],
) -> None:
    page, to, at = place
    levels = _LEVELS[pages.kind]
    scale, zero = _scale(pages, line, levels)
    for i, factor in enumerate((scale, zero)):
        T.buffer_store(named["factors"], T.BufferLoad(factor, [0]), [page, to, which, i, at])
    most, none = splat(T.float32(levels), 16), splat(T.float32(0), 16)

    def codes(i: Expr) -> Expr:
        steps = tirx.nearbyint(line(i) / splat(T.BufferLoad(scale, [0]), 16))
        inside = tirx.Max(tirx.Min(steps + splat(T.BufferLoad(zero, [0]), 16), most), none)
        return tirx.Cast("uint8x16", inside)

    runs = pages.size // 16 // pages.halves
    with T.serial(runs) as i:
        value = codes(i)
        if pages.halves == 2:
            high = tirx.shift_left(codes(i + runs), splat(tirx.const(4, "uint8"), 16))
            value = tirx.bitwise_or(value, high)
        kept = registers(16, "uint8")
        store(kept, [0], value, 16)
        if which:
            for lane in range(16):
                target = [page, to, at // 4, (i * 16 + lane) * 4 + at % 4]
                T.buffer_store(named["v"], T.BufferLoad(kept, [lane]), target)
        else:
            for word in range(4):
                target = [page, to, i * 4 + word, at * 4]
                store(named["k"], target, load(kept, [word * 4], 4), 4)


def _scale(pages: Pages, line: Callable[[Expr], Expr], levels: int) -> tuple[Buffer, Buffer]:
    """Scale and zero of one token's elements; zero itself is always among the levels."""
    low, high = (held(splat(T.float32(0), 16), 16) for _ in range(2))
    with T.serial(pages.size // 16) as i:
        store(low, [0], tirx.Min(load(low, [0], 16), line(i)), 16)
        store(high, [0], tirx.Max(load(high, [0], 16), line(i)), 16)
    least = held(across(load(low, [0], 16), 16, smaller))
    most = held(across(load(high, [0], 16), 16, larger))
    extent = held(T.BufferLoad(most, [0]) - T.BufferLoad(least, [0]))
    whole = T.BufferLoad(extent, [0])
    scale = held(tirx.Select(whole > T.float32(0), whole / T.float32(levels), T.float32(1)))
    below = T.float32(0) - T.BufferLoad(least, [0])
    return scale, held(tirx.nearbyint(below / T.BufferLoad(scale, [0])))
