"""A text to the ids of a ``TextInput`` record, by the tokenizers library."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.bounded import parse_json, refused
from edgeinfer.errors import BundleError, InputError, NotAvailableError
from edgeinfer.installed import install
from edgeinfer.media.growth import UNBOUNDED, check_growth, check_names, check_size
from edgeinfer.types import Array, TextInput

_PER_TOKEN = 32
"""Characters of a long text that are looked at first, for each token that is kept."""

_MOST_LOOKED = 1 << 16
"""Characters of one that must settle the tokens that are kept."""


class Tokenizer:
    """The tokenizer of one vocabulary file.

    Args:
        vocabulary: contents of a ``tokenizer.json`` (any algorithm), or of a ``vocab.txt`` of
            WordPiece: one piece a line, ``[CLS]``, ``[SEP]`` and ``[UNK]`` among them.
        record: which of both it is, by its name, and how long texts may be.

    Raises:
        BundleError: the file is neither.
        NotAvailableError: the tokenizers library is not installed.
    """

    def __init__(self, vocabulary: bytes, record: TextInput) -> None:
        try:
            import tokenizers
        except ImportError as e:
            raise NotAvailableError(f"reading texts needs tokenizers: {install('text')}") from e
        name = record.vocabulary
        self._name = name
        self._bounds = UNBOUNDED
        with refused(self._damaged, (InputError, UnicodeEncodeError)):
            if name.endswith(".json"):
                text = vocabulary.decode()
                self._bounds = check_growth(parse_json(text))
                self._inner = tokenizers.Tokenizer.from_str(text)
            else:
                self._inner = _word_piece(vocabulary.decode(), record.lower)
            added = self._inner.num_special_tokens_to_add(False)
            if added > record.max_tokens:
                raise ValueError(f"it adds {added} tokens to each text, of {record.max_tokens}")
        self._most = record.max_tokens
        self._inner.enable_truncation(self._most)
        if record.pad:
            pad = self._inner.token_to_id("[PAD]") or 0
            self._inner.enable_padding(length=record.max_tokens, pad_id=pad)
        else:
            self._inner.no_padding()

    def encode(self, text: str) -> dict[str, Array]:
        """Return ``ids``, ``mask`` and ``types``, each (1, tokens), int64.

        Raises:
            InputError: it is no text.
            BundleError: the vocabulary's own rules fail on it.
        """
        if not isinstance(text, str):
            raise InputError("text", "a str", type(text).__name__)
        with refused(self._damaged, (InputError, UnicodeEncodeError)):
            found = self._encode(text)
        fields = {"ids": found.ids, "mask": found.attention_mask, "types": found.type_ids}
        return {name: np.asarray([values], np.int64) for name, values in fields.items()}

    def _encode(self, text: str) -> Any:
        """Encode as much of a text as its first tokens, which are all that is kept, depend on.

        A cut changes tokens next to it alone, so those that a cut twice as far away leaves as they
        are do not depend on it. What was left out is not requested: tokenizers 0.23.1 and
        0.23.2 do not tell it.

        Raises:
            InputError: the beginning is one of a few endless words.
        """
        size = min(_PER_TOKEN * self._most, self._bounds.longest // 2)
        before: list[int] = []
        while size < len(text):
            end = text.rfind(" ", size // 2, size)
            # That of one text keeps all other threads waiting.
            (found,) = self._inner.encode_batch([text[: end if end > 0 else size]])
            count = sum(found.attention_mask)
            if count == self._most and found.ids == before:
                return found
            before = found.ids
            if size == self._bounds.longest:
                self._bounds.check(text)
            if size > max(_MOST_LOOKED, 32 * _PER_TOKEN * self._most):
                expected = f"{self._most} tokens that its first {size} characters settle"
                raise InputError("text", expected, str(count))
            size = min(4 * size, self._bounds.longest)
        return self._inner.encode(text)

    def _damaged(self, reason: str) -> BundleError:
        return BundleError(f"pipeline/{self._name}: no tokenizer or vocabulary ({reason})")


def _word_piece(text: str, lower: bool) -> Any:
    """Build BERT's tokenizer (Devlin et al. 2018) from its vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    check_size(text.count("\n"))
    # A line ends nowhere else: a piece may be one of Unicode's other line ends.
    lines = text.removesuffix("\n").split("\n")
    pieces = {line.removesuffix("\r"): i for i, line in enumerate(lines)}
    check_names(pieces)
    for special in ("[UNK]", "[CLS]", "[SEP]"):
        if special not in pieces:
            raise ValueError(f"no line {special}")
    found = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=lower)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = (("[SEP]", pieces["[SEP]"]), ("[CLS]", pieces["[CLS]"]))
    found.post_processor = processors.BertProcessing(*ends)
    return found
