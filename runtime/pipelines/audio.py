"""A recording in, speech, words, notes or classes out; whole or piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from edgeinfer.decode.notes import hear_notes
from edgeinfer.decode.scores import classify
from edgeinfer.decode.speech import VoiceTracker, WordTracker
from edgeinfer.decode.vectors import embed
from edgeinfer.errors import ClosedError, InputError, UsageError
from edgeinfer.heads import Classify, Embed, Features, HearVoice, Notes, SpotWord
from edgeinfer.media.audio import Framer, open_recording, pieces, resampled
from edgeinfer.records import dataclass
from edgeinfer.results import Result
from edgeinfer.runtime.pipelines.model import OwnedModels, PipelineModel, as_head_says, shaped
from edgeinfer.runtime.pipelines.spectra import spectra
from edgeinfer.types import Array, AudioInput, FrameInput, SpectrogramInput

_Prepare = Callable[[Array], Array]

_HEADS = (HearVoice, SpotWord, Notes, Classify, Embed)


@dataclass(frozen=True, slots=True)
class Scores:
    """What the last model gave for one window.

    Attributes:
        outputs: by name.
        seconds: when the window ended, from the beginning of the recording.
    """

    outputs: dict[str, Array]
    seconds: float


class AudioPipeline(OwnedModels):
    """A model that takes audio, or a chain of which each takes what the one before gives.

    Args:
        models: in order; closed with the pipeline.

    Raises:
        UsageError: they do not fit together.
    """

    takes = "a recording"

    def __init__(self, models: Sequence[PipelineModel]) -> None:
        first, last = models[0], models[-1]
        for model in models:
            if len(model.inputs) != 1:
                raise UsageError(f"{model.path}: expected one input that takes audio or frames")
        for model in models[:-1]:
            if not isinstance(model.head, Features):
                raise UsageError(f"{model.path}: {model.head.kind!r} gives no frames for a chain")
        for model in models[1:]:
            if not isinstance(model.record, FrameInput):
                raise UsageError(f"{model.path}: takes {model.record.kind}, not frames of a chain")
            if model.record.frames is None:
                raise UsageError(f"{model.path}: it takes all frames at once; say how many")
        if not isinstance(last.head, _HEADS):
            raise UsageError(f"{last.path}: {last.head.kind!r} is not read from a recording")
        if not isinstance(first.record, AudioInput | SpectrogramInput):
            raise UsageError(f"{first.path}: takes {first.record.kind}, not a recording")
        self.models = list(models)
        self.model = last
        self.rate = first.record.sample_rate
        """Samples a second that streams take."""
        self.takes_whole = first.record.samples is None
        """Whether the first model takes a recording as one."""
        self._prepare = preparation(first, first.record)

    def __call__(self, recording: Any, rate: int | None = None) -> list[Result]:
        """Listen to a whole recording.

        Args:
            recording: a path, the contents of a file, or (samples,) or (samples, channels) of
                floats -1..1 or int16.
            rate: Rate of an array, in Hz; another one than the model's is converted.

        Raises:
            InputError: it is no recording, or an array without its rate.
            RunError: an engine failed, or outputs are not what a head says.
        """
        parts, whole = recorded(recording, rate, self.rate, whole=self.takes_whole)
        stream = self.stream(whole=whole)
        if isinstance(self.model.head, Classify):
            return stream.mean_classes(parts)
        found = [result for part in parts for result in stream.feed(part)]
        return [*found, *stream.finish()]

    def stream(self, *, whole: int | None = None) -> AudioStream[Result]:
        """Begin to listen to audio that comes in chunks; streams of one pipeline are independent.

        Args:
            whole: samples that will come, for a model that takes a recording as one.

        Raises:
            UsageError: the model takes a recording as one, and its length is not given.
        """
        return AudioStream(self.models, self._prepare, whole)


def recorded(
    recording: Any, rate: int | None, wanted: int, *, whole: bool
) -> tuple[Iterable[Array], int | None]:
    """Return a recording at a model's rate, in chunks, and its samples where they are asked.

    Args:
        recording: a path, the contents of a file, or an array.
        rate: Rate of an array, in Hz.
        wanted: Rate of the model.
        whole: it is taken as one; otherwise a file is never held as a whole.

    Raises:
        InputError: it is no recording, or an array without its rate.
    """
    if isinstance(recording, str | Path | bytes):
        if not whole:
            return pieces(recording, wanted), None
        signal = open_recording(recording, wanted)
        return [signal], len(signal)
    signal = as_mono(np.asarray(recording))
    if rate is None:
        expected = f"its sample rate with the array (the model takes {wanted} Hz)"
        raise InputError("recording", expected, "none", "give rate=...")
    signal = signal if rate == wanted else resampled(signal, rate, wanted)
    return [signal], len(signal)


R = TypeVar("R", bound=Result)


class AudioStream(Generic[R]):
    """Audio in chunks of any length; made by ``AudioPipeline.stream``.

    Results do not depend on how the audio was cut, and is the same as for the whole.

    Attributes:
        score: Score of the last window, where the model gives one number: of speech, of a word.
        speaking: whether speech is going on.
    """

    def __init__(
        self, models: Sequence[PipelineModel], prepare: _Prepare, whole: int | None
    ) -> None:
        self.score = 0.0
        self._models = list(models)
        self._states = [model.fresh() for model in models]
        record, self._head, self._model = models[0].record, models[-1].head, models[-1]
        if not isinstance(record, AudioInput | SpectrogramInput):
            raise UsageError(f"{models[0].path}: takes {record.kind}, not a recording")
        self._record, self._prepare = record, prepare
        hop = record.hop if isinstance(record, AudioInput) else record.step
        lead = record.lead if isinstance(record, AudioInput) else 0
        samples = record.samples
        if samples is None:
            if whole is None:
                raise UsageError(f"{models[0].path}: takes a recording as one; call the pipeline")
            samples = max(whole, 1) + lead
        self._framer = Framer(samples, hop, lead)
        self._frames = [_Frames(m.record) for m in models[1:] if isinstance(m.record, FrameInput)]
        self._open = True
        head = self._head
        rate = record.sample_rate
        self._voice: VoiceTracker | None = None
        if isinstance(head, HearVoice):
            self._voice = VoiceTracker(head, rate, self._framer.hop)
        self._word = WordTracker(head) if isinstance(head, SpotWord) else None
        self._notes: list[dict[str, Array]] = []

    @property
    def speaking(self) -> bool:
        """Whether speech is going on."""
        return self._voice is not None and self._voice.speaking

    @property
    def open_from(self) -> int:
        """First sample that a stretch of speech may hold which is not returned yet."""
        return 0 if self._voice is None else self._voice.open_from

    def feed(self, samples: Array) -> list[R]:
        """Take the next samples; return what is now certain.

        Args:
            samples: (n,) or (n, channels) at the pipeline's rate: floats -1..1, or int16.

        Raises:
            ClosedError: the stream was finished.
            InputError: they are no samples.
        """
        self._check_open()
        found: list[Result] = []
        given = as_mono(np.asarray(samples))
        with as_head_says(self._model.path):
            for scores in self._scores(self._framer.feed(given)):
                found += self._told(scores)
        return cast("list[R]", found)

    def finish(self) -> list[R]:
        """End the stream; return what was still open."""
        self._check_open()
        with as_head_says(self._model.path):
            return cast("list[R]", self._finished())

    def _finished(self) -> list[Result]:
        if self._voice is not None:
            self._voice.limit = self._framer.received
        found: list[Result] = []
        for scores in self._scores(self._framer.finish()):
            found += self._told(scores)
        self._open = False
        if self._voice is not None:
            found += self._voice.finish(self._framer.received)
        if isinstance(self._head, Notes):
            found += _notes(self._notes, self._head, self._framer, self._record.sample_rate)
        return found

    def mean_classes(self, parts: Iterable[Array]) -> list[Result]:
        """Name the classes of a whole recording, by the mean of its windows' scores."""
        head = self._head
        if not isinstance(head, Classify):
            raise UsageError(f"{self._model.path}: {head.kind!r} gives no classes")
        windows = chain.from_iterable(map(self._framer.feed, parts))
        with as_head_says(self._model.path):
            rows = [
                self._model.output(scores.outputs).reshape(-1)
                for each in (windows, self._framer.finish())
                for scores in self._scores(each)
            ]
            if not rows:
                return []
            mean = np.asarray(np.mean(rows, axis=0, dtype=np.float64))
            return [*classify(mean, head, self._model.labels)]

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("stream: used after finish()")

    def _scores(self, windows: Iterator[Array]) -> Iterator[Scores]:
        """Run the chain on each window; yield what the last model gives."""
        for window in windows:
            number = self._framer.given - 1
            seconds = self._framer.end_of(number) / self._record.sample_rate
            pending = [self._prepared(window)]
            for index, model in enumerate(self._models):
                states = self._states[index]
                results = [model.run({model.spec.name: x}, states) for x in pending]
                if index == len(self._models) - 1:
                    yield from (Scores(outputs, seconds) for outputs in results)
                    break
                frames = [features(model, outputs) for outputs in results]
                taker = self._frames[index]
                spec = self._models[index + 1].spec
                pending = [shaped(w, spec) for f in frames for w in taker.feed(f)]

    def _prepared(self, window: Array) -> Array:
        spec = self._models[0].spec
        return shaped(self._prepare(window).astype(spec.dtype, copy=False), spec)

    def _told(self, scores: Scores) -> list[Result]:
        outputs, head, model = scores.outputs, self._head, self._model
        if self._voice is not None:
            self.score = model.scalar(outputs)
            return [*self._voice.feed(self.score)]
        if self._word is not None:
            self.score = model.scalar(outputs)
            return [*self._word.feed(self.score, scores.seconds)]
        if isinstance(head, Notes):
            self._notes.append({n: outputs[n] for n in (head.onsets, head.sounding)})
            return []
        if isinstance(head, Embed):
            return [embed(model.output(outputs), head)]
        if isinstance(head, Classify):
            return [*classify(model.output(outputs).reshape(-1), head, model.labels)]
        raise UsageError(f"{model.path}: {head.kind!r} is not read from a recording")


