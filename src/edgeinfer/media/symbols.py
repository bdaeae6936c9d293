"""A text to the ids of a ``SymbolInput`` record, by a table of its own."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgeinfer.bounded import parse_json
from edgeinfer.errors import DamagedError, InputError
from edgeinfer.records import dataclass
from edgeinfer.types import Array, SymbolInput

_TABLES = ("phoneme_id_map", "vocab")
"""Where a file that says more has the table: Piper's and Kokoro's."""

_MOST_IDS, _LARGEST = 16, 1 << 31
"""Ids of one symbol, and what each is below."""

_TOLD = 20
"""SymbolTable that a text may name in an error or a result."""

_PER_SYMBOL = 4
"""Characters of a text that are looked at for each symbol that is allowed."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text as a model takes it.

    Attributes:
        ids: (1, ids), int64.
        left_out: symbols without an id, each once.
    """

    ids: Array
    left_out: tuple[str, ...]

    def field(self, name: str) -> Array:
        """Return what an input takes: ``ids``, ``mask`` or ``length``."""
        match name:
            case "mask":
                return np.ones_like(self.ids)
            case "length":
                return np.array([self.ids.shape[1]], np.int64)
            case _:
                return self.ids


class SymbolTable:
    """The symbols of one vocabulary file.

    Args:
        vocabulary: its contents.
        record: how a text is read.

    Raises:
        DamagedError: the file is no such table, or lacks a mark.
    """

    def __init__(self, vocabulary: bytes, record: SymbolInput) -> None:
        self._record = record
        try:
            self._table = _table(parse_json(vocabulary), record.marks)
        except (ValueError, TypeError) as e:
            raise DamagedError(f"pipeline/{record.vocabulary}: no table of symbols: {e}") from e

    def parts(self, text: str) -> list[Encoded]:
        """Return the ids of what is said at once: each sentence, or the whole text.

        Raises:
            InputError: it is no text, too long, or has no symbol, or one that must be known.
            NotAvailableError: its phonemes are requested, and what makes them is not installed.
        """
        if not isinstance(text, str):
            raise InputError("text", "a str", type(text).__name__)
        if len(text) > _PER_SYMBOL * self._record.most:
            self._refuse_length(len(text))
        if self._record.espeak is None:
            return [self.encode(text)]
        from edgeinfer.media.phonemes import phonemes

        found = [self.encode(said) for said in phonemes(text, self._record.espeak)]
        if not found:
            raise InputError("text", "a word", repr(text[:_TOLD]))
        return found

    def encode(self, text: str) -> Encoded:
        """Return the ids of symbols.

        Raises:
            InputError: there are too many or none, or one that must be known is not.
        """
        record = self._record
        if record.normal != "none":
            text = unicodedata.normalize(record.normal, text)
        known, left_out = self._known(text)
        if record.trim:
            known = known.strip()
        if len(known) > record.most:
            self._refuse_length(len(known))
        ids = [*self._ids(known)]
        if not ids:
            raise InputError("text", "a symbol that the voice knows", repr(text[:_TOLD]))
        return Encoded(np.array([ids], np.int64), left_out)

    def _known(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Return what has an id, lowered where that helps, and what has none."""
        record, table = self._record, self._table
        low = (c.lower() if record.lower and c not in table else c for c in text)
        symbols = "".join(low)
        left_out = tuple(dict.fromkeys(c for c in symbols if c not in table))[:_TOLD]
        if left_out and record.unknown == "refuse":
            listed = ", ".join(f"{c!r} (U+{ord(c):04X})" for c in left_out)
            raise InputError("text", "symbols that the voice knows", listed)
        return "".join(c for c in symbols if c in table), left_out

    def _ids(self, text: str) -> Iterator[int]:
        """Yield the ids of marks, and of the pieces between them."""
        record = self._record
        for is_mark, piece in itertools.groupby(text, lambda c: c in record.marks):
            if not is_mark:
                yield from record.begin
            for symbol in piece:
                yield from self._table[symbol]
                if not is_mark:
                    yield from record.after
            if not is_mark:
                yield from record.end

    def _refuse_length(self, count: int) -> None:
        raise InputError(
            "text", f"at most {self._record.most} symbols", str(count), "say it in parts"
        )


def _table(read: Any, marks: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the ids of each symbol.

    Raises:
        TypeError: it is no table.
        ValueError: it has ids that cannot be.
    """
    if not isinstance(read, dict):
        raise TypeError("expected a JSON object")
    if read.get("vowel_clusters"):
        raise ValueError("vowels are joined by its vowel_clusters, which is not built")
    nested = [read[name] for name in _TABLES if isinstance(read.get(name), dict)]
    found = {}
    for symbol, given in (nested[0] if nested else read).items():
        ids = given if isinstance(given, list) else [given]
        if not 1 <= len(ids) <= _MOST_IDS or any(
            type(i) is not int or not 0 <= i < _LARGEST for i in ids
        ):
            raise ValueError(f"{symbol[:_TOLD]!r} has no id, or one that is none")
        found[symbol] = tuple(ids)
    for mark in marks:
        if mark not in found:
            raise ValueError(f"no id for the mark {mark!r}")
    return found
