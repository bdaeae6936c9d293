"""Texts to tokens and back, as the tokenizers library does it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from edgeinfer.errors import InputError, LoadError
from edgeinfer.runtime.llm.tokenizer import TextTokenizer
from edgeinfer.runtime.llm.vocabulary import vocabulary_of
from tests.runtime.llm.texts import byte_fallback, byte_level

tokenizers = pytest.importorskip("tokenizers")

HARD = [
    "the cat",
    " leading and trailing ",
    "tabs\tand\nlines\r\n\n\n",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈",
    "مرحبا بالعالم",
    "日本語と中文",
    "e\u0301 and é",
    "<|end|> in a text <0x41>",
    "\u0000\u0001\x7f",
    "a" * 500,
    "",
]
KINDS = pytest.mark.parametrize("make", [byte_level, byte_fallback])


@KINDS
@pytest.mark.parametrize("text", HARD)
def test_tokens_and_texts_are_those_of_the_library(make: Callable[[], str], text: str) -> None:
    library = tokenizers.Tokenizer.from_str(make())
    ours = TextTokenizer(make(), 600, None)
    tokens = library.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) == ours.encode_part(text) == tokens
    assert ours.decode(tokens) == library.decode(tokens)
    whole = library.decode(tokens, skip_special_tokens=False)
    assert ours.decode(tokens, skip_special=False) == whole


@KINDS
def test_any_tokens_decode_as_in_the_library(make: Callable[[], str]) -> None:
    library = tokenizers.Tokenizer.from_str(make())
    ours = TextTokenizer(make(), 600, None)
    rng = random.Random(0)
    for _ in range(300):
        tokens = [rng.randrange(library.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        if make is byte_fallback:
            # The library marks all bytes of a run in which one is wrong.
            tokens = [t for t in tokens if not 131 <= t < 259]
        found, expected = ours.decode(tokens), library.decode(tokens)
        # How many marks broken bytes become is nobody's rule; that they are marked is.
        assert [c for c in found if c != "\ufffd"] == [c for c in expected if c != "\ufffd"]
        assert "\ufffd" in expected or found == expected


@pytest.mark.parametrize("text", ["the cat", "<|start|>the cat", "<|start|><|start|>the cat", ""])
def test_exactly_one_token_begins(text: str) -> None:
    ours = TextTokenizer(byte_level(), 600, 1)
    tokens = ours.encode(text)
    assert tokens[0] == 1
    assert 1 not in tokens[1:]
    assert ours.decode(tokens) == text.replace("<|start|>", "")


def test_model_without_a_begin_gets_none() -> None:
    ours = TextTokenizer(byte_level(), 600, None)
    assert ours.encode("") == []
    assert ours.encode("<|start|><|start|>") == [1, 1]


def test_odd_inputs_are_refused() -> None:
    ours = TextTokenizer(byte_level(), 600, None)
    odd: Any = 5
    with pytest.raises(InputError, match="expected a str, received int"):
        ours.encode(odd)
    with pytest.raises(InputError, match="valid Unicode"):
        ours.encode("half \ud83d of a pair")


def test_vocabulary_larger_than_the_logits_is_refused() -> None:
    with pytest.raises(LoadError, match=r"tokenizer\.json has .* tokens, and the model 300 logits"):
        TextTokenizer(byte_level(), 300, None)


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"model": 5}'])
def test_file_that_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(LoadError, match=r"tokenizer\.json"):
        TextTokenizer(text, 600, None)


def test_decoder_that_is_none_of_bytes_is_refused_with_all_reasons() -> None:
    data = json.loads(byte_level())
    data["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "WordPiece", "prefix": "##", "cleanup": True},
            {"type": "CTC", "pad_token": "", "word_delimiter_token": "|", "cleanup": False},
        ],
    }
    with pytest.raises(LoadError, match="cannot be followed: step WordPiece; step CTC"):
        vocabulary_of(data, 600)
    data["decoder"] = None
    with pytest.raises(LoadError, match="it has no decoder"):
        vocabulary_of(data, 600)


def test_length_limits_of_the_file_do_not_count() -> None:
    library = tokenizers.Tokenizer.from_str(byte_level())
    library.enable_truncation(2)
    library.enable_padding(length=50)
    tokens = TextTokenizer(library.to_str(), 600, None).encode("the cat sat on the mat")
    assert 2 < len(tokens) < 50
