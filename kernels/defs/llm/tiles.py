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

_WEIGHTS, _SUMS = 2, 3
"""Numbers of tiles; those of vectors come before, one for each group of a step."""


def _call(name: str, *arguments: Any) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _number(tile: int) -> Expr:
    return tirx.const(tile, "int8")


def _place(buffer: Buffer, *index: Any) -> Expr:
    return tirx.address_of(T.BufferLoad(buffer, list(index)))


def _words(form: Form) -> int:
    """Words of four neighbours that share a scale, in one step."""
    return min(form.group, STEP) // 4


@contextmanager
def configured(form: Form) -> Iterator[dict[str, Buffer]]:
    """Give tiles their sizes, as a thread has to before it uses any, and take them back.

    Yields:
        What tiles are filled from and emptied to, by name. It is too large for the stack, where it
        would not begin at a line of memory.
    """
    words = _words(form)
    sizes = {tile: (WIDTH, 4 * words) for tile in range(_WEIGHTS)}
    sizes |= {_WEIGHTS: (words, _BYTES), _SUMS: (WIDTH, _BYTES)}
    asked = T.alloc_buffer((_BYTES,), "uint8")
    store(asked, [0], splat(tirx.const(0, "uint8"), _BYTES), _BYTES)
    T.buffer_store(asked, tirx.const(1, "uint8"), [0])
    for tile, (rows, columns) in sizes.items():
        # Bytes of a row have two bytes each from 16 on, rows one from 48 on.
        T.buffer_store(asked, tirx.const(columns, "uint8"), [16 + 2 * tile])
        T.buffer_store(asked, tirx.const(rows, "uint8"), [48 + tile])
    _call("ldtilecfg", _place(asked, 0))
    yield {
        "unpacked": T.alloc_buffer((WIDTH, _BYTES), "uint8"),
        "whole": T.alloc_buffer((WIDTH, WIDTH), "int32"),
    }
    _call("tilerelease")


def take_vectors(form: Form, columns: int, words: Buffer, first: Expr, g: Expr) -> None:
    """Load a step of the vectors of sixteen tokens from the first one on."""
    each = _words(form)
    for part in range(STEP // 4 // each):
        place = _place(words, first, g, part * each)
        _call("tileloadd64", _number(part), place, tirx.const(columns, "int64"))


def take_weights(form: Form, weights: list[Expr], unpacked: Buffer) -> None:
    """Keep a step of sixteen rows without the form's zero."""
    zero = splat(tirx.const(form.zero, "uint8"), _BYTES)
    for j, weight in enumerate(weights):
        store(unpacked, [j, 0], weight - zero if form.zero else weight, _BYTES)


def multiply(form: Form, part: int, unpacked: Buffer, whole: Buffer) -> list[Expr]:
    """Sums of sixteen rows for each token, over one of the step's groups."""
    apart = tirx.const(_BYTES, "int64")
    place = _place(unpacked, part * _words(form), 0)
    _call("tileloadd64", _number(_WEIGHTS), place, apart)
    _call("tilezero", _number(_SUMS))
    _call("tdpbssd", _number(_SUMS), _number(part), _number(_WEIGHTS))
    _call("tilestored64", _number(_SUMS), _place(whole, 0, 0), apart)
    return [load(whole, [token, 0], WIDTH) for token in range(WIDTH)]
