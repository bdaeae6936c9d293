"""How much longer a ``tokenizer.json`` makes a text, and how long it takes, before it is given one.

Its normalizers are a program of a stranger: each of a few lines may double what the one before
left, and the library that runs them ends the process where memory does.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edgeinfer.errors import InputError
from edgeinfer.media.expressions import STEPS, longest_text
from edgeinfer.records import dataclass

MOST = 1024
"""Characters that one of a text may become."""

MOST_ADDED = 1 << 12
"""Characters that may be put before a text, as far as they grow."""

_MOST_MADE = 1 << 22
"""Characters that a text may become; the library keeps some thirty bytes for each."""

MOST_STEPS = 64
"""Normalizers and pre-tokenizers of one file; published ones have up to a dozen."""

_FORMS = {"NFKC": 18.0, "NFKD": 18.0, "NFD": 4.0, "NFC": 3.0, "Lowercase": 3.0}
_FORMS |= {"BertNormalizer": 4.0}
"""Characters that one may become at worst: U+FDFA has 18 in the compatibility forms (Unicode
Standard Annex 15). BERT's takes accents apart, or puts spaces around ideographs."""

MOST_WORDS = 1 << 20
"""Words of a vocabulary, of each of which the library keeps some hundred bytes; published ones have
up to 902,000 (XLM-V)."""

MOST_WORD = 256
"""Characters of a word that WordPiece takes apart; its time grows with their third power."""

MOST_NAME = 1024
"""Characters of one word, or of a special token: the library copies it for each of a text.
Published ones have up to some 300."""

MOST_AFFIX = 64
"""Characters of what is put before or behind each part of a word, and of what stands for words that
there are not, which a text of one letter may become."""

MOST_ENDS = 1 << 12
"""Special tokens that a post-processor may put around texts."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a file's steps may be given.

    Attributes:
        longest: characters of a text that they take in a time and a room that are known.
    """

    longest: int

    def check(self, text: str) -> None:
        """Refuse a text that is longer.

        Raises:
            InputError: it is.
        """
        if len(text) > self.longest:
            raise InputError(
                *("text", f"at most {self.longest} characters", str(len(text))),
                "its tokenizer has rules that may take very long, or much memory, for more",
            )


UNBOUNDED = Bounds(1 << 62)
"""Of rules that are ours."""


def check_growth(tokenizer: Any) -> Bounds:
    """Refuse a file whose steps may make too much of a text, or take too long for a word.

    Args:
        tokenizer: contents of a ``tokenizer.json``.

    Returns:
        What its steps may be given.

    Raises:
        ValueError: they may, or a table of theirs is no base64.
    """
    read: Mapping[str, Any] = tokenizer if isinstance(tokenizer, Mapping) else {}
    total, form, added, expressions = 1.0, 1.0, 0, list[str]()
    for number, step in enumerate(_steps(read.get("normalizer"), read.get("pre_tokenizer"))):
        if number == MOST_STEPS:
            raise ValueError(f"it has more than {MOST_STEPS} normalizers and pre-tokenizers")
        kind = str(step.get("type"))
        if kind in _FORMS:
            # What one form has taken apart, another finds in parts.
            form = max(form, _FORMS[kind])
        else:
            total *= _growth(step)
        if kind == "Replace":
            total, form = total * form, 1.0
        added += _added(step)
        expressions += _expressions(step)
        if total * form > MOST:
            raise ValueError(f"its normalizers make more than {MOST} characters of one")
    total *= form
    if added * total > MOST_ADDED:
        raise ValueError(f"its normalizers put more than {MOST_ADDED} characters before a text")
    model = read.get("model")
    check_size(_size(model, "vocab") + _size(read, "added_tokens"))
    check_size(_size(model, "merges"))
    check_names(_names(model, read.get("added_tokens")))
    _check_affixes(model)
    _check_ends(read.get("post_processor"))
    longest = model.get("max_input_chars_per_word") if isinstance(model, Mapping) else None
    if isinstance(longest, int | float) and longest > MOST_WORD:
        raise ValueError(f"it takes words of {longest:g} characters apart, at most {MOST_WORD}")
    steps = STEPS / (_longest_piece(model) * total)
    return Bounds(int(min(_MOST_MADE / total, longest_text(expressions), steps)))


