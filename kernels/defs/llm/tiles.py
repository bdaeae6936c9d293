"""Products of bytes by AMX tiles: sixteen rows times the vectors of sixteen tokens at once.

Rows of weights lie as tiles want them, four neighbours of each of sixteen rows side by side. Zeros
are subtracted from weights where these are unpacked, so whole sums are those of other instructions
to the bit, and what follows them is the same arithmetic in the same order.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, load, splat, store
from edgeinfer.kernels.defs.llm.form import STEP, Form

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 16
"""Tokens at once; as many rows lie side by side."""

_BYTES = 64
"""Of a row of a tile, and of all of what tiles are configured by."""

_WEIGHTS, _SUMS, _MOST = 2, 3, 2
"""Numbers of tiles, and how many there are of sums; those of vectors come before, one for each
group of a step. There are tiles for more sums, but those of two batches would take more than 4 KB,
and a load waits for a store before it that lies a multiple of 4 KB away."""


def _call(name: str, *arguments: Any) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _number(tile: int) -> Expr:
    return tirx.const(tile, "int8")


def _place(buffer: Buffer, *index: Any) -> Expr:
    return tirx.address_of(T.BufferLoad(buffer, list(index)))


def _words(form: Form) -> int:
    """Words of four neighbours that share a scale, in one step."""
    return min(form.group, STEP) // 4


def _parts(form: Form) -> int:
    return STEP // 4 // _words(form)


def steps_together(form: Form, columns: int) -> int:
    """Steps whose sums are under way at once."""
    most = _MOST // _parts(form)
    return next(n for n in range(most, 0, -1) if columns // STEP % n == 0)


@contextmanager
def configured(form: Form, columns: int, runs: int) -> Iterator[dict[str, Buffer]]:
    """Give tiles their sizes, as a thread has to before it uses any.

    Those that it had are given back in the end: libraries that use tiles, too, may ask for theirs
    once a thread.

    Yields:
        Memory that tiles are filled from and emptied to, by name: bytes of so many runs of rows,
        and sums of the steps that are under way and of those before. It is too large for the stack,
        where it would not begin at a line of memory.
    """
    words = _words(form)
    sizes = dict.fromkeys(range(_WEIGHTS), (WIDTH, 4 * words))
    sizes |= {_WEIGHTS: (words, _BYTES)}
    sizes |= {_SUMS + n: (WIDTH, _BYTES) for n in range(_MOST)}
    before, asked = (T.alloc_buffer((_BYTES,), "uint8") for _ in range(2))
    for made in (before, asked):
        # TVM keeps no more of a buffer than what is written or read by itself.
        store(made, [0], splat(tirx.const(0, "uint8"), _BYTES), _BYTES)
    T.buffer_store(asked, tirx.const(1, "uint8"), [0])
    for tile, (rows, wide) in sizes.items():
        # Bytes of a row have two bytes each from 16 on, rows one from 48 on.
        T.buffer_store(asked, tirx.const(wide, "uint8"), [16 + 2 * tile])
        T.buffer_store(asked, tirx.const(rows, "uint8"), [48 + tile])
    _call("sttilecfg", _place(before, 0))
    _call("ldtilecfg", _place(asked, 0))
    together = 2 * steps_together(form, columns) * _parts(form)
    yield {
        "unpacked": T.alloc_buffer((runs, columns // 4, _BYTES), "uint8"),
        "whole": T.alloc_buffer((together, WIDTH, WIDTH), "int32"),
    }
    _call("ldtilecfg", _place(before, 0))


def unpack(form: Form, weights: list[Expr], unpacked: Buffer, run: int, g: Expr) -> None:
    """Keep a step of sixteen rows without the form's zero."""
    zero = splat(tirx.const(form.zero, "uint8"), _BYTES)
    for j, weight in enumerate(weights):
        value = weight - zero if form.zero else weight
        store(unpacked, [run, g * (STEP // 4) + j, 0], value, _BYTES)


def multiply(
    form: Form, columns: int, named: dict[str, Buffer], run: int, first: Expr, batch: Expr
) -> None:
    """Sum the steps of a batch, over sixteen rows for each of sixteen tokens from the first on."""
    steps, parts, words = steps_together(form, columns), _parts(form), _words(form)
    apart = tirx.const(_BYTES, "int64")
    for at in range(steps):
        g = batch * steps + at
        for part in range(parts):
            sums = at * parts + part
            place = _place(named["words"], first, g, part * words)
            _call("tileloadd64", _number(part), place, tirx.const(columns, "int64"))
            place = _place(named["unpacked"], run, g * (STEP // 4) + part * words, 0)
            _call("tileloadd64", _number(_WEIGHTS), place, apart)
            _call("tilezero", _number(_SUMS + sums))
            _call("tdpbssd", _number(_SUMS + sums), _number(part), _number(_WEIGHTS))
            place = _place(named["whole"], _side(form, columns, batch) + sums, 0, 0)
            _call("tilestored64", _number(_SUMS + sums), place, apart)


def _side(form: Form, columns: int, batch: Expr) -> Expr:
    """Where sums of a batch begin: there is room for those of two."""
    return batch % 2 * (steps_together(form, columns) * _parts(form))


def summed(form: Form, columns: int, whole: Buffer, batch: Expr, at: int, part: int) -> list[Expr]:
    """Sums of sixteen rows for each token, over a group of a batch's step."""
    place = _side(form, columns, batch) + at * _parts(form) + part
    return [load(whole, [place, token, 0], WIDTH) for token in range(WIDTH)]
