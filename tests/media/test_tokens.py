"""Texts to ids by a vocabulary that travels in the bundle."""

import base64
import json
import time

import numpy as np
import pytest

from edgeinfer.errors import BundleError, InputError
from edgeinfer.media.growth import check_growth
from edgeinfer.media.tokens import Tokenizer
from edgeinfer.types import TextInput

pytest.importorskip("tokenizers")

PIECES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "the",
    "cat",
    "un",
    "##aff",
    "##able",
    "café",
    "cafe",
    ".",
)
VOCABULARY = "\n".join(PIECES).encode()


def ids(text: str, record: TextInput, vocabulary: bytes = VOCABULARY) -> list[int]:
    found: list[int] = Tokenizer(vocabulary, record).encode(text)["ids"][0].tolist()
    return found


def names(numbers: list[int]) -> str:
    return " ".join(PIECES[i] for i in numbers)


def test_word_pieces() -> None:
    record = TextInput("vocab.txt", 32)
    assert names(ids("The UNAFFABLE cat.", record)) == "[CLS] the un ##aff ##able cat . [SEP]"
    assert names(ids("dog", record)) == "[CLS] [UNK] [SEP]"
    assert names(ids("Café", record)) == "[CLS] cafe [SEP]"
    assert names(ids("café", TextInput("vocab.txt", 32, lower=False))) == "[CLS] café [SEP]"
    assert names(ids("", record)) == "[CLS] [SEP]"


def test_long_texts_keep_their_ends_and_short_ones_are_filled() -> None:
    record = TextInput("vocab.txt", 4)
    assert names(ids("the cat the cat the", record)) == "[CLS] the cat [SEP]"
    padded = Tokenizer(VOCABULARY, TextInput("vocab.txt", 5, pad=True)).encode("cat")
    assert names(padded["ids"][0].tolist()) == "[CLS] cat [SEP] [PAD] [PAD]"
    np.testing.assert_array_equal(padded["mask"], [[1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(padded["types"], [[0, 0, 0, 0, 0]])
    assert padded["ids"].dtype == np.int64


def test_byte_pairs_of_a_tokenizer_file() -> None:
    model = {
        "type": "BPE",
        "vocab": {"l": 0, "o": 1, "w": 2, "lo": 3, "low": 4, "e": 5, "r": 6, "er": 7},
        "merges": ["l o", "lo w", "e r"],
    }
    text = json.dumps({"version": "1.0", "model": model, "added_tokens": []})
    record = TextInput("tokenizer.json", 8)
    assert ids("lower", record, text.encode()) == [4, 7]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff"),
        ("vocab.txt", b"a\nb\n"),
        ("vocab.txt", b"\xff\xfe"),
    ],
)
def test_damaged_vocabularies(name: str, content: bytes) -> None:
    with pytest.raises(BundleError, match=rf"pipeline/{name}: no tokenizer or vocabulary \(") as e:
        Tokenizer(content, TextInput(name, 8))
    assert "\n" not in str(e.value)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="expected a str, received bytes"):
        Tokenizer(VOCABULARY, TextInput("vocab.txt", 8)).encode(b"cat")  # type: ignore[arg-type]


def _json(*normalizers: object, split: str = "") -> bytes:
    rule = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "a": 1},
    }
    whole: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": list(normalizers)},
        "model": model,
        "pre_tokenizer": rule if split else None,
        **dict.fromkeys(("truncation", "padding", "post_processor", "decoder")),
    }
    return json.dumps(whole).encode()


def _replace(kind: str, pattern: str, content: str) -> object:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


TABLE = base64.b64encode(b"\0\0\0\0" + b"x" * 2000 + b"\0").decode()


@pytest.mark.parametrize(
    "steps",
    [
        [_replace("String", "a", "aa")] * 11,
        [_replace("Regex", "", "a")] * 11,
        [{"type": "Sequence", "normalizers": [_replace("String", "", "b" * 40)] * 2}],
        [{"type": "Precompiled", "precompiled_charsmap": TABLE}],
        [_replace("String", " ", "\ufdfa"), {"type": "NFKD"}] * 18,
        [_replace("String", "x", "\u0130"), {"type": "NFD"}, {"type": "Lowercase"}] * 8,
        [{"type": "ByteLevel"}] * 6,
    ],
)
def test_what_makes_a_text_grow_without_bound_is_refused(steps: list[object]) -> None:
    with pytest.raises(BundleError, match="make more than 1024 characters of one"):
        Tokenizer(_json(*steps), TextInput("t.json", max_tokens=8))


