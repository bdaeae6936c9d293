"""What records of pipelines must hold beyond the types of their keys."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from edgeinfer.bundle.paths import path_problem
from edgeinfer.heads import (
    Classify,
    Depth,
    DetectAnchors,
    DetectBoxes,
    DetectGrid,
    DetectQueries,
    DetectRows,
    Extra,
    FindText,
    Head,
    HearVoice,
    Keypoints,
    Notes,
    ReadText,
    Rotated,
    Segment,
    Speak,
    SpotWord,
    WriteSpeech,
    files_of,
    outputs_of,
)
from edgeinfer.types import (
    AudioInput,
    ConstantInput,
    EncodedInput,
    FrameInput,
    ImageInput,
    NoiseInput,
    SpectrogramInput,
    StateInput,
    SymbolInput,
    TensorSpec,
    TextInput,
    TokenInput,
    Worded,
)

if TYPE_CHECKING:
    from edgeinfer.types import Preprocessing

FOLDER = "pipeline"
"""Folder of the bundle with the files that records name."""


def pipeline_problems(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    preprocessing: Mapping[str, Preprocessing],
    said: Head | None,
    files: Collection[str],
) -> Iterator[str]:
    """Yield what is wrong between records, tensors and the files of a bundle (their paths)."""
    names = {spec.name: None for spec in outputs}
    known = {spec.name for spec in inputs}
    needed: dict[str, str] = {}
    for name, record in preprocessing.items():
        where = f"preprocessing[{name!r}]"
        if name not in known:
            yield f"{where}: no input has this name, there are {_listed(s.name for s in inputs)}"
        yield from (f"{where}.{problem}" for problem in input_record(record))
        if isinstance(record, StateInput) and record.output not in names:
            yield f"{where}.output: no output is named {record.output!r}"
        if isinstance(record, Worded):
            needed[record.vocabulary] = f"{where}.vocabulary"
    if said is not None:
        for output in outputs_of(said):
            if output is None and len(names) != 1:
                yield f"head.output: name one of the {len(names)} outputs: {_listed(names)}"
            if output is not None and output not in names:
                yield f"head: no output is named {output!r}, there are {_listed(names)}"
        needed |= dict.fromkeys(files_of(said), "head")
        yield from (f"head.{problem}" for problem in head(said))
    for file, where in needed.items():
        if problem := path_problem(f"{FOLDER}/{file}"):
            yield f"{where}: {file!r} {problem}"
        elif f"{FOLDER}/{file}" not in files:
            yield f"{where}: {FOLDER}/{file} is not in extra_files"


def _listed(names: Iterable[str]) -> str:
    """Name the first few, cut where they are long: a hostile document chooses them."""
    shown = [repr(name[:60]) for name in names]
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def head(record: Head) -> Iterator[str]:
    """Yield what is wrong with one head, each with the name of its key."""
    # A threshold may be of raw scores, which have no bounds.
    for key in ("overlap", "box_threshold", "release", "onset_threshold"):
        value = getattr(record, key, None)
        if value is not None and not 0.0 <= value <= 1.0:
            yield f"{key}: expected 0 to 1, received {value}"
    for key in ("top", "most", "least_frames", "gap_frames", "frame_samples"):
        value = getattr(record, key, None)
        if value is not None and value < 1:
            yield f"{key}: expected at least 1, received {value}"
    yield from _too_large(record)
    match record:
        case DetectAnchors():
            yield from _anchors(record)
        case DetectGrid():
            yield from _grid(record)
        case FindText():
            yield from _positive(record, "unclip")
            if record.unclip > _MOST_UNCLIP:
                yield f"unclip: expected at most {_MOST_UNCLIP}, received {record.unclip}"
        case ReadText() if record.blank < 0:
            yield f"blank: expected at least 0, received {record.blank}"
        case HearVoice():
            yield from _voice(record)
        case SpotWord() if record.rest_ms < 0:
            yield f"rest_ms: expected at least 0, received {record.rest_ms}"
        case Notes():
            yield from _notes(record)
        case WriteSpeech():
            yield from _written(record)
        case Speak():
            yield from _positive(record, "sample_rate")
        case DetectRows():
            yield from _extra(record.extra)
            if isinstance(record.extra, Rotated) and record.box != "xywh":
                yield "box: expected 'xywh' of rotated boxes"
        case Classify() | DetectBoxes() | DetectQueries() | Segment() | Depth():
            pass


def _extra(record: Extra | None) -> Iterator[str]:
    if isinstance(record, Keypoints) and not 1 <= record.count <= _MOST_POINTS:
        yield f"extra.count: expected 1 to {_MOST_POINTS}, received {record.count}"


_MOST_UNCLIP = 10
"""Times; the code published with the method has 1.5 to 2."""

_MOST_POINTS = 1 << 9
"""Of an object; a mesh of a face has 478."""


def _written(record: WriteSpeech) -> Iterator[str]:
    if not record.vocabulary.endswith(".json"):
        yield f"vocabulary: expected a tokenizer.json, received {record.vocabulary!r}"
    for key in ("begin", "end"):
        tokens = getattr(record, key)
        if not 1 <= len(tokens) <= _MOST_TOKENS or not _are_tokens(tokens):
            yield f"{key}: expected 1 to {_MOST_TOKENS} tokens, each 0 to {_LAST_TOKEN}"
    for key in ("suppress", "suppress_first"):
        tokens = getattr(record, key)
        if len(tokens) > _MOST_SUPPRESSED or not _are_tokens(tokens):
            yield f"{key}: expected at most {_MOST_SUPPRESSED} tokens, each 0 to {_LAST_TOKEN}"
    if not 0 <= record.per_second <= _MOST_PER_SECOND:
        yield f"per_second: expected 0 to {_MOST_PER_SECOND}, received {record.per_second}"


def _are_tokens(given: Collection[int]) -> bool:
    return all(0 <= token <= _LAST_TOKEN for token in given)


_LAST_TOKEN = (1 << 31) - 1
_MOST_TOKENS, _MOST_PER_SECOND, _MOST_SUPPRESSED = 64, 1000, 4096
"""Tokens that a text begins or ends with, those of a second of audio, and those that never come."""


def _notes(record: Notes) -> Iterator[str]:
    if not 0 <= record.lowest <= 127 or record.trim < 0:
        received = f"{record.lowest} and {record.trim}"
        yield f"lowest, trim: expected 0 to 127 and at least 0, received {received}"
    if not 0 < record.threshold <= 1:
        # What is used up is 0, and would be found again.
        yield f"threshold: expected above 0 and at most 1, received {record.threshold}"


_MOST_LAYERS = 64
"""Grids of a detector, and anchors of a cell."""


def _anchors(record: DetectAnchors) -> Iterator[str]:
    if not record.boxes or len(record.boxes) != len(record.scores):
        yield "boxes, scores: expected as many outputs of each, at least one"
    if len(record.scales) != 4 or any(s == 0 for s in record.scales):
        yield f"scales: expected 4 numbers other than 0, received {list(record.scales)}"
    if not 1 <= len(record.layers) <= _MOST_LAYERS:
        yield f"layers: expected 1 to {_MOST_LAYERS}, received {len(record.layers)}"
    if record.keypoints < 0:
        yield f"keypoints: expected at least 0, received {record.keypoints}"
    for i, layer in enumerate(record.layers[:_MOST_LAYERS]):
        if len(layer.widths) > _MOST_LAYERS:
            yield f"layers[{i}]: expected at most {_MOST_LAYERS} widths"
        if layer.stride < 1:
            yield f"layers[{i}].stride: expected at least 1, received {layer.stride}"
        if not layer.widths or (layer.heights and len(layer.heights) != len(layer.widths)):
            yield f"layers[{i}]: expected as many heights as widths, at least one"
        if any(size <= 0 for size in (*layer.widths, *layer.heights)):
            yield f"layers[{i}]: expected sizes above 0"


def _grid(record: DetectGrid) -> Iterator[str]:
    if (record.unit == "cells") != bool(record.strides):
        yield "strides: expected with unit = 'cells', and only there"
    if len(record.strides) > _MOST_LAYERS:
        yield f"strides: expected at most {_MOST_LAYERS}, received {len(record.strides)}"
    elif any(stride < 1 for stride in record.strides):
        yield f"strides: expected at least 1, received {list(record.strides)}"
    if record.unit == "cells" and record.box != "xywh":
        yield "box: expected 'xywh' with unit = 'cells'"
    if record.unit == "cells" and record.extra is not None:
        yield "extra: expected only with unit = 'pixels' or 'share'"
    if isinstance(record.extra, Rotated) and record.box != "xywh":
        yield "box: expected 'xywh' of rotated boxes"
    yield from _extra(record.extra)


def _voice(record: HearVoice) -> Iterator[str]:
    if record.release > record.threshold:
        yield f"release: expected at most the threshold {record.threshold}"
    for key in ("least_speech_ms", "least_silence_ms", "pad_ms"):
        if getattr(record, key) < 0:
            yield f"{key}: expected at least 0, received {getattr(record, key)}"


def input_record(record: Preprocessing) -> Iterator[str]:
    """Yield what is wrong with one record, each with the name of its key."""
    yield from _too_large(record)
    match record:
        case ImageInput():
            yield from _image(record)
        case AudioInput():
            yield from _positive(record, "sample_rate", "samples", "hop")
            yield from _windows(record.samples, record.hop, "hop", record.lead)
        case SpectrogramInput():
            yield from _spectrogram(record)
        case TokenInput():
            yield from _positive(record, "vocab_size")
        case TextInput():
            yield from _positive(record, "max_tokens")
            if not record.vocabulary.endswith((".json", ".txt")):
                yield f"vocabulary: expected a .json or .txt file, received {record.vocabulary!r}"
        case SymbolInput():
            yield from _symbols(record)
        case NoiseInput() if not (0 < record.scale < math.inf and record.seed >= 0):
            yield f"scale, seed: expected above 0 and at least 0, received {record.scale} and " + (
                str(record.seed)
            )
        case FrameInput():
            yield from _positive(record, "frames", "hop")
            if record.frames is not None and record.hop > record.frames:
                yield f"hop: expected at most frames = {record.frames}, received {record.hop}"
        case ConstantInput() if not record.values:
            yield "values: expected at least one"
        case StateInput() | ConstantInput() | EncodedInput() | NoiseInput():
            pass


def _symbols(record: SymbolInput) -> Iterator[str]:
    yield from _positive(record, "most")
    if not record.vocabulary.endswith(".json"):
        yield f"vocabulary: expected a .json file, received {record.vocabulary!r}"
    for key in ("begin", "after", "end"):
        ids = getattr(record, key)
        if len(ids) > _MOST_AROUND or min(ids, default=0) < 0:
            yield f"{key}: expected at most {_MOST_AROUND} ids, none below 0"
    if record.espeak is not None and not re.fullmatch(_LANGUAGE, record.espeak):
        yield f"espeak: expected a name such as 'en-us', received {record.espeak[:60]!r}"
    if len(record.marks) > _MOST_MARKS or any(len(mark) != 1 for mark in record.marks):
        yield f"marks: expected at most {_MOST_MARKS} symbols of one character"


_LANGUAGE = r"[a-z]{2,4}(-[A-Za-z0-9]{1,12}){0,4}"
"""No path: eSpeak NG looks its voices up in a folder."""

_MOST_AROUND, _MOST_MARKS = 16, 64
"""Ids around a text and behind each of its symbols, and symbols that part it."""


def _positive(record: object, *keys: str) -> Iterator[str]:
    for key in keys:
        value = getattr(record, key)
        if value is not None and value <= 0:
            yield f"{key}: expected above 0, received {value}"


_MOST = {
    **dict.fromkeys(("width", "height", "side", "longest", "multiple", "fft", "window"), 1 << 16),
    **dict.fromkeys(("samples", "lead"), 1 << 26),
    **dict.fromkeys(("sample_rate", "frames", "max_tokens"), 1 << 20),
    "mels": 1 << 12,
    "most": 3_000,
    "top": 10_000,
    **dict.fromkeys(("least_frames", "gap_frames"), 128),
}
"""What sizes of records may be: memory or time is taken for them, whatever the input has."""


def _too_large(record: object) -> Iterator[str]:
    for key, most in _MOST.items():
        value = getattr(record, key, None)
        if value is not None and value > most:
            yield f"{key}: expected at most {most}, received {value}"


def _windows(samples: int | None, hop: int | None, key: str, lead: int) -> Iterator[str]:
    """Nothing that was recorded may fall between two windows."""
    if lead < 0:
        yield f"lead: expected at least 0, received {lead}"
    if hop is not None and samples is None:
        yield f"{key}: expected only with samples"
    if samples is not None and hop is not None and hop > samples:
        yield f"{key}: expected at most samples = {samples}, received {hop}"
    if samples is not None and hop is not None and samples > _MOST_OVERLAP * hop:
        least = -(-samples // _MOST_OVERLAP)
        yield f"{key}: expected at least {least} of samples = {samples}, received {hop}"


_MOST_OVERLAP, _MOST_TIMES = 512, 4096
"""Windows that one sample may be in, and all that it is read for: each takes memory or time."""

_MOST_BANDS, _MOST_WEIGHTS = 16, 1 << 22
"""Bands for each sample that a spectrogram moves on, and weights that gather them."""


def _spectrogram(record: SpectrogramInput) -> Iterator[str]:
    yield from _positive(record, "sample_rate", "fft", "hop", "mels", "samples", "step", "window")
    yield from _positive(record, "power", "floor", "range_db")
    yield from _windows(record.samples, record.step, "step", 0)
    high = record.sample_rate / 2 if record.high is None else record.high
    if not 0 <= record.low < high <= record.sample_rate / 2:
        yield "low, high: expected 0 <= low < high <= sample_rate / 2"
    if record.fft > _MOST_OVERLAP * record.hop:
        yield f"hop: expected at least {-(-record.fft // _MOST_OVERLAP)} for fft = {record.fft}"
    if record.mels > _MOST_BANDS * record.hop:
        yield f"mels: expected at most {_MOST_BANDS * record.hop} for hop = {record.hop}"
    if record.mels * record.fft > _MOST_WEIGHTS:
        yield f"mels, fft: expected a product of at most {_MOST_WEIGHTS}"
    often = (record.samples or 1) / (record.step or record.samples or 1)
    if often * record.fft / record.hop > _MOST_TIMES:
        yield f"samples, step, fft, hop: a sample is read more than {_MOST_TIMES} times"
    if record.window is not None and record.window > record.fft:
        yield f"window: expected at most fft = {record.fft}, received {record.window}"
    if record.std == 0:
        yield "std: a divisor is 0"


_MOST_PIXELS = 1 << 24


def _image(record: ImageInput) -> Iterator[str]:
    yield from _positive(record, "width", "height", "side", "longest", "multiple")
    if (pixels := (record.width or 1) * (record.height or 1)) > _MOST_PIXELS:
        yield f"width, height: expected at most {_MOST_PIXELS} pixels, received {pixels}"
    if not 0 < record.crop_ratio <= 1:
        yield f"crop_ratio: expected above 0 and at most 1, received {record.crop_ratio}"
    channels = 1 if record.color == "GRAY" else 3
    for key in ("mean", "std"):
        values = getattr(record, key)
        if len(values) not in (1, channels):
            yield f"{key}: expected {channels} values, received {len(values)}"
    if any(value == 0 for value in record.std):
        yield "std: a divisor is 0"
    if not (math.isfinite(record.pad) and 0 <= record.pad <= 255):
        yield f"pad: expected 0 to 255, received {record.pad}"
    if not record.antialias and record.interpolation != "bilinear":
        yield f"antialias: false is for bilinear, not {record.interpolation}"
    if (record.resize == "limit") != (record.side is not None):
        yield "side: expected with resize = 'limit', and only there"
    if record.longest is not None and (record.side is None or record.longest < record.side):
        yield f"longest: expected with side, and at least as long, received {record.longest}"
