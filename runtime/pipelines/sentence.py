"""A text in, a vector or classes out."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeinfer.decode.scores import classify
from edgeinfer.decode.vectors import embed
from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, Embed
from edgeinfer.media.tokens import Tokenizer
from edgeinfer.results import Result
from edgeinfer.runtime.pipelines.model import OwnedModels, PipelineModel, as_head_says
from edgeinfer.types import TextInput


class SentencePipeline(OwnedModels):
    """A model that takes one text.

    Args:
        model: closed with the pipeline.

    Raises:
        UsageError: its head is not for texts.
        NotAvailableError: the tokenizers library is not installed.
    """

    takes = "a text"

    def __init__(self, model: PipelineModel) -> None:
        if not isinstance(model.head, Embed | Classify) or model.is_stateful:
            raise UsageError(f"{model.path}: {model.head.kind!r} is not read from a text")
        self.model = model
        self.models = [model]
        self._tokenizers: dict[str, Tokenizer] = {}
        self._fields: list[tuple[str, str, TextInput]] = []
        for spec, record in model.inputs:
            if not isinstance(record, TextInput):
                raise UsageError(f"{model.path}: input {spec.name!r} takes no text")
            if record.vocabulary not in self._tokenizers:
                vocabulary = model.files[record.vocabulary]
                self._tokenizers[record.vocabulary] = Tokenizer(vocabulary, record)
            self._fields.append((spec.name, spec.dtype, record))

    def __call__(self, text: Any) -> list[Result]:
        """Read a text.

        Args:
            text: a str.

        Raises:
            InputError: it is no text.
            RunError: the engine failed, or the outputs are not what the head says.
        """
        encoded = {name: t.encode(text) for name, t in self._tokenizers.items()}
        feeds = {
            name: encoded[record.vocabulary][record.field].astype(dtype)
            for name, dtype, record in self._fields
        }
        output = self.model.output(self.model.run(feeds, {}))
        with as_head_says(self.model.path):
            if isinstance(self.model.head, Embed):
                mask = next(iter(encoded.values()))["mask"]
                return [embed(output, self.model.head, mask)]
            if isinstance(self.model.head, Classify):
                return [*classify(np.squeeze(output), self.model.head, self.model.labels)]
        raise UsageError(f"{self.model.path}: {self.model.head.kind!r} is not read from a text")

    def count(self, text: str) -> int:
        """Return how many tokens of a text are read."""
        return int(next(iter(self._tokenizers.values())).encode(text)["mask"].sum())
