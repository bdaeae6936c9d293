"""Products of two tokens at once, by instructions that multiply two rows by two vectors.

Sums of integers are exact, so they are those of one token after the other.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, load, splat, store
from edgeinfer.kernels.defs.llm.steps import held, zeros

_ROWS = 4
"""Rows side by side: two for each instruction."""


def zipped(weights: list[Buffer]) -> list[tuple[Buffer, Buffer]]:
    """Eight neighbours of two rows each, of the first two rows and of the others."""
    made = []
    for one, other in zip(weights[::2], weights[1::2], strict=True):
        words = [tirx.reinterpret("int32x4", load(v, [0], 4 * _ROWS)) for v in (one, other)]
        both = (_chosen(words, order) for order in ((0, 4, 1, 5), (2, 6, 3, 7)))
        made.append((held(next(both), 4, "int32"), held(next(both), 4, "int32")))
    return made


def multiplied(
    parts: list[tuple[Buffer, Buffer]], words: Buffer, token: Expr, place: tuple[Expr, int]
) -> tuple[Expr, Expr]:
    """Sums of four rows for a token, and for the next one.

    Args:
        parts: what ``zipped`` gives for eight columns each.
        words: (tokens, steps, words) of four bytes.
        token: the first of both.
        place: step, and the first of its words.
    """
    sums = [zeros(4, "int32") for _ in "ab"]
    step, first = place
    for at, rows in enumerate(parts):
        given = [load(words, [token + k, step, first + 2 * at], 2) for k in (0, 1)]
        value = tirx.reinterpret("int8x16", _chosen(given, (0, 1, 2, 3)))
        for total, weight in zip(sums, rows, strict=True):
            signed = tirx.reinterpret("int8x16", load(weight, [0], 4))
            name, before = "llvm.aarch64.neon.smmla.v4i32.v16i8", load(total, [0], 4)
            more = T.call_llvm_pure_intrin("int32x4", name, before, signed, value)
            store(total, [0], more, 4)
    both = [load(total, [0], 4) for total in sums]
    return _chosen(both, (0, 2, 4, 6)), _chosen(both, (1, 3, 5, 7))


def _chosen(vectors: list[Expr], order: tuple[int, ...]) -> Expr:
    return tirx.Shuffle(vectors, [T.int32(i) for i in order])


def added(sums: Expr, start: Expr | None) -> Expr:
    """Sums and what they begin with."""
    return sums if start is None else sums + splat(start, _ROWS)
