"""The bytes that each token stands for, from a ``tokenizer.json``.

Tokens are runs of bytes, not of characters: a character may be cut between two of them. With a
table of bytes a text grows by a token without decoding it from its start again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from edgeinfer.errors import DamagedError
from edgeinfer.records import dataclass

_MOST_STEPS, _MOST_STRIPS = 64, 64
_GROWTH, _FREE = 16, 64
"""Characters that a token may become for each of its name, and those that any may become."""

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What tokens stand for.

    Attributes:
        bytes: by token; empty where the vocabulary has no such token.
        special: tokens that are no text, such as those that end a turn.
        strips: spaces at the start of a whole text that decoding takes away.
    """

    bytes: tuple[bytes, ...]
    special: frozenset[int]
    strips: int

    def decode(self, tokens: list[int], skip_special: bool = True) -> str:
        """Return the text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
        kept = [t for t in tokens if not (skip_special and t in self.special)]
        text = b"".join(self.bytes[t] for t in kept)
        for _ in range(self.strips):
            text = text.removeprefix(b" ")
        return text.decode("utf-8", "replace")


def vocabulary_of(tokenizer: dict[str, Any], vocab: int) -> Vocabulary:
    """Read the table.

    Args:
        tokenizer: contents of a ``tokenizer.json``.
        vocab: columns of the logits; tokens beyond those of the file stand for nothing.

    Raises:
        DamagedError: it decodes in a way that is not one of bytes by token; lists everything.
    """
    model = tokenizer["model"]
    names = model["vocab"]
    ids = names.items() if isinstance(names, dict) else ((n[0], i) for i, n in enumerate(names))
    rule = _Rule(list(_steps(tokenizer.get("decoder"))))
    table = [b""] * vocab
    special = set()
    for name, token in ids:
        if token < vocab:
            table[token] = rule(name)
    for added in tokenizer.get("added_tokens", []):
        if added["id"] < vocab:
            table[added["id"]] = added["content"].encode()
            if added["special"]:
                special.add(added["id"])
    return Vocabulary(tuple(table), frozenset(special), rule.strips)


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        raise DamagedError("tokenizer.json: it has no decoder")
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


class _Rule:
    """Turns the name of a token into its bytes, as the steps of a decoder do."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.strips = 0
        self._replaced: list[tuple[str, str]] = []
        self._by_byte = self._falls_back = False
        wrong = [reason for step in steps[:_MOST_STEPS] if (reason := self._take(step))]
        if len(steps) > _MOST_STEPS:
            wrong.append(f"{len(steps)} steps, at most {_MOST_STEPS} are read")
        if type(self.strips) is not int or not 0 <= self.strips <= _MOST_STRIPS:
            wrong.append(f"step Strip takes up to {_MOST_STRIPS} spaces away")
        if wrong:
            raise DamagedError(
                f"tokenizer.json: its decoder cannot be followed: {'; '.join(wrong)}"
            )
        self._bytes = _bytes_of_characters()

    def _take(self, step: dict[str, Any]) -> str:
        kind = step["type"]
        if kind == "ByteLevel":
            self._by_byte = True
        elif kind == "ByteFallback":
            self._falls_back = True
        elif kind == "Replace" and "String" in step["pattern"]:
            self._replaced.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            self._replaced.append((step["replacement"], " "))
            if step.get("prepend_scheme", "always") != "never":
                self.strips = 1
        elif kind == "Strip" and step["content"] == " " and not step["stop"]:
            self.strips = step["start"]
        elif kind != "Fuse":
            return f"step {kind}"
        return ""

    def __call__(self, name: str) -> bytes:
        if self._falls_back and (found := _BYTE.fullmatch(name)):
            return bytes([int(found[1], 16)])
        most = _FREE + _GROWTH * len(name)
        for old, new in self._replaced:
            if len(name) + name.count(old) * (len(new) - len(old)) > most:
                raise DamagedError(f"tokenizer.json: its decoder makes {name[:20]!r} ever longer")
            name = name.replace(old, new)
        if self._by_byte and all(c in self._bytes for c in name):
            return bytes(self._bytes[c] for c in name)
        return name.encode()


def _bytes_of_characters() -> dict[str, int]:
    """Return which byte each character of a byte-level vocabulary stands for.

    Printable characters of Latin-1 stand for themselves, the others follow from U+0100 on (Radford
    et al. 2019, the released encoder).
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}
