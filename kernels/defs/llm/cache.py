"""Keys and values in pages, as the kernels of a step take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.attention import PAGE
from edgeinfer.kernels.defs.emit import Buffer, Expr, load, registers, splat, store
from edgeinfer.kernels.defs.llm.steps import across, held, larger, smaller

TABLE = 1 << 24
"""Entries of all sequences' tables."""

KINDS = ("float16", "uint8", "float32")

_LEVELS = 255


@dataclass(frozen=True, slots=True)
class Pages:
    """The cache of one layer.

    Keys are (pages, heads, elements, tokens of a page), values (pages, heads, tokens, elements);
    with 8 bits ``factors`` are (pages, heads, key or value, scale or zero, tokens) float32.

    Attributes:
        heads: of keys and values.
        size: elements of a head, a multiple of 16.
        kind: ``float16``, ``uint8`` or ``float32``.
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
        return self.kind == "uint8"

    def buffers(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """What kernels take of it, by name."""
        made: dict[str, tuple[tuple[int, ...], str]] = {
            "k": ((self.most, self.heads, self.size, PAGE), self.kind),
            "v": ((self.most, self.heads, PAGE, self.size), self.kind),
        }
        if self.quantized:
            made["factors"] = ((self.most, self.heads, 2, 2, PAGE), "float32")
        return made


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
    page, to, at = place
    target, kind = named["v" if which else "k"], pages.kind

    def line(i: Expr) -> Expr:
        return load(named["q"], [token, head, i * 16], 16)

    def put(i: Expr, value: Expr) -> None:
        if which:
            store(target, [page, to, at, i * 16], value, 16)
            return
        kept = registers(16, kind)
        store(kept, [0], value, 16)
        for lane in range(16):
            T.buffer_store(target, T.BufferLoad(kept, [lane]), [page, to, i * 16 + lane, at])

    if not pages.quantized:
        with T.serial(pages.size // 16) as i:
            put(i, line(i) if kind == "float32" else tirx.Cast("float16x16", line(i)))
        return
    scale, zero = _scale(pages, line)
    for i, factor in enumerate((scale, zero)):
        T.buffer_store(named["factors"], T.BufferLoad(factor, [0]), [page, to, which, i, at])
    most, none = splat(T.float32(_LEVELS), 16), splat(T.float32(0), 16)
    with T.serial(pages.size // 16) as i:
        steps = tirx.nearbyint(line(i) / splat(T.BufferLoad(scale, [0]), 16))
        inside = tirx.Max(tirx.Min(steps + splat(T.BufferLoad(zero, [0]), 16), most), none)
        put(i, tirx.Cast("uint8x16", inside))


def _scale(pages: Pages, line: Callable[[Expr], Expr]) -> tuple[Buffer, Buffer]:
    """Scale and zero of one token's elements; zero itself is always among the levels."""
    low, high = (held(splat(T.float32(0), 16), 16) for _ in range(2))
    with T.serial(pages.size // 16) as i:
        store(low, [0], tirx.Min(load(low, [0], 16), line(i)), 16)
        store(high, [0], tirx.Max(load(high, [0], 16), line(i)), 16)
    least = held(across(load(low, [0], 16), 16, smaller))
    most = held(across(load(high, [0], 16), 16, larger))
    extent = held(T.BufferLoad(most, [0]) - T.BufferLoad(least, [0]))
    whole = T.BufferLoad(extent, [0])
    scale = held(tirx.Select(whole > T.float32(0), whole / T.float32(_LEVELS), T.float32(1)))
    below = T.float32(0) - T.BufferLoad(least, [0])
    return scale, held(tirx.nearbyint(below / T.BufferLoad(scale, [0])))