@pytest.mark.parametrize("kind", [["NFC"], {"a": 1}, None, 3])
def test_a_step_of_no_kind_is_no_bug(kind: object) -> None:
    with pytest.raises(BundleError):
        Tokenizer(_json({"type": kind}), TextInput("t.json", max_tokens=8))
    check_growth({"normalizer": {"type": kind}, "pre_tokenizer": {"type": kind}})


def test_replacements_of_real_tokenizers_are_taken() -> None:
    steps = [_replace("String", "\u2026", "..."), _replace("Regex", " {2,}", " ")] * 3
    record = TextInput("t.json", max_tokens=8)
    assert ids("a", record, _json(*steps, {"type": "Prepend", "prepend": ""})) == [1]


def test_forms_of_real_tokenizers_are_taken() -> None:
    quotes = [_replace("String", "``", '"'), _replace("String", "''", '"')]
    forms = [{"type": kind} for kind in ("NFKD", "StripAccents", "Lowercase", "NFKC")]
    assert check_growth(json.loads(_json(*quotes, *forms))).longest > 200_000
    assert check_growth({"normalizer": {"type": "NFC"}}).longest > 1_000_000
    with pytest.raises(ValueError, match="more than 64 normalizers"):
        check_growth(json.loads(_json(*forms * 17)))


def test_a_line_of_a_vocabulary_ends_with_a_line_feed_alone() -> None:
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "\x85", "cat")
    for ending in ("\n", "\r\n"):
        vocabulary = ending.join((*pieces, "")).encode()
        assert ids("cat", TextInput("vocab.txt", 8), vocabulary) == [2, 6, 3]


def test_vocabularies_of_more_words_than_memory_explains_are_refused() -> None:
    many = b"\n".join([VOCABULARY, *[b"a"] * (1 << 20)])
    with pytest.raises(BundleError, match=r"vocabulary has 10485.. entries, at most 1048576"):
        Tokenizer(many, TextInput("vocab.txt", 8))
    for words in ({"vocab": "a" * 3_000_000}, {"vocab": [], "merges": "a" * 3_000_000}):
        with pytest.raises(ValueError, match="vocabulary has 3000000 entries"):
            check_growth({"model": words})


def test_long_pieces_bound_a_text() -> None:
    """For each character ``Unigram`` looks at as many as its longest piece has: minutes a text."""
    for size, least, most in ((16, 1 << 22, 1 << 22), (1_000, 290_000, 310_000)):
        vocab = [["<unk>", 0.0], ["a" * size, -1.0]]
        longest = check_growth({"model": {"type": "Unigram", "vocab": vocab}}).longest
        assert least <= longest <= most
    some: list[object] = [[[]], [3], [[3, "a"]], "aaa", None]
    for odd in some:
        assert check_growth({"model": {"vocab": odd}}).longest == 1 << 22


ENDS: dict[str, object] = {"single": [{"SpecialToken": {"id": "[S]", "type_id": 0}}] * 100}
ENDS |= {"special_tokens": {"[S]": {"id": "[S]", "ids": [1] * 100, "tokens": ["a"]}}}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"model": {"vocab": {"a" * 1025: 0}}}, "a word of 1025 characters"),
        ({"model": {"vocab": [["a" * 1025, 0.0]]}}, "a word of 1025 characters"),
        ({"added_tokens": [{"id": 0, "content": "a" * 1025}]}, "a word of 1025 characters"),
        ({"model": {"unk_token": "a" * 65}}, "unk_token has 65 characters"),
        ({"model": {"continuing_subword_prefix": "a" * 65}}, "prefix has 65 characters"),
        ({"model": {"end_of_word_suffix": "a" * 65}}, "suffix has 65 characters"),
        ({"post_processor": {"sep": ["a" * 1025, 0]}}, "a word of 1025 characters"),
        (
            {"post_processor": {"special_tokens": {"": {"tokens": ["a" * 1025]}}}},
            "a word of 1025 characters",
        ),
        ({"post_processor": {"processors": [ENDS]}}, "puts 10000 special tokens around texts"),
    ],
)
def test_names_that_are_copied_for_each_token_are_short(wrong: object, why: str) -> None:
    """The library copies the name of each token of a text, and looks pieces up by copies."""
    with pytest.raises(ValueError, match=why):
        check_growth(wrong)


