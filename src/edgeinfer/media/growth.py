"""How much longer a ``tokenizer.json`` makes a text, and how long it takes, before it is given one.

Its normalizers are a program of a stranger: each of a few lines may double what the one before
left, and the library that runs them ends the process where memory does.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 1024
"""Characters that one of a text may become."""


MOST_WORD = 256
"""Characters of a word that WordPiece takes apart; its time grows with their third power."""


def check_growth(tokenizer: Any) -> None:
    """Refuse a file whose steps may make too much of a text, or take too long for a word.

    Args:
        tokenizer: contents of a ``tokenizer.json``.

    Raises:
        ValueError: they may, or a table of theirs is no base64.
    """
    read: Mapping[str, Any] = tokenizer if isinstance(tokenizer, Mapping) else {}
    total = 1.0
    for step in _steps(read.get("normalizer"), read.get("pre_tokenizer")):
        total *= _growth(step)
        if total > MOST:
            raise ValueError(f"its normalizers make more than {MOST} characters of one")
    model = read.get("model")
    longest = model.get("max_input_chars_per_word") if isinstance(model, Mapping) else None
    if isinstance(longest, int | float) and longest > MOST_WORD:
        raise ValueError(f"it takes words of {longest:g} characters apart, at most {MOST_WORD}")


def _steps(*waiting: Any) -> Iterator[Mapping[str, Any]]:
    left = list(waiting)
    while left:
        step = left.pop()
        if isinstance(step, Mapping):
            yield step
            for name in ("normalizers", "pretokenizers"):
                inner = step.get(name)
                left += inner if isinstance(inner, list) else []


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
    return 1.0
