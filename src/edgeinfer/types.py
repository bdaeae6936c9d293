"""Value types that every layer shares.

NumPy is imported only for those who ask for ``Array`` or ``Feeds``: a command that refuses what it
was asked does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from edgeinfer.records import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Feeds = Mapping[str, Array]

Progress = Callable[[str, float | None], None]
"""Told what is being done and, where it is known, how much of it is done: 0 to 1."""

Dim = int | str | None
"""A static size, the name of a symbolic size, or None where nothing is known."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, element type and shape of a model's input or output.

    Attributes:
        name: exactly as in the source model.
        dtype: NumPy's name (``float32``, ``int64``, ``bool``), ``bfloat16`` or ``string``.
        shape: one entry per axis; equal names mean equal sizes in one run. None: rank unknown.
        layout: axis letters when known, e.g. ``NCHW``.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    layout: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether every axis has a fixed size."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name}: {self.dtype}[...]"
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


RangeSource = Literal["declared", "data", "graph", "name", "guess"]
"""Who says what an input lies between: the user, their data, an operator, a name, or nobody."""


@dataclass(frozen=True, slots=True)
class InputRange:
    """What an input's elements lie between.

    Attributes:
        low: lowest value.
        high: highest value.
        source: who says so.
    """

    low: float
    high: float
    source: RangeSource = "declared"

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g} ({self.source})"


@dataclass(frozen=True, slots=True)
class Stored:
    """Integers that an artifact takes or gives for floats: ``scale * (stored - zero_point)``.

    Attributes:
        dtype: ``int8``, ``uint8`` or ``int16``.
        scale: Scale of a step.
        zero_point: the integer that stands for zero.
    """

    dtype: str
    scale: float
    zero_point: int

    def __str__(self) -> str:
        return f"{self.dtype}, scale {self.scale:.9g}, zero point {self.zero_point}"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """How an image becomes the tensor the model takes: ``(pixel * scale - mean) / std``.

    Attributes:
        width: pixels; None keeps the image's own size (dynamic models).
        height: pixels; None likewise.
        resize: ``stretch``, ``crop`` (short side to size, then centre crop), ``letterbox``,
            ``pad`` (letterboxed before it is resized, so that the scale is exact),
            ``limit`` (one side to ``side``, both then to the nearest ``multiple``) or ``line`` (to
            ``height``; ``pad`` fills what is missing of ``width`` on the right, and a longer line
            is squeezed into it unless it may ``grow``).
        crop_ratio: share of the resized short side that the centre crop keeps; 1.0 keeps all.
        interpolation: ``nearest``, ``bilinear`` or ``bicubic``; Pillow's, with antialiasing, across
            first and then down.
        antialias: False samples ``bilinear`` at four pixels also where it makes smaller, as OpenCV
            and TensorFlow do.
        color: ``RGB``, ``BGR`` or ``GRAY``.
        layout: ``NCHW`` or ``NHWC``.
        scale: factor on pixel values 0..255.
        mean: subtracted after scaling; one value for each channel, or one for all.
        std: divisor, likewise.
        pad: pixel value around a letterboxed image or behind a line.
        align: where a letterboxed image lies: ``center`` or ``start`` (top left).
        side: pixels, of ``limit``.
        side_rule: ``min`` enlarges an image whose short side is below ``side``, ``max`` reduces
            one whose long side is above it.
        longest: Longest of ``limit``: the long side is not above it afterwards, but for rounding to
            ``multiple``; a thin image would else become very large.
        multiple: Multiple of ``limit``: both sides are multiples of it.
        grow: Grow of ``line``: a long one makes the input wider.
    """

    width: int | None
    height: int | None
    resize: Literal["stretch", "crop", "letterbox", "pad", "limit", "line"] = "stretch"
    crop_ratio: float = 1.0
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad: float = 114
    antialias: bool = True
    align: Literal["center", "start"] = "center"
    side: int | None = None
    side_rule: Literal["min", "max"] = "min"
    longest: int | None = None
    multiple: int = 1
    grow: bool = False
    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True)
