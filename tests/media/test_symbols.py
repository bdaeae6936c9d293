"""Ids of symbols: by the rules of VITS, Piper and Kokoro, each by hand; and what is refused."""

import json
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import DamagedError, InputError
from edgeinfer.media.symbols import SymbolTable
from edgeinfer.types import SymbolInput

VITS = {"begin": (0,), "after": (0,), "lower": True, "unknown": "skip", "trim": True}
LETTERS = {"a": 1, "b": 2, "k": 3, " ": 4, "B": 5}
PIPER = {"phoneme_id_map": {"h": [20], "e": [5, 6], "^": [1], "̧": [9], "c": [7]}, "sample_rate": 1}


def ids(text: str, table: Any, **rules: Any) -> list[int]:
    symbols = SymbolTable(json.dumps(table).encode(), SymbolInput("v.json", **rules))
    (part,) = symbols.parts(text)
    return [int(i) for i in part.ids[0]]


def test_blanks_stand_around_every_letter_as_in_vits() -> None:
    assert ids("ab", LETTERS, **VITS) == [0, 1, 0, 2, 0]
    # An upper-case letter that has an id keeps it; white space at the ends goes, after what is
    # unknown has gone.
    assert ids(" ! A Bé!", LETTERS, **VITS) == [0, 1, 0, 4, 0, 5, 0]
    assert ids("ab", LETTERS) == [1, 2]


def test_a_special_token_that_is_a_letter_parts_a_text() -> None:
    """As transformers' tokenizer does it: a piece on each side, and nothing around the letter."""
    rules = VITS | {"marks": ("k",)}
    assert ids("akb", LETTERS, **rules) == [0, 1, 0, 3, 0, 2, 0]
    assert ids("kk", LETTERS, **rules) == [3, 3]
    assert ids("ka", LETTERS, **rules) == [3, 0, 1, 0]


def test_phonemes_by_pipers_table() -> None:
    rules = {"begin": (1, 0), "after": (0,), "end": (2,)}
    assert ids("he", PIPER, **rules) == [1, 0, 20, 0, 5, 6, 0, 2]
    assert ids("ç", PIPER, normal="NFD") == [7, 9]


def test_ids_between_two_ends_by_kokoros_table() -> None:
    assert ids("ab", {"vocab": LETTERS, "n_token": 9}, begin=(0,), end=(0,)) == [0, 1, 2, 0]


def test_what_is_left_out_is_told() -> None:
    symbols = SymbolTable(json.dumps(LETTERS).encode(), SymbolInput("v.json", unknown="skip"))
    assert symbols.encode("a!?!b").left_out == ("!", "?")


def test_a_mask_and_a_length_go_with_the_ids() -> None:
    found = SymbolTable(json.dumps(LETTERS).encode(), SymbolInput("v.json", after=(0,))).encode(
        "ab"
    )
    np.testing.assert_array_equal(found.field("ids"), [[1, 0, 2, 0]])
    np.testing.assert_array_equal(found.field("mask"), [[1, 1, 1, 1]])
    np.testing.assert_array_equal(found.field("length"), [4])
    assert found.field("ids").dtype == found.field("length").dtype == np.int64


@pytest.mark.parametrize(
    ("text", "rules", "told"),
    [
        ("a!", {}, r"symbols that the voice knows, received '!' \(U\+0021\)"),
        ("", VITS, "a symbol that the voice knows, received ''"),
        ("!?", VITS, "a symbol that the voice knows"),
        ("aaaa", {"most": 3}, "at most 3 symbols, received 4; say it in parts"),
        ("!" * 100, {"most": 3, "unknown": "skip"}, "at most 3 symbols, received 100"),
    ],
)
def test_texts_that_are_refused(text: str, rules: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        ids(text, LETTERS, **rules)
    with pytest.raises(InputError, match="expected a str, received list"):
        ids([text], LETTERS, **rules)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        b"[1]",
        b"{",
        b'{"a": -1}',
        b'{"a": []}',
        b'{"a": 1.5}',
        b'{"a": true}',
        b'{"vocab": {"a": "x"}}',
    ],
)
def test_files_that_are_no_tables(content: bytes) -> None:
    with pytest.raises(DamagedError, match=r"pipeline/v\.json: no table of symbols"):
        SymbolTable(content, SymbolInput("v.json"))


def test_a_mark_has_an_id() -> None:
    with pytest.raises(DamagedError, match="no id for the mark 'x'"):
        SymbolTable(json.dumps(LETTERS).encode(), SymbolInput("v.json", marks=("x",)))
