"""Texts grow by whole characters and end before their stops."""

from __future__ import annotations

import codecs
import random
from typing import Any

import pytest

from edgeinfer.errors import DamagedError
from edgeinfer.runtime.llm.text import GrowingText
from edgeinfer.runtime.llm.vocabulary import Vocabulary, vocabulary_of

BYTES = Vocabulary((*(bytes([b]) for b in range(256)), b"<end>"), frozenset({256}), 0)


def grown(
    text: bytes | list[int], *stops: str, include: bool = False, skip: bool = True
) -> list[str]:
    growing = GrowingText(BYTES, stops, include_stop=include, skip_special=skip)
    found = []
    for token in text:
        found.append(growing.add(token))
        if growing.stopped:
            return found
    return [*found, growing.end()]


def test_characters_come_whole() -> None:
    assert grown("a🙂é".encode()) == ["a", "", "", "", "🙂", "", "é", ""]


def test_cut_character_at_the_end_is_left_out() -> None:
    assert "".join(grown("ok🙂".encode()[:-1])) == "ok"


def test_texts_are_those_of_all_bytes_together() -> None:
    """However bytes are cut into tokens, whole characters or not."""
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choice("aé🙂\u0301 漢") for _ in range(8)).encode()
        if rng.random() < 0.5:
            at = rng.randrange(len(text))
            text = text[:at] + bytes([rng.randrange(256)]) + text[at:]
        pieces: list[bytes] = []
        while text:
            size = rng.randint(1, 5)
            pieces, text = [*pieces, text[:size]], text[size:]
        known = Vocabulary(tuple(pieces), frozenset(), 0)
        growing = GrowingText(known, (), include_stop=False, skip_special=True)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token, piece in enumerate(pieces):
            assert growing.add(token) == decoder.decode(piece)


def test_bytes_that_are_no_text_are_marked() -> None:
    assert "".join(grown(b"a\xff\xf0\x9fb")) == "a\ufffd\ufffdb"


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    assert "".join(grown([65, 256, 66])) == "AB"
    assert "".join(grown([65, 256, 66], skip=False)) == "A<end>B"


def test_stop_is_held_back_until_it_is_clear() -> None:
    assert grown(b"xaby", "abc") == ["x", "", "", "aby", ""]
    assert grown(b"xabc", "abc") == ["x", "", "", ""]
    assert grown(b"xabc", "abc", include=True) == ["x", "", "", "abc"]


def test_earliest_stop_ends() -> None:
    assert "".join(grown(b"one two", "two", "ne")) == "o"
    # Both begin at one place.
    growing = GrowingText(BYTES, ("a", "ab"), include_stop=False, skip_special=True)
    assert growing.add(ord("a")) == ""
    assert growing.stopped == "a"


def test_what_was_held_back_comes_at_the_end() -> None:
    assert "".join(grown(b"xab", "abc")) == "xab"


def test_stop_of_characters_that_are_cut() -> None:
    assert "".join(grown("ja 🙂 nein".encode(), "🙂")) == "ja "


@pytest.mark.parametrize("seed", range(200))
def test_any_text_with_any_stops(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab🙂") for _ in range(rng.randint(0, 30)))
    stops = ["".join(rng.choice("ab🙂") for _ in range(rng.randint(1, 4))) for _ in range(3)]
    whole = text.encode()
    cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(8))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    vocabulary = Vocabulary(tuple(parts), frozenset(), 0)
    growing = GrowingText(vocabulary, stops, include_stop=False, skip_special=True)
    found = ""
    for token in range(len(parts)):
        found += growing.add(token)
        # Nothing is given out that a stop could take back.
        assert not any(found.endswith(s[:i]) and i == len(s) for s in stops for i in range(1, 5))
        assert text.startswith(found)
        if growing.stopped:
            break
    else:
        found += growing.end()
    places = [text.find(stop) for stop in stops if stop in text]
    if growing.stopped:
        # A piece may hold several stops; the first that was complete ends the text.
        assert text[len(found) :].startswith(growing.stopped)
        assert not any(stop in found for stop in stops)
    else:
        assert not places
        assert found == text


def _decoding(*steps: dict[str, Any]) -> dict[str, Any]:
    decoder = {"type": "Sequence", "decoders": list(steps)}
    return {"model": {"vocab": {"a": 0, "ab": 1}}, "decoder": decoder}


def test_a_decoder_that_makes_tokens_longer_has_a_bound() -> None:
    """27 steps of a token of one character made 134 MB."""
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    assert vocabulary_of(_decoding(*[twice] * 5), 2).bytes[0] == b"a" * 32
    with pytest.raises(DamagedError, match=r"its decoder makes 'a+' ever longer"):
        vocabulary_of(_decoding(*[twice] * 27), 2)
    with pytest.raises(DamagedError, match="65 steps, at most 64 are read"):
        vocabulary_of(_decoding(*[{"type": "Fuse"}] * 65), 2)


@pytest.mark.parametrize("start", [10**9, -1, "1", 1.5, None])
def test_spaces_that_are_taken_away_have_a_bound(start: object) -> None:
    strip = {"type": "Strip", "content": " ", "start": start, "stop": 0}
    with pytest.raises(DamagedError, match="step Strip takes up to 64 spaces away"):
        vocabulary_of(_decoding(strip), 2)