def test_names_of_a_list_of_words_are_short() -> None:
    with pytest.raises(BundleError, match="a word of 1025 characters"):
        Tokenizer(b"\n".join([VOCABULARY, b"a" * 1025]), TextInput("vocab.txt", 8))


def test_words_that_take_long_to_take_apart_are_refused() -> None:
    whole = json.loads(_json())
    whole["model"]["max_input_chars_per_word"] = 1_000_000
    with pytest.raises(BundleError, match=r"takes words of 1e.06 characters apart, at most 256"):
        Tokenizer(json.dumps(whole).encode(), TextInput("t.json", max_tokens=8))


@pytest.mark.parametrize("added", [8, 9, 4096])
def test_no_text_gets_longer_than_the_record_says(added: int) -> None:
    whole = json.loads(_json())
    token = {"id": "[S]", "ids": [1] * added, "tokens": ["a"] * added}
    single = [
        {"SpecialToken": {"id": "[S]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    whole["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"[S]": token},
    }
    content, record = json.dumps(whole).encode(), TextInput("t.json", max_tokens=8)
    if added > 8:
        with pytest.raises(BundleError, match=f"adds {added} tokens to each text, of 8"):
            Tokenizer(content, record)
    else:
        assert ids("a a a", record, content) == [1] * 8


@pytest.mark.parametrize(
    ("split", "why"),
    [
        ("(a+)+$", "repeats a repetition without an end"),
        ("(?~abc)", "whose time is not known"),
        ("(?:a|b\\g<0>)", "whose time is not known"),
        ("(" * 100 + ")" * 100, "more than 64 levels"),
        ("[a", "lacks a bracket"),
        ("a" * 70_000, "more than 65536 characters"),
    ],
)
def test_an_expression_whose_time_has_no_bound_is_an_error(split: str, why: str) -> None:
    with pytest.raises(BundleError, match=why):
        Tokenizer(_json(split=split), TextInput("t.json", max_tokens=8))


@pytest.mark.sweep
def test_a_text_is_no_longer_than_its_expressions_allow() -> None:
    """It took minutes for a few thousand characters, and eight such steps eight times that."""
    tokenizer = Tokenizer(_json(split="(?m:(.)*(.)*(?!))"), TextInput("t.json", max_tokens=8))
    start = time.process_time()
    assert tokenizer.encode("a" * 300)["ids"].size
    with pytest.raises(InputError, match=r"text.*at most 1216 characters.*3600"):
        tokenizer.encode("the quick brown fox " * 180)
    assert time.process_time() - start < 20


def test_what_is_put_before_a_text_grows_with_it() -> None:
    steps = [{"type": "Prepend", "prepend": "a" * 1_000_000}, _replace("String", "a", "a" * 1000)]
    with pytest.raises(BundleError, match="put more than 4096 characters before a text"):
        Tokenizer(_json(*steps), TextInput("t.json", max_tokens=8))


def test_a_text_that_grows_is_no_longer_than_there_is_room_for() -> None:
    growing = _json(_replace("String", "a", "a" * 1000))
    tokenizer = Tokenizer(growing, TextInput("t.json", max_tokens=100_000))
    with pytest.raises(InputError, match="at most 4194 characters"):
        tokenizer.encode("a" * 100_000)


@pytest.mark.parametrize(
    "text",
    ["the cat un. " * 20_000, "unaffable" * 5_000, "cat" * 10_000],
    ids=["words", "pieces", "word"],
)
def test_long_texts_are_cut_before_all_of_it_is_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four megabytes had all their tokens made, of which six were kept."""
    tokenizer = Tokenizer(VOCABULARY, TextInput("vocab.txt", 6, pad=True))
    whole = tokenizer._inner.encode(text).ids
    seen: list[int] = []

    class Watched:
        def encode(self, part: str) -> object:
            seen.append(len(part))
            return inner.encode(part)

        def encode_batch(self, parts: list[str]) -> object:
            return [self.encode(part) for part in parts]

    inner = tokenizer._inner
    monkeypatch.setattr(tokenizer, "_inner", Watched())
    assert tokenizer.encode(text)["ids"][0].tolist() == whole
    if " " in text:
        assert sum(seen) < 2_000


def test_endless_word_is_refused() -> None:
    tokenizer = Tokenizer(VOCABULARY, TextInput("vocab.txt", 6, pad=True))
    with pytest.raises(InputError, match="6 tokens that its first 196608 characters settle"):
        tokenizer.encode("a" * 4_000_000)
