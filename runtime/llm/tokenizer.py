"""Texts to tokens and back, by the tokenizer of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeinfer.bounded import parse_json, refused
from edgeinfer.errors import DamagedError, InputError, LoadError, NotAvailableError
from edgeinfer.installed import install
from edgeinfer.media.growth import check_growth
from edgeinfer.runtime.llm.vocabulary import Vocabulary, vocabulary_of

_LONG = 1 << 14
"""Characters from which on the library is called such that other threads go on meanwhile: it keeps
them waiting for a text alone, and starts threads for several."""

_PER_TOKEN = 8
"""Characters at the start of a long text that are looked at first, for each token that may be."""


class TextTokenizer:
    """A byte-level BPE, SentencePiece or other tokenizer that decodes token by token.

    Args:
        text: contents of ``tokenizer.json``.
        vocab: columns of the logits.
        bos: the token that begins a sequence; None for none. None is also taken for a model whose
            sequences begin with none, though its vocabulary has one.

    Raises:
        NotAvailableError: the tokenizers library is not installed.
        DamagedError: the file is not one, or decodes in a way that is not one of bytes by token.
    """

    def __init__(self, text: str, vocab: int, bos: int | None) -> None:
        try:
            import tokenizers
        except ImportError as e:
            raise NotAvailableError(f"language models need tokenizers: {install('llm')}") from e
        self.json = text
        with refused(_damaged, (UnicodeEncodeError, TypeError, LoadError)):
            read = parse_json(text)
            self._bounds = check_growth(read)
            self._inner = tokenizers.Tokenizer.from_str(text)
            self.vocabulary: Vocabulary = vocabulary_of(read, vocab)
        self._inner.no_truncation()
        self._inner.no_padding()
        size = self._inner.get_vocab_size(with_added_tokens=True)
        if size > vocab:
            raise DamagedError(f"tokenizer.json has {size} tokens, and the model {vocab} logits")
        self.vocab, self.bos = vocab, bos
        self._longest = max(map(len, self.vocabulary.bytes), default=1)

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Return the tokens of a prompt, with exactly one token that begins a sequence.

        Whether the text has it already, as a rendered chat template may, makes no difference; a
        model whose sequences begin with none gets none.

        Args:
            text: Text of the prompt.
            most: tokens that a sequence may have; a text that has surely more is refused before
                its tokens are made. None for no limit.

        Raises:
            InputError: it is no text, or can never fit.
        """
        if most is not None and isinstance(text, str):
            self._check_length(text, most)
        tokens = self.encode_part(text)
        if self.bos is None:
            return tokens
        start = 0
        while start < len(tokens) and tokens[start] == self.bos:
            start += 1
        return [self.bos, *tokens[start:]]

    def _check_length(self, text: str, most: int) -> None:
        longest = most * self._longest
        # Each character has a byte at least; the others need not be counted one by one.
        if len(text) > longest:
            raise InputError(
                *("prompt", f"at most {longest} characters", str(len(text))),
                f"so many fit into {most} tokens, if all are the longest of the vocabulary",
            )
        head = text[: _PER_TOKEN * most]
        if len(text) > 2 * len(head) and (count := len(self.encode_part(head))) > 2 * most:
            hint = f"its first {len(head)} characters have {count}; shorten it"
            raise InputError("prompt", f"at most {most - 1} tokens", "more", hint)

    def encode_part(self, text: str) -> list[int]:
        """Return the tokens of a text that stands somewhere in a sequence.

        Raises:
            InputError: it is no text, or holds half of a surrogate pair.
        """
        if not isinstance(text, str):
            raise InputError("text", "a str", type(text).__name__)
        self._bounds.check(text)
        try:
            with refused(_damaged, (UnicodeEncodeError, TypeError, LoadError)):
                found = self._encoded(text)
        except (UnicodeEncodeError, TypeError) as e:
            raise InputError("text", "valid Unicode", ascii(text)[:60]) from e
        return list(found.ids)

    def _encoded(self, text: str) -> Any:
        if len(text) < _LONG:
            return self._inner.encode(text, add_special_tokens=False)
        (found,) = self._inner.encode_batch([text], add_special_tokens=False)
        return found

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of a whole sequence."""
        return self.vocabulary.decode(list(tokens), skip_special)

    def token(self, text: str) -> int | None:
        """Return the token of exactly this name; None where there is none."""
        found: int | None = self._inner.token_to_id(text)
        return found


def _damaged(reason: str) -> DamagedError:
    return DamagedError(f"tokenizer.json: {reason}")