class AudioInput:
    """How a recording becomes the tensor the model takes: mono, -1..1.

    Attributes:
        sample_rate: Hz.
        samples: frames in one call; None takes the whole recording.
        hop: frames from one call's first to the next one's; None: ``samples``, no overlap.
        lead: zeros before the recording, so that the first call has a past as later ones do.
        gain: factor on the samples; 32768 gives the range of 16-bit integers.
    """

    sample_rate: int
    samples: int | None = None
    hop: int | None = None
    lead: int = 0
    gain: float = 1.0
    kind: Literal["audio"] = "audio"


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Integer ids below ``vocab_size``."""

    vocab_size: int
    kind: Literal["tokens"] = "tokens"


@dataclass(frozen=True, slots=True)
class SpectrogramInput:
    """How a recording becomes a mel spectrogram, as librosa defines it.

    Attributes:
        sample_rate: Hz.
        fft: samples of one transform.
        hop: samples from one transform to the next.
        mels: bands.
        samples: frames of the recording in one call; None takes the whole.
        step: frames from one call's first to the next one's; None: ``samples``.
        window: samples of the Hann window, centred in ``fft``; None: ``fft``.
        low: Hz at the lower edge of the lowest band.
        high: Hz at the upper edge of the highest one; None: half the sample rate.
        scale: Scale of pitch: ``slaney`` or ``htk``.
        norm: bands have equal area (``slaney``) or equal height (``none``).
        power: Power of the magnitude: 1 or 2.
        log: ``none``, ``natural``, ``log10`` or ``db`` (10 log10, 0 at 1.0).
        reference: ``one``, or ``max`` where 0 dB is the loudest band of the call.
        floor: smallest value before the logarithm.
        range_db: what lies further below the loudest is raised to it; None: nothing is.
        centered: the first transform is centred at the first sample, zeros lie before it.
        mean: subtracted.
        std: divisor afterwards.
        time_first: axes are time and band, else band and time.
    """

    sample_rate: int
    fft: int
    hop: int
    mels: int
    samples: int | None = None
    step: int | None = None
    window: int | None = None
    low: float = 0.0
    high: float | None = None
    scale: Literal["slaney", "htk"] = "slaney"
    norm: Literal["slaney", "none"] = "slaney"
    power: float = 2.0
    log: Literal["none", "natural", "log10", "db"] = "none"
    reference: Literal["one", "max"] = "one"
    floor: float = 1e-10
    range_db: float | None = None
    centered: bool = True
    mean: float = 0.0
    std: float = 1.0
    time_first: bool = True
    kind: Literal["spectrogram"] = "spectrogram"


@dataclass(frozen=True, slots=True)
class TextInput:
    """How a text becomes ids, by a tokenizer whose vocabulary travels in the bundle.

    Attributes:
        vocabulary: file below ``pipeline/``: a ``tokenizer.json``, or a ``vocab.txt`` of WordPiece.
        max_tokens: longer texts are cut, special tokens kept.
        field: what this input takes: ``ids``, ``mask`` (1 where a token is) or ``types``.
        pad: fill up to ``max_tokens``.
        lower: Lower of a ``vocab.txt``: letters are lowered and lose their accents.
    """

    vocabulary: str
    max_tokens: int
    field: Literal["ids", "mask", "types"] = "ids"
    pad: bool = False
    lower: bool = True
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class SymbolInput:
    """How a text becomes the ids of its letters or phonemes, for a model that speaks.

    They are those of ``begin``, then those of each symbol with ``after`` behind them, then ``end``.

    Attributes:
        vocabulary: file below ``pipeline/``: JSON with an id, or a list of ids, for each symbol, or
            with such a table as its ``phoneme_id_map`` or ``vocab``.
        field: what this input takes: ``ids``, ``mask`` (a one for each id) or ``length`` (their
            number).
        begin: ids in front of a text.
        after: ids behind each of its symbols.
        end: ids behind it.
        marks: symbols that part a text: each piece between them has its own ``begin`` and ``end``,
            and they stand alone (special tokens of transformers that are letters).
        espeak: Name of the voice of eSpeak NG, such as ``en-us``, that makes phonemes of a text,
            sentence by sentence; None: the characters of a text are its symbols.
        most: symbols of a text, or of a sentence; a longer one is refused.
        normal: Normal form of Unicode that a text is brought into first.
        lower: a letter without an id is lowered.
        unknown: a symbol without an id is an error (``refuse``), or left out (``skip``).
        trim: white space at both ends of what is left is dropped.
    """

    vocabulary: str
    field: Literal["ids", "mask", "length"] = "ids"
    begin: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    marks: tuple[str, ...] = ()
    espeak: str | None = None
    most: int = 1000
    normal: Literal["none", "NFC", "NFD"] = "none"
    lower: bool = False
    unknown: Literal["refuse", "skip"] = "refuse"
    trim: bool = False
    kind: Literal["symbols"] = "symbols"


@dataclass(frozen=True, slots=True)
class NoiseInput:
    """Random numbers of a mean of 0, the same in every call of the same size.

    Attributes:
        seed: Seed of the numbers.
        scale: Standard deviation of the numbers.
    """

    seed: int = 0
    scale: float = 1.0
    kind: Literal["noise"] = "noise"


@dataclass(frozen=True, slots=True)
class FrameInput:
    """Frames that an earlier model of a chain gives, a window of them in one call.

    Attributes:
        frames: in one call; None takes all of a recording's.
        hop: frames from one call's first to the next one's.
    """

    frames: int | None = None
    hop: int = 1
    kind: Literal["frames"] = "frames"


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """What the encoder in front of a decoder gives for a recording.

    Attributes:
        output: Output of the encoder; None: the one that is named as this input.
    """

    output: str | None = None
    kind: Literal["encoded"] = "encoded"


@dataclass(frozen=True, slots=True)
class StateInput:
    """What an output of the call before gives back; zeros at first.

    Attributes:
        output: its name.
    """

    output: str
    kind: Literal["state"] = "state"


@dataclass(frozen=True, slots=True)
class ConstantInput:
    """The same numbers in every call.

    Attributes:
        values: one for all elements, or each in C order.
    """

    values: tuple[float, ...]
    kind: Literal["constant"] = "constant"


Preprocessing = (
    ImageInput
    | AudioInput
    | TokenInput
    | SpectrogramInput
    | TextInput
    | SymbolInput
    | NoiseInput
    | FrameInput
    | EncodedInput
    | StateInput
    | ConstantInput
)
"""What the bundle records about one input; an input without a record is a plain tensor."""

Worded = TextInput | SymbolInput
"""Records that name a vocabulary below ``pipeline/``."""


def nbytes(arrays: Mapping[str, Array]) -> int:
    """Total size in bytes."""
    import numpy as np

    return sum(np.asarray(a).nbytes for a in arrays.values())


def __getattr__(name: str) -> Any:
    if name not in ("Array", "Feeds"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import numpy as np

    # As ``numpy.typing`` spells it, which takes a millisecond to import.
    array = np.ndarray[Any, np.dtype[Any]]
    globals().update(Array=array, Feeds=Mapping[str, array])
    return globals()[name]
