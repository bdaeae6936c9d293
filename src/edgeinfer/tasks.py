"""One class a task, each with the types of its answer.

>>> from edgeinfer.tasks import Classifier, Detector, TextReader   # doctest: +SKIP
>>> with Classifier("lite0.edge") as classifier:                   # doctest: +SKIP
...     print(classifier.classify("cat.jpg")[0].label)

They open the same bundles as ``edgeinfer.pipeline`` and refuse those of another task.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, get_args

from edgeinfer.errors import UsageError
from edgeinfer.heads import (
    Classify,
    Depth,
    Detect,
    Embed,
    HearVoice,
    Notes,
    Segment,
    Speak,
    SpotWord,
    WriteSpeech,
)
from edgeinfer.media.image import AnyImage
from edgeinfer.results import (
    Audio,
    Classification,
    DepthMap,
    Detection,
    Embedding,
    Pitch,
    Result,
    Segmentation,
    Text,
    VoiceActivity,
    WakeWord,
)
from edgeinfer.runtime.pipelines import (
    AudioPipeline,
    AudioStream,
    ImagePipeline,
    LinesPipeline,
    Pipeline,
    SentencePipeline,
    SpeechPipeline,
    SpokenPipeline,
    VoicePipeline,
    pipeline,
)
from edgeinfer.types import Array

if TYPE_CHECKING:
    from typing import Self

R = TypeVar("R", bound=Result)
PathLike = str | os.PathLike[str]


class _Task:
    """Opens bundles, checks that they are of the task, closes them."""

    heads: ClassVar[tuple[type, ...]]
    pipelines: ClassVar[tuple[type, ...]]
    name: ClassVar[str]

    def __init__(self, *bundles: PathLike, **options: Any) -> None:
        """Open what the task needs.

        Args:
            *bundles: paths.
            **options: Options of ``edgeinfer.load``.

        Raises:
            UsageError: they are for another task.
        """
        self._inner: Pipeline = pipeline(*bundles, **options)
        head = self._inner.models[-1].head
        fits = isinstance(self._inner, self.pipelines)
        if not fits or (self.heads and not isinstance(head, self.heads)):
            self.close()
            given = f"{self._inner.takes} and gives {head.kind!r}"
            raise UsageError(f"{os.fspath(bundles[0])}: takes {given}; not for {self.name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the engines."""
        self._inner.close()

    def _look(self, image: AnyImage, kind: type[R]) -> list[R]:
        if not isinstance(self._inner, ImagePipeline | LinesPipeline):
            raise UsageError(f"{self.name}: takes {self._inner.takes}")
        return [result for result in self._inner(image) if isinstance(result, kind)]

    def _listen(self, recording: str | Path | Array, rate: int | None, kind: type[R]) -> list[R]:
        return [r for r in self._audio(recording, rate) if isinstance(r, kind)]

    def _audio(self, recording: str | Path | Array, rate: int | None) -> list[Result]:
        if not isinstance(self._inner, AudioPipeline | SpeechPipeline | SpokenPipeline):
            raise UsageError(f"{self.name}: takes {self._inner.takes}")
        return self._inner(recording, rate)

    @property
    def rate(self) -> int:
        """Samples a second of audio that a stream takes.

        Raises:
            UsageError: the bundle takes no audio.
        """
        if not isinstance(self._inner, AudioPipeline):
            raise UsageError(f"{self.name}: takes {self._inner.takes}")
        return self._inner.rate

    def _stream(self, kind: type[R]) -> AudioStream[R]:
        """Begin to listen; the head is one of the task's, so its results are of one kind."""
        if not isinstance(self._inner, AudioPipeline):
            raise UsageError(f"{self.name}: takes {self._inner.takes}")
        return cast("AudioStream[R]", self._inner.stream())


class Classifier(_Task):
    """Names what an image shows."""

    name = "classifying images"
    heads = (Classify,)
    pipelines = (ImagePipeline,)

    def classify(self, image: AnyImage) -> list[Classification]:
        """Return the best classes, the best first."""
        return self._look(image, Classification)


