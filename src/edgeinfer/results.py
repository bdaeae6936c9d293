"""What pipelines give: names, boxes, notes and texts instead of tensors.

Coordinates are pixels of the source image, upright: x to the right, y down, the top left corner
of the top left pixel is (0, 0). Times are seconds from the beginning of the recording or stream.
"""

from __future__ import annotations

import io
import wave
from dataclasses import asdict, field, replace
from typing import Any

import numpy as np

from edgeinfer.records import dataclass
from edgeinfer.types import Array

Point = tuple[float, float]
"""x, y."""


@dataclass(frozen=True, slots=True)
class Classification:
    """A class and its score.

    Attributes:
        index: in the output.
        label: its name; ``#index`` where the bundle has no labels.
        score: as the head gives it.
    """

    index: int
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Mask:
    """The pixels of one object: a part of the image, outside of which it has none.

    Attributes:
        left: Left edge of the part.
        top: Top edge of the part.
        pixels: (height, width), bool.
    """

    left: int
    top: int
    pixels: Array = field(repr=False)

    def whole(self, width: int, height: int) -> Array:
        """Return the mask of an image of this size: (height, width), bool."""
        full: Array = np.zeros((height, width), bool)
        rows, columns = self.pixels.shape
        full[self.top : self.top + rows, self.left : self.left + columns] = self.pixels
        return full

    def runs(self) -> list[int]:
        """Return lengths of runs, row by row, in turns outside and inside, outside first."""
        flat = np.concatenate([[False], self.pixels.reshape(-1)])
        ends = [*np.flatnonzero(flat[1:] != flat[:-1]).tolist(), self.pixels.size]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True, slots=True)
class Detection:
    """An object in an image.

    Attributes:
        box: left, top, right, bottom; may lie partly outside of the image.
        score: 0..1.
        index: Index of its class.
        label: Label of its class.
        keypoints: as many as the head has.
        sureness: Sureness of each keypoint, 0..1, where the model gives it.
        corners: Corners of a rotated box, clockwise; empty where boxes are upright.
        mask: Mask of the object, where the model gives one.
        track: number that the object keeps from frame to frame; see ``edgeinfer.tracking``.
    """

    box: tuple[float, float, float, float]
    score: float
    index: int
    label: str
    keypoints: tuple[Point, ...] = ()
    sureness: tuple[float, ...] = ()
    corners: tuple[Point, ...] = ()
    mask: Mask | None = field(default=None, compare=False)
    track: int | None = None


@dataclass(frozen=True, slots=True)
class Segmentation:
    """A class for every pixel of the source image.

    Attributes:
        mask: (height, width), uint8 or, from 256 classes on, uint16.
        labels: names of the classes; empty when unknown.
        shares: Shares of the image, for each class that is there.
    """

    mask: Array = field(repr=False)
    labels: tuple[str, ...]
    shares: dict[int, float]

    def name(self, index: int) -> str:
        """Name a class."""
        return self.labels[index] if index < len(self.labels) else f"#{index}"


@dataclass(frozen=True, slots=True)
class DepthMap:
    """How far away each pixel of the source image is.

    Attributes:
        values: (height, width), float32, as the model gives them.
        nearer_is_larger: what they mean; where not, they are distances.
    """

    values: Array = field(repr=False)
    nearer_is_larger: bool


@dataclass(frozen=True, slots=True)
class Embedding:
    """A vector.

    Attributes:
        vector: (size,), float32.
    """

    vector: Array = field(repr=False)

    def similarity(self, other: Embedding) -> float:
        """Return the cosine of the angle to another one."""
        a, b = self.vector.astype("float64"), other.vector.astype("float64")
        lengths = float((a @ a) ** 0.5 * (b @ b) ** 0.5)
        return float(a @ b) / lengths if lengths else 0.0


_NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


