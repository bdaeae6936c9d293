"""A text in, the audio of a voice out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgeinfer.errors import RunError, UsageError
from edgeinfer.heads import Speak
from edgeinfer.media.symbols import Encoded, SymbolTable
from edgeinfer.results import Audio, Result
from edgeinfer.runtime.pipelines.model import OwnedModels, PipelineModel
from edgeinfer.types import Array, NoiseInput, SymbolInput, TensorSpec

_MOST_NOISE = 1 << 24
"""Random numbers of one call."""


class VoicePipeline(OwnedModels):
    """A model that speaks.

    Args:
        model: closed with the pipeline.

    Raises:
        UsageError: its inputs are not those of a voice.
        DamagedError: its vocabulary is none.
    """

    takes = "a text"

    def __init__(self, model: PipelineModel) -> None:
        if not isinstance(model.head, Speak) or model.is_stateful:
            raise UsageError(f"{model.path}: {model.head.kind!r} is no voice")
        self.model = model
        self.models = [model]
        self.rate = model.head.sample_rate
        self._fields: list[tuple[TensorSpec, SymbolInput]] = []
        self._noise: list[tuple[TensorSpec, NoiseInput]] = []
        for spec, record in model.inputs:
            if isinstance(record, SymbolInput):
                self._fields.append((spec, record))
            elif isinstance(record, NoiseInput):
                self._noise.append((spec, record))
            else:
                raise UsageError(f"{model.path}: input {spec.name!r} takes no text")
        rule = self._rule()
        self._symbols = SymbolTable(model.files[rule.vocabulary], rule)
        named = {d for spec, _ in self._fields for d in spec.shape or () if isinstance(d, str)}
        for spec, _ in self._noise:
            open_sizes = [d for d in spec.shape or (None,) if not isinstance(d, int)]
            if not named.issuperset(open_sizes):
                raise UsageError(f"{model.path}: input {spec}: no text says how much noise that is")

    def _rule(self) -> SymbolInput:
        """Return how a text is read; its other properties go by the same rule."""
        rules = {replace(record, field="ids") for _, record in self._fields}
        if not any(record.field == "ids" for _, record in self._fields):
            raise UsageError(f"{self.model.path}: no input takes the ids of a text")
        if len(rules) > 1:
            names = ", ".join(repr(spec.name) for spec, _ in self._fields)
            raise UsageError(
                f"{self.model.path}: inputs {names} read the same text by other rules: their "
                "records may differ in field alone"
            )
        return rules.pop()

    def __call__(self, text: Any) -> list[Result]:
        """Say a text.

        Args:
            text: a str: letters or phonemes, by the voice.

        Raises:
            InputError: it is no text, or not one for this voice.
            NotAvailableError: it is made phonemes first, and what does that is not installed.
            RunError: the engine failed, or gives no audio.
        """
        parts = self._symbols.parts(text)
        samples = np.concatenate([self._said(part) for part in parts])
        left_out = dict.fromkeys(symbol for part in parts for symbol in part.left_out)
        return [Audio(samples, self.rate, tuple(left_out))]

    def _said(self, encoded: Encoded) -> Array:
        feeds: dict[str, Array] = {}
        sizes: dict[str, int] = {}
        for spec, record in self._fields:
            given = encoded.field(record.field).astype(spec.dtype)
            given = given[0] if given.ndim == 2 and len(spec.shape or (0, 0)) == 1 else given
            feeds[spec.name] = given
            for size, dim in zip(given.shape, spec.shape or (), strict=False):
                sizes[str(dim)] = size
        feeds |= {spec.name: self._drawn(spec, record, sizes) for spec, record in self._noise}
        return self._samples(self.model.output(self.model.run(feeds, {})))

    def _drawn(self, spec: TensorSpec, record: NoiseInput, sizes: Mapping[str, int]) -> Array:
        shape = [d if isinstance(d, int) else sizes[str(d)] for d in spec.shape or ()]
        if np.prod(shape, dtype=np.float64) > _MOST_NOISE:
            raise UsageError(f"{self.model.path}: input {spec}: more than {_MOST_NOISE} numbers")
        drawn = np.random.default_rng(record.seed).standard_normal(shape) * record.scale
        return np.asarray(drawn.astype(spec.dtype))

    def _samples(self, output: Array) -> Array:
        if output.dtype.kind != "f" or output.size != max(output.shape, default=1):
            received = f"{output.dtype}{list(output.shape)}"
            raise RunError(f"{self.model.path}: head: expected samples, received {received}")
        samples = output.reshape(-1).astype(np.float32)
        if not np.isfinite(samples).all():
            raise RunError(f"{self.model.path}: head: a sample is not finite")
        return samples