class AudioClassifier(_Task):
    """Names what a recording holds."""

    name = "classifying recordings"
    heads = (Classify,)
    pipelines = (AudioPipeline,)

    def classify(
        self, recording: str | Path | Array, rate: int | None = None
    ) -> list[Classification]:
        """Return the best classes by the mean of all windows, the best first."""
        return self._listen(recording, rate, Classification)


class Detector(_Task):
    """Finds objects in an image: boxes, and the masks, points or corners that a model gives."""

    name = "detecting objects"
    heads = get_args(Detect)
    pipelines = (ImagePipeline,)

    def detect(self, image: AnyImage) -> list[Detection]:
        """Return the objects, the best first; boxes in pixels of the image."""
        return self._look(image, Detection)


class Segmenter(_Task):
    """Gives every pixel of an image a class."""

    name = "segmenting images"
    heads = (Segment,)
    pipelines = (ImagePipeline,)

    def segment(self, image: AnyImage) -> Segmentation:
        """Return a mask of the image's size."""
        return self._look(image, Segmentation)[0]


class DepthEstimator(_Task):
    """Tells how far away each pixel of an image is."""

    name = "estimating depth"
    heads = (Depth,)
    pipelines = (ImagePipeline,)

    def estimate(self, image: AnyImage) -> DepthMap:
        """Return a map of the image's size."""
        return self._look(image, DepthMap)[0]


class Embedder(_Task):
    """Turns images or texts into vectors that are near each other where those are alike."""

    name = "embedding"
    heads = (Embed,)
    pipelines = (ImagePipeline, SentencePipeline)

    def embed(self, given: AnyImage | str) -> Embedding:
        """Return the vector of an image, or of a text where the model takes texts."""
        results = self._inner(given)
        return next(result for result in results if isinstance(result, Embedding))


class PitchTranscriber(_Task):
    """Hears the notes of a recording."""

    name = "transcribing pitch"
    heads = (Notes,)
    pipelines = (AudioPipeline,)

    def transcribe(self, recording: str | Path | Array, rate: int | None = None) -> list[Pitch]:
        """Return the notes in the order of their beginnings."""
        return self._listen(recording, rate, Pitch)


class SpeechTranscriber(_Task):
    """Writes down what is said in a recording: a bundle that hears and one that writes.

    One that finds speech may stand before them: what is no speech is not written down then.
    """

    name = "transcribing speech"
    heads = (WriteSpeech,)
    pipelines = (SpeechPipeline, SpokenPipeline)

    def transcribe(self, recording: str | Path | Array, rate: int | None = None) -> str:
        """Return what is said."""
        return " ".join(text.text for text in self._listen(recording, rate, Text))


class Speaker(_Task):
    """Says a text in the voice of a model."""

    name = "speaking"
    heads = (Speak,)
    pipelines = (VoicePipeline,)

    def say(self, text: str) -> Audio:
        """Return the audio of a text; of phonemes, where the voice takes such."""
        return next(result for result in self._inner(text) if isinstance(result, Audio))


class VoiceDetector(_Task):
    """Tells where a recording holds speech."""

    name = "detecting voice activity"
    heads = (HearVoice,)
    pipelines = (AudioPipeline,)

    def detect(self, recording: str | Path | Array, rate: int | None = None) -> list[VoiceActivity]:
        """Return the stretches of speech."""
        return self._listen(recording, rate, VoiceActivity)

    def stream(self) -> AudioStream[VoiceActivity]:
        """Begin to listen to audio that comes in chunks."""
        return self._stream(VoiceActivity)


class WordSpotter(_Task):
    """Waits for a word."""

    name = "spotting a word"
    heads = (SpotWord,)
    pipelines = (AudioPipeline,)

    def spot(self, recording: str | Path | Array, rate: int | None = None) -> list[WakeWord]:
        """Return when the word was said."""
        return self._listen(recording, rate, WakeWord)

    def stream(self) -> AudioStream[WakeWord]:
        """Begin to listen to audio that comes in chunks."""
        return self._stream(WakeWord)


class TextReader(_Task):
    """Reads the text in an image: bundles that find lines, read them, and maybe turn them."""

    name = "reading text"
    heads = ()
    pipelines = (LinesPipeline,)

    def read(self, image: AnyImage) -> list[Text]:
        """Return the lines from top to bottom."""
        return self._look(image, Text)