@dataclass(frozen=True, slots=True)
class Pitch:
    """A note.

    Attributes:
        start: seconds.
        end: seconds.
        midi: number of the key; 69 is A4.
        strength: mean score, 0..1.
    """

    start: float
    end: float
    midi: int
    strength: float

    @property
    def hertz(self) -> float:
        """Frequency of the key."""
        return float(440.0 * 2.0 ** ((self.midi - 69) / 12))

    @property
    def name(self) -> str:
        """Name of the key, such as ``C#4``."""
        return f"{_NAMES[self.midi % 12]}{self.midi // 12 - 1}"


@dataclass(frozen=True, slots=True)
class VoiceActivity:
    """A stretch of speech.

    Attributes:
        start: seconds.
        end: seconds.
        score: mean probability of speech.
    """

    start: float
    end: float
    score: float


@dataclass(frozen=True, slots=True)
class WakeWord:
    """A word that was said.

    Attributes:
        time: seconds, when the window ended in which its score was reached.
        label: the word.
        score: 0..1.
    """

    time: float
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text, or what a recording says.

    Attributes:
        text: what it says; empty where it was only found.
        score: mean score of its characters or tokens, or of its box where it was only found.
        corners: Corners of its rotated box, from the top left of the text clockwise; empty where
            the whole image is the line.
    """

    text: str
    score: float
    corners: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a language model says to what was said.

    Attributes:
        text: its text.
        finish: why it ended, such as ``stop`` or ``length``.
    """

    text: str
    finish: str


@dataclass(frozen=True, slots=True)
class Audio:
    """What a voice said.

    Attributes:
        samples: (samples,), float32; -1..1, what is beyond is as the model gives it.
        rate: samples a second.
        left_out: symbols of the text that the voice does not know, each once.
    """

    samples: Array = field(repr=False)
    rate: int
    left_out: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Length of the audio."""
        return len(self.samples) / self.rate

    def pcm(self) -> bytes:
        """Return signed integers of 16 bits, the low byte first; what is beyond -1..1 is cut."""
        scaled = np.rint(np.clip(self.samples, -1.0, 1.0) * 32767.0)
        return scaled.astype("<i2").tobytes()

    def wav(self) -> bytes:
        """Return the contents of a WAV file of 16 bits."""
        out = io.BytesIO()
        with wave.open(out, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(self.rate)
            file.writeframes(self.pcm())
        return out.getvalue()


Result = (
    Classification
    | Detection
    | Segmentation
    | DepthMap
    | Embedding
    | Pitch
    | VoiceActivity
    | WakeWord
    | Text
    | Reply
    | Audio
)

_KINDS: dict[type, str] = {
    Classification: "class",
    Detection: "object",
    Segmentation: "segmentation",
    DepthMap: "depth",
    Embedding: "embedding",
    Pitch: "note",
    VoiceActivity: "speech",
    WakeWord: "word",
    Text: "text",
    Reply: "reply",
    Audio: "audio",
}


def as_json(result: Result) -> dict[str, Any]:
    """Return JSON-ready data; of a map of the whole image only what is in it."""
    kind = {"kind": _KINDS[type(result)]}
    match result:
        case Detection():
            return {**kind, **asdict(replace(result, mask=None)), "mask": _mask(result.mask)}
        case DepthMap():
            size, limits = (
                list(result.values.shape[::-1]),
                (result.values.min(), result.values.max()),
            )
            ends = dict(zip(("least", "most"), map(float, limits), strict=True))
            return {**kind, "size": size, **ends, "nearer_is_larger": result.nearer_is_larger}
        case Segmentation():
            named = {result.name(index): share for index, share in result.shares.items()}
            return {**kind, "size": list(result.mask.shape[::-1]), "shares": named}
        case Audio():
            said = {"seconds": result.seconds, "rate": result.rate}
            return {**kind, **said, "left_out": list(result.left_out)}
        case Embedding():
            return {**kind, "vector": result.vector.tolist()}
        case Pitch():
            return {**kind, **asdict(result), "name": result.name}
        case _:
            return {**kind, **asdict(result)}


def _mask(mask: Mask | None) -> dict[str, Any] | None:
    if mask is None:
        return None
    size = list(mask.pixels.shape[::-1])
    return {"left": mask.left, "top": mask.top, "size": size, "runs": mask.runs()}