def check_size(count: int) -> None:
    """Refuse a vocabulary of so many words, before the library is given it.

    Raises:
        ValueError: it has too many.
    """
    if count > MOST_WORDS:
        raise ValueError(f"its vocabulary has {count} entries, at most {MOST_WORDS}")


def check_names(names: Iterable[Any]) -> None:
    """Refuse words and special tokens that are too long to be copied for each of a text.

    Raises:
        ValueError: one is.
    """
    longest = max((len(name) for name in names if isinstance(name, str)), default=0)
    if longest > MOST_NAME:
        raise ValueError(f"it has a word of {longest} characters, at most {MOST_NAME}")


def _names(model: Any, added: Any) -> Iterator[Any]:
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocab, Mapping):
        yield from vocab
    for piece in _listed(vocab):
        # Unigram has each with its score.
        yield piece[0] if isinstance(piece, list) and piece else piece
    for token in _listed(added):
        yield token.get("content") if isinstance(token, Mapping) else token


def _check_affixes(model: Any) -> None:
    for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        size = _size(model, name)
        if size > MOST_AFFIX:
            raise ValueError(f"its {name} has {size} characters, at most {MOST_AFFIX}")


def _check_ends(processor: Any) -> None:
    """Refuse what puts too many special tokens around texts: each place names a list of them."""
    count = 0
    for step in _steps(processor):
        listed = step.get("special_tokens")
        known: Mapping[str, Any] = listed if isinstance(listed, Mapping) else {}
        ends = [step.get("sep"), step.get("cls"), *_tokens(known.values())]
        check_names(e[0] for e in ends if isinstance(e, list) and e)
        check_names(e for e in ends if isinstance(e, str))
        count += max(_ends(step.get(form), known) for form in ("single", "pair"))
    if count > MOST_ENDS:
        raise ValueError(f"it puts {count} special tokens around texts, at most {MOST_ENDS}")


def _ends(places: Any, known: Mapping[str, Any]) -> int:
    """Count the special tokens of the places of one template."""
    read = [p.get("SpecialToken") for p in _listed(places) if isinstance(p, Mapping)]
    named = [str(p.get("id")) for p in read if isinstance(p, Mapping)]
    return sum(max(1, _size(known.get(name), "ids")) for name in named)


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _tokens(listed: Iterable[Any]) -> Iterator[Any]:
    for each in listed:
        yield from _listed(each.get("tokens")) if isinstance(each, Mapping) else ()


def _size(record: Any, name: str) -> int:
    found = record.get(name) if isinstance(record, Mapping) else None
    return len(found) if isinstance(found, list | dict | str) else 0


def _longest_piece(model: Any) -> int:
    """Return how many pieces ``Unigram`` may look at for one character, by the longest of them."""
    pieces = model.get("vocab") if isinstance(model, Mapping) else None
    # Other models have words by name.
    return (
        max((len(str(p[0])) for p in _listed(pieces) if isinstance(p, list) and p), default=1) or 1
    )


def _steps(*waiting: Any) -> Iterator[Mapping[str, Any]]:
    left = list(waiting)
    while left:
        step = left.pop()
        if isinstance(step, Mapping):
            yield step
            for name in ("normalizers", "pretokenizers", "processors"):
                left += _listed(step.get(name))


def _expressions(step: Mapping[str, Any]) -> list[str]:
    pattern = step.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    return [found] if isinstance(found, str) else []


def _added(step: Mapping[str, Any]) -> int:
    """Return how many characters are put before a text."""
    if step.get("type") == "Prepend":
        return len(str(step.get("prepend", "")))
    return int(step.get("type") in ("Metaspace", "ByteLevel"))


def _growth(step: Mapping[str, Any]) -> float:
    """Return how many characters one may become."""
    kind = step.get("type")
    if kind == "Replace":
        size = len(str(step.get("content", "")))
        pattern = step.get("pattern")
        found = pattern.get("String") if isinstance(pattern, Mapping) else None
        # An expression, and an empty text, may match between characters as well.
        return max(1.0, size / len(found)) if found and isinstance(found, str) else 1.0 + size
    if kind == "Precompiled":
        # SentencePiece: the size of a trie in four bytes, the trie, and texts that end with zeros.
        table = base64.b64decode(str(step.get("precompiled_charsmap") or ""))
        texts = table[4 + int.from_bytes(table[:4], "little") :]
        return max(1.0, float(max(map(len, texts.split(b"\0")))))
    return 4.0 if kind == "ByteLevel" else 1.0
