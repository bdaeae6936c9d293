"""A recording in, the text of what is said out: a model that hears, and one that writes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgeinfer.bounded import parse_json
from edgeinfer.errors import DamagedError, RunError, UsageError
from edgeinfer.heads import Encode, Features, WriteSpeech
from edgeinfer.media.audio import Framer
from edgeinfer.results import Result, Text
from edgeinfer.runtime.llm.vocabulary import Vocabulary, vocabulary_of
from edgeinfer.runtime.pipelines.audio import features, preparation, recorded
from edgeinfer.runtime.pipelines.model import OwnedModels, PipelineModel, as_head_says, shaped
from edgeinfer.types import (
    Array,
    AudioInput,
    EncodedInput,
    FrameInput,
    SpectrogramInput,
    TokenInput,
)

_MOST_PER_SECOND, _LEAST = 100, 16
"""Tokens of a second of audio, and of the shortest window: more than anybody says."""


class SpeechPipeline(OwnedModels):
    """A model that makes frames of a recording, and one that writes what they say.

    Args:
        hears: takes audio and gives frames, or what else it encodes for the other.
        writes: takes that and tokens and gives scores of the next one.

    Raises:
        UsageError: they do not fit together, or windows overlap.
        DamagedError: the vocabulary is none.
    """

    takes = "a recording"

    def __init__(self, hears: PipelineModel, writes: PipelineModel) -> None:
        record, head = hears.record, writes.head
        if not isinstance(record, AudioInput | SpectrogramInput) or len(hears.inputs) != 1:
            raise UsageError(f"{hears.path}: expected one input that takes a recording")
        if not isinstance(hears.head, Features | Encode):
            raise UsageError(f"{hears.path}: {hears.head.kind!r} gives no frames for a chain")
        if not isinstance(head, WriteSpeech):
            raise UsageError(f"{writes.path}: {head.kind!r} writes no text of a recording")
        hop = record.hop if isinstance(record, AudioInput) else record.step
        if record.samples is not None and hop is not None and hop < record.samples:
            # Their texts are joined: what two windows hear would be said twice, and each is written
            # with as many runs as it has tokens.
            raise UsageError(
                f"{hears.path}: expected windows that do not overlap, received one of "
                f"{record.samples} samples each {hop} samples"
            )
        self.models = [hears, writes]
        self.model = writes
        self.rate = record.sample_rate
        self.takes_whole = record.samples is None
        self._record, self._hop, self._head = record, hop, head
        self._prepare = preparation(hears, record)
        self._tokens = _Writer(writes, head)
        missing = sorted(set(self._tokens.encoded.values()) - set(hears.outputs))
        if isinstance(hears.head, Encode) != bool(self._tokens.encoded) or missing:
            wanted = ", ".join(map(repr, missing or self._tokens.encoded)) or "frames"
            raise UsageError(f"{writes.path}: takes {wanted}, which {hears.path} does not give")

    def __call__(self, recording: Any, rate: int | None = None) -> list[Result]:
        """Write down a whole recording; its windows, where the model takes such, one by one.

        Args:
            recording: a path, the contents of a file, or (samples,) or (samples, channels) of
                floats -1..1 or int16.
            rate: Rate of an array, in Hz; another one than the model's is converted.

        Raises:
            InputError: it is no recording, or an array without its rate.
            RunError: an engine failed, or outputs are not what a head says.
        """
        parts, whole = recorded(recording, rate, self.rate, whole=self.takes_whole)
        record = self._record
        lead = record.lead if isinstance(record, AudioInput) else 0
        framer = Framer(record.samples or max(whole or 0, 1) + lead, self._hop, lead)
        with as_head_says(" and ".join(str(model.path) for model in self.models)):
            found = [self._written(w) for part in parts for w in framer.feed(part)]
            found += [self._written(window) for window in framer.finish()]
        said = [each for each in found if each.text]
        if not said:
            return []
        score = float(np.mean([each.score for each in said]))
        return [Text(" ".join(each.text for each in said), score)]

    def _written(self, window: Array) -> Text:
        hears = self.models[0]
        given = shaped(self._prepare(window).astype(hears.spec.dtype, copy=False), hears.spec)
        outputs = hears.run({hears.spec.name: given}, hears.fresh())
        feeds = {name: outputs[output] for name, output in self._tokens.encoded.items()}
        if not feeds:
            feeds = self._tokens.framed(features(hears, outputs))
        seconds = len(window) / self.rate
        most = min(self._head.most, max(_LEAST, math.ceil(seconds * _MOST_PER_SECOND)))
        if self._head.per_second:
            # At least one: nobody says nothing at all in a shorter piece.
            most = min(most, max(1, math.ceil(seconds * self._head.per_second)))
        return self._tokens.write(feeds, most)


class _Writer:
    """A decoder that gives one token after the other.

    Attributes:
        encoded: Output of the encoder for each input that takes one.
    """

    def __init__(self, model: PipelineModel, head: WriteSpeech) -> None:
        frames = [s for s, r in model.inputs if isinstance(r, FrameInput) and r.frames is None]
        tokens = [s for s, r in model.inputs if isinstance(r, TokenInput)]
        self.encoded = {
            s.name: r.output or s.name for s, r in model.inputs if isinstance(r, EncodedInput)
        }
        others = len(model.inputs) - len(tokens) - len(frames) - len(self.encoded)
        if len(tokens) != 1 or others or (len(frames) == 1) == bool(self.encoded):
            raise UsageError(
                f"{model.path}: expected an input of tokens and one that takes all frames, or "
                "those that take what is encoded"
            )
        self._model, self._head = model, head
        self._frames, self._tokens = next(iter(frames), None), tokens[0]
        shape = self._tokens.shape or ()
        self._one_by_one = bool(shape) and shape[-1] == 1
        if self._one_by_one and not model.is_stateful:
            raise UsageError(f"{model.path}: it takes one token, and keeps nothing in states")
        self._vocabulary = _read(model.files[head.vocabulary], head.vocabulary)

    def framed(self, frames: Array) -> dict[str, Array]:
        """Return what is given for frames (n, size)."""
        if self._frames is None:
            raise UsageError(f"{self._model.path}: it takes no frames")
        given = shaped(frames.astype(self._frames.dtype, copy=False), self._frames)
        return {self._frames.name: given}

    def write(self, heard: dict[str, Array], most: int) -> Text:
        """Return the text of what was heard, with the mean probability of its tokens.

        Raises:
            RunError: the engine failed, or the output is not what the head says.
        """
        head, kept = self._head, self._model.fresh()
        tokens, chances = list(head.begin), list[float]()
        pending = tokens[:] if self._one_by_one else [-1]
        while len(chances) < most:
            for token in pending:
                ids = np.array([token] if self._one_by_one else tokens, self._tokens.dtype)
                feeds = {**heard, self._tokens.name: shaped(ids, self._tokens)}
                outputs = self._model.run(feeds, kept)
            token, chance = self._next(self._model.output(outputs), first=not chances)
            if token in head.end:
                break
            tokens.append(token)
            chances.append(chance)
            pending = [token]
        text = self._vocabulary.decode(tokens[len(head.begin) :]).strip()
        return Text(text, float(np.mean(chances)) if chances else 0.0)

    def _next(self, output: Array, *, first: bool) -> tuple[int, float]:
        """Return the likeliest token, of equals the lowest, and its probability."""
        count = len(self._vocabulary.bytes)
        if output.ndim != 3 or not output.size or output.shape[0] != 1:
            shape = list(output.shape)
            raise RunError(f"{self._model.path}: head: expected (1, tokens, scores), got {shape}")
        row = output[0, -1].astype(np.float64)
        if not np.isfinite(row).all():
            raise RunError(f"{self._model.path}: head: a score is not finite")
        left_out = (*self._head.suppress, *(self._head.suppress_first if first else ()))
        row[[token for token in left_out if token < len(row)]] = -np.inf
        token = int(row.argmax())
        if not np.isfinite(row[token]):
            raise RunError(f"{self._model.path}: head: every token is suppressed")
        if token >= count:
            raise RunError(f"{self._model.path}: head: token {token} of a vocabulary of {count}")
        return token, float(1 / np.exp(row - row[token]).sum())


_MOST_VOCABULARY = 1 << 20
"""Tokens; a stranger's file may give any number to one."""


def _read(data: bytes, name: str) -> Vocabulary:
    """Read a vocabulary.

    Raises:
        DamagedError: it is none.
    """
    try:
        read = parse_json(data)
        names, added = read["model"]["vocab"], read.get("added_tokens", [])
        ids = names.values() if isinstance(names, dict) else range(len(names))
        size = max((*ids, *(each["id"] for each in added)), default=-1) + 1
        return vocabulary_of(read, min(size, _MOST_VOCABULARY))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        raise DamagedError(f"pipeline/{name}: no tokenizer.json: {e!r}") from e