class _Frames:
    """Windows of frames that come a few at a time."""

    def __init__(self, record: FrameInput) -> None:
        self._record = record
        self._kept: Array | None = None

    def feed(self, frames: Array) -> Iterator[Array]:
        """Take frames (n, size) and yield the windows (frames, size) that are now complete."""
        kept = frames if self._kept is None else np.concatenate([self._kept, frames])
        size = self._record.frames or 1
        while len(kept) >= size:
            yield kept[:size]
            kept = kept[self._record.hop :]
        self._kept = kept


def as_mono(samples: Array) -> Array:
    """Return samples as float32 (n,), -1..1.

    Raises:
        InputError: they are neither floats nor int16, or have more than two axes.
    """
    expected = "(samples,) or (samples, channels) of floats -1..1 or of int16"
    if samples.ndim not in (1, 2) or not (samples.dtype.kind == "f" or samples.dtype == np.int16):
        raise InputError("recording", expected, f"{samples.dtype}{list(samples.shape)}")
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / np.float32(32768)
    if not np.isfinite(samples).all():
        raise InputError("recording", "finite samples", "NaN or infinite ones")
    mono = samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32)
    return mono.astype(np.float32, copy=False)


def preparation(model: PipelineModel, record: AudioInput | SpectrogramInput) -> _Prepare:
    """What makes the samples of a call the values that the model takes."""
    if isinstance(record, AudioInput):
        gain = np.float32(record.gain)
        return lambda window: np.asarray(window * gain)
    by = spectra(model.code, model.without_code, record)
    model.around.append(by.about)
    return by


