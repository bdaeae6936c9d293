"""Scores of characters to text."""

import numpy as np
import pytest

from edgeinfer.decode.text import characters, read_text
from edgeinfer.errors import BundleError, RunError
from edgeinfer.heads import ReadText
from edgeinfer.types import Array

HEAD = ReadText("c.txt", space=True)
CHARSET = characters("a\nb\n漢\n".encode(), HEAD)


def scores(path: list[int], value: float = 0.9) -> Array:
    found = np.full((1, len(path), len(CHARSET)), 0.01, np.float32)
    found[0, np.arange(len(path)), path] = value
    return found


def test_charset_has_a_place_for_the_blank_and_the_space() -> None:
    assert CHARSET == ("", "a", "b", "漢", " ")
    last = ReadText("c.txt", blank=2)
    assert characters(b"a\r\nb\r\n", last) == ("a", "b", "")
    # A space may be a line of its own, as may be an ideographic one.
    assert characters("a\n \n\u3000".encode(), ReadText("c.txt")) == ("", "a", " ", "\u3000")
    assert characters(b"\xef\xbb\xbfa\n", ReadText("c.txt")) == ("", "a")


def test_repeats_and_blanks_fall_away() -> None:
    (found,) = read_text(scores([0, 1, 1, 0, 1, 2, 2, 4, 3, 0]), HEAD, CHARSET)
    assert found.text == "aab 漢"
    assert found.score == pytest.approx(0.9)


def test_score_is_the_mean_of_the_characters_that_were_read() -> None:
    given = scores([1, 0, 2])
    given[0, 2, 2] = 0.5
    given[0, 1, 0] = 0.1
    assert read_text(given, HEAD, CHARSET)[0].score == pytest.approx(0.7)


def test_nothing_read_is_no_score() -> None:
    assert read_text(scores([0, 0, 0]), HEAD, CHARSET)[0].score == 0.0
    assert [t.text for t in read_text(np.zeros((2, 0, 5)), HEAD, CHARSET)] == ["", ""]


def test_a_batch() -> None:
    both = np.concatenate([scores([1, 2]), scores([3, 3])])
    assert [t.text for t in read_text(both, HEAD, CHARSET)] == ["ab", "漢"]


def test_wrong_charset() -> None:
    with pytest.raises(
        RunError, match=r"expected \(batch, columns, 5\) scores, received \[1, 2, 4\]"
    ):
        read_text(np.zeros((1, 2, 4)), HEAD, CHARSET)
    with pytest.raises(BundleError, match=r"pipeline/c\.txt: not UTF-8 text"):
        characters(b"\xff\xfe", HEAD)
