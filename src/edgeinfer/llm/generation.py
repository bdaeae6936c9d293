"""How texts of a model begin and end, and how it likes to be sampled: ``generation.json``.

Next to it in the folder of a variant stand ``tokenizer.json``, in the form of the tokenizers
library, and, where the model was trained on conversations, ``chat_template.jinja``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from edgeinfer.bundle import documents
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.manifest import Manifest

FORMAT = "llm"
"""Of variants that are language models."""


def is_text(manifest: Manifest) -> bool:
    """Whether a bundle is a language model."""
    return any(variant.format == FORMAT for variant in manifest.variants)


FILE_NAME = "generation.json"
TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"

MOST_TEMPLATE = 1 << 16
"""Characters of a chat template; real ones have up to 20,000."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a source says about texts.

    Attributes:
        eos: tokens that end a text; all of them, such as the end of a turn and that of a document.
        bos: token that begins every text; None where the model was trained without one, even if
            its vocabulary has one.
        tokens: special tokens by the names that chat templates use, e.g. ``{"bos_token": "<s>"}``.
        temperature: that the source recommends; 0 takes the most probable token.
        top_k: likewise; 0 for all tokens.
        top_p: likewise.
        min_p: likewise.
        repetition_penalty: likewise.
    """

    eos: tuple[int, ...] = ()
    bos: int | None = None
    tokens: dict[str, str] = field(default_factory=dict)
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def to_json(self) -> str:
        """Return the text of ``generation.json``."""
        return documents.text_of(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Generation:
        """Read the text of ``generation.json`` strictly.

        Raises:
            BundleError: it is no JSON, or a key is unknown or wrong; lists everything.
        """
        return documents.read(cls, text, FILE_NAME)

    def problems(self) -> Iterator[str]:
        """List what makes no sense."""
        for name, holds in (
            ("eos", all(token >= 0 for token in self.eos)),
            ("bos", self.bos is None or self.bos >= 0),
            ("temperature", 0 <= self.temperature < math.inf),
            ("top_k", self.top_k >= 0),
            ("top_p", 0 < self.top_p <= 1),
            ("min_p", 0 <= self.min_p <= 1),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf),
        ):
            if not holds:
                yield f"{name}: received {getattr(self, name)}"


def is_language_model(bundle: Bundle) -> bool:
    """Whether a bundle has a language model."""
    return any(variant.format == FORMAT for variant in bundle.manifest.variants)