def features(model: PipelineModel, outputs: dict[str, Array]) -> Array:
    """Return the frames (n, size) that a model of a chain gives."""
    head = model.head
    if not isinstance(head, Features):
        raise UsageError(f"{model.path}: {head.kind!r} gives no frames for a chain")
    array = np.asarray(model.output(outputs), np.float32)
    frames = array.reshape(-1, array.shape[-1])
    return frames * np.float32(head.scale) + np.float32(head.offset)


def _notes(
    windows: Sequence[dict[str, Array]], head: Notes, framer: Framer, rate: int
) -> list[Result]:
    """Put the frames of all windows together, without the overlap, and find notes in them."""
    onsets, sounding = (
        np.concatenate([_trimmed(w[name], head.trim) for w in windows])
        for name in (head.onsets, head.sounding)
    )
    frames = -(-framer.received // head.frame_samples)
    per_window = len(_trimmed(windows[0][head.onsets], head.trim))
    number = np.arange(len(onsets))
    # A window begins at its own sample, whatever whole frames it holds.
    begin = number // per_window * framer.hop - framer.lead
    samples = begin + (number % per_window + head.trim) * head.frame_samples
    within = samples < frames * head.frame_samples
    seconds = samples[within] / rate
    return [*hear_notes(onsets[within], sounding[within], head, seconds)]


def _trimmed(output: Array, trim: int) -> Array:
    rows = output.reshape(-1, output.shape[-1])
    return rows[trim : len(rows) - trim]
