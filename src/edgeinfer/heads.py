"""What the outputs of a model mean: one record a task, kept in the bundle as JSON.

``output`` and the like are names of outputs; where one is None the model has a single output.
"""

from __future__ import annotations

from typing import Literal

from edgeinfer.records import dataclass

Activation = Literal["none", "softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Classify:
    """Scores of classes; their names are the manifest's labels.

    Attributes:
        output: (..., classes).
        activation: what is still to be applied.
        top: classes to tell.
        threshold: least score.
    """

    output: str | None = None
    activation: Activation = "none"
    top: int = 5
    threshold: float = 0.0
    kind: Literal["classify"] = "classify"


@dataclass(frozen=True, slots=True)
class AnchorLayer:
    """Anchors of one grid: one of each size at the middle of every cell, row by row.

    Attributes:
        stride: pixels of the input from cell to cell.
        widths: Widths of the anchors of a cell, in pixels of the input.
        heights: likewise; empty: the widths.
    """

    stride: int
    widths: tuple[float, ...]
    heights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DetectAnchors:
    """Boxes relative to anchors, as SSD and BlazeFace give them.

    Attributes:
        boxes: outputs (1, n, at least 4); several are one behind the other.
        scores: outputs (1, n, classes), in the same order.
        layers: Layers of anchors, in the order of the boxes.
        order: Order of a box's numbers: ``xywh`` or ``yxhw``; keypoints follow in x, y (or y, x).
        scales: divisors of x, y, w, h.
        exponential: sizes are exp(w) times the anchor's, else w times.
        activation: Activation of scores; ``softmax`` takes a background class, which is the first.
        background: the first class is no object.
        keypoints: points that follow each box.
        threshold: least score.
        overlap: share (intersection over union) from which two boxes are one object.
        merge: ``suppress`` keeps the best of them, ``weighted`` their mean weighted by score.
        per_class: only boxes of one class may be one object.
        most: objects to tell.
    """

    boxes: tuple[str, ...]
    scores: tuple[str, ...]
    layers: tuple[AnchorLayer, ...]
    order: Literal["xywh", "yxhw"] = "xywh"
    scales: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    exponential: bool = False
    activation: Activation = "sigmoid"
    background: bool = False
    keypoints: int = 0
    threshold: float = 0.5
    overlap: float = 0.3
    merge: Literal["suppress", "weighted"] = "suppress"
    per_class: bool = True
    most: int = 100
    kind: Literal["anchors"] = "anchors"


@dataclass(frozen=True, slots=True)
class Keypoints:
    """Points of each object: x and y, in the unit of the boxes.

    Attributes:
        count: Count of the points.
        scored: a score follows each of them.
    """

    count: int
    scored: bool = True
    kind: Literal["keypoints"] = "keypoints"


@dataclass(frozen=True, slots=True)
class Prototypes:
    """A mask of each object: the prototypes, weighted and added (Bolya et al. 2019, sec. 3.1).

    Attributes:
        output: (1, weights, height, width) or, ``channels_last``, (1, height, width, weights).
        channels_last: see above.
    """

    output: str
    channels_last: bool = False
    kind: Literal["prototypes"] = "prototypes"


@dataclass(frozen=True, slots=True)
class Rotated:
    """Each box is rotated about its middle, clockwise, by an angle in radians."""

    kind: Literal["turned"] = "turned"


Extra = Keypoints | Prototypes | Rotated
"""What the numbers behind an object's scores are."""


@dataclass(frozen=True, slots=True)
class DetectGrid:
    """Boxes of every cell of one or several grids, as the YOLO family gives them.

    Attributes:
        output: (1, n, numbers) or, ``channels_first``, (1, numbers, n); the numbers are a box, the
            score of there being an object where ``objectness``, one score a class, the ``extra``.
        channels_first: see above.
        objectness: see above; class scores are multiplied by it.
        box: ``xywh`` (middle and size) or ``xyxy`` (corners).
        unit: ``pixels`` of the input, ``share`` of its sides, or ``cells``: the middle is relative
            to the cell, sizes are logarithms, both in units of the stride (YOLOX).
        strides: Strides of the grids, for ``cells``; in the order of the boxes.
        activation: Activation of all scores: ``none`` or ``sigmoid``.
        threshold: least score.
        overlap: share from which two boxes are one object.
        per_class: only boxes of one class may be one object.
        most: objects to tell.
        extra: what follows the scores.
    """

    output: str | None = None
    channels_first: bool = False
    objectness: bool = False
    box: Literal["xywh", "xyxy"] = "xywh"
    unit: Literal["pixels", "share", "cells"] = "pixels"
    strides: tuple[int, ...] = ()
    activation: Literal["none", "sigmoid"] = "none"
    threshold: float = 0.25
    overlap: float = 0.45
    per_class: bool = True
    most: int = 100
    extra: Extra | None = None
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True, slots=True)
class DetectRows:
    """Objects that the model itself thinned out, each a row of one output: YOLO v10 and v26.

    Attributes:
        output: (1, n, numbers) or (n, numbers): a box, a score, a class, and the ``extra``.
        box: ``xyxy`` (corners) or ``xywh`` (middle and size).
        unit: ``pixels`` of the input or ``share`` of its sides.
        threshold: least score.
        most: objects to tell.
        extra: what follows the class.
    """

    output: str | None = None
    box: Literal["xyxy", "xywh"] = "xyxy"
    unit: Literal["pixels", "share"] = "pixels"
    threshold: float = 0.25
    most: int = 300
    extra: Extra | None = None
    kind: Literal["rows"] = "rows"


@dataclass(frozen=True, slots=True)
class DetectQueries:
    """Objects of a decoder's queries, which need no thinning out: the DETR family.

    Attributes:
        boxes: output (1, queries, 4): middle and size in shares of the input's sides.
        scores: output (1, queries, classes), raw. With ``sigmoid`` each pair of query and class may
            be an object, as many of the best as there are queries; with ``softmax`` the last class
            is no object, and each query is at most one.
        masks: output (1, queries, height, width), raw; a pixel belongs to the object above 0.
        activation: Activation of the scores.
        threshold: least score.
        most: objects to tell.
    """

    boxes: str
    scores: str
    masks: str | None = None
    activation: Literal["sigmoid", "softmax"] = "sigmoid"
    threshold: float = 0.5
    most: int = 300
    kind: Literal["queries"] = "queries"


@dataclass(frozen=True, slots=True)
class DetectBoxes:
    """Boxes that the model itself decoded and thinned out.

    Attributes:
        boxes: output (1, n, 4) or (n, 4).
        scores: output (1, n) or (n,).
        classes: output (1, n) or (n,); None: all are of the first class.
        order: Order of a box's numbers: ``xyxy`` or ``yxyx``.
        unit: ``pixels`` of the input or ``share`` of its sides.
        first: number of the first class.
        threshold: least score.
    """

    boxes: str
    scores: str
    classes: str | None = None
    order: Literal["xyxy", "yxyx"] = "xyxy"
    unit: Literal["pixels", "share"] = "pixels"
    first: int = 0
    threshold: float = 0.5
    kind: Literal["boxes"] = "boxes"


@dataclass(frozen=True, slots=True)
class FindText:
    """A map of how likely each pixel is text (Liao et al. 2020), to rotated boxes of lines.

    Attributes:
        output: (1, 1, height, width), 0..1.
        threshold: Threshold of a pixel.
        box_threshold: least mean over a box.
        unclip: area times this over the outline's length is how far a box is widened.
        dilate: pixels right of and below text are text.
        least_side: pixels of the map; smaller regions are dropped.
        most: regions to look at.
    """

    output: str | None = None
    threshold: float = 0.3
    box_threshold: float = 0.6
    unclip: float = 1.5
    dilate: bool = False
    least_side: float = 3.0
    most: int = 1000
    kind: Literal["find_text"] = "find_text"


@dataclass(frozen=True, slots=True)
class ReadText:
    """Scores of characters in every column, to text: the best path of CTC (Graves et al. 2006).

    Attributes:
        output: (batch, columns, characters), probabilities.
        charset: file below ``pipeline/``: one character a line, in the order of the scores.
        blank: index of the score of no character; the file has no line for it.
        space: the last score is that of a space; the file has no line for it.
        threshold: least mean score of a text.
    """

    charset: str
    output: str | None = None
    blank: int = 0
    space: bool = False
    threshold: float = 0.0
    kind: Literal["read_text"] = "read_text"


@dataclass(frozen=True, slots=True)
class Segment:
    """A class for every pixel; names are the manifest's labels.

    Attributes:
        output: (1, classes, height, width) or, ``channels_last``, (1, height, width, classes).
        channels_last: see above.
        activation: what is still to be applied; of one channel: ``none`` or ``sigmoid``.
        threshold: Threshold of one channel: score from which a pixel belongs to class 1.
    """

    output: str | None = None
    channels_last: bool = False
    activation: Activation = "none"
    threshold: float = 0.5
    kind: Literal["segment"] = "segment"


@dataclass(frozen=True, slots=True)
class Depth:
    """How far away each pixel is.

    Attributes:
        output: (1, height, width), with or without an axis of one channel.
        interpolation: Interpolation to the size of the image; ``bicubic`` is PyTorch's.
        nearer: whether the number of a nearer pixel is ``larger``, as those of relative depth are,
            which have no unit, or ``smaller``, as distances are.
    """

    output: str | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    nearer: Literal["larger", "smaller"] = "larger"
    kind: Literal["depth"] = "depth"


@dataclass(frozen=True, slots=True)
class Embed:
    """A vector that is near those of like inputs.

    Attributes:
        output: (1, size), or (1, tokens, size) where ``pooling`` is not ``none``.
        pooling: ``mean`` over the tokens that the mask keeps, or ``first`` token.
        normalize: to length 1.
    """

    output: str | None = None
    pooling: Literal["none", "mean", "first"] = "none"
    normalize: bool = True
    kind: Literal["embed"] = "embed"


@dataclass(frozen=True, slots=True)
class Notes:
    """How likely each note begins and sounds, to notes (Bittner et al. 2022, sec. 2.3).

    Attributes:
        onsets: output (windows, frames, notes).
        sounding: output (windows, frames, notes).
        frame_samples: Frame samples of the recording in one frame.
        trim: frames to leave out at both ends of each window.
        lowest: MIDI number of the first note.
        onset_threshold: Onset threshold of a note's beginning.
        threshold: Threshold of its sounding on.
        least_frames: shorter notes are dropped.
        gap_frames: so long may a note fall below the threshold.
        infer_onsets: a sudden rise of loudness is a beginning too.
        leftover: notes without a beginning are looked for in what is left.
    """

    onsets: str
    sounding: str
    frame_samples: int
    trim: int = 0
    lowest: int = 21
    onset_threshold: float = 0.5
    threshold: float = 0.3
    least_frames: int = 11
    gap_frames: int = 11
    infer_onsets: bool = True
    leftover: bool = True
    kind: Literal["notes"] = "notes"


@dataclass(frozen=True, slots=True)
class HearVoice:
    """The probability of speech in each window, to stretches of speech.

    Attributes:
        output: (1, 1).
        threshold: speech begins at it.
        release: speech ends below it.
        least_speech_ms: shorter speech is dropped.
        least_silence_ms: shorter silence does not end speech.
        pad_ms: added at both ends.
    """

    output: str | None = None
    threshold: float = 0.5
    release: float = 0.35
    least_speech_ms: float = 250.0
    least_silence_ms: float = 100.0
    pad_ms: float = 30.0
    kind: Literal["voice"] = "voice"


@dataclass(frozen=True, slots=True)
class SpotWord:
    """How likely a word was just said.

    Attributes:
        word: its name.
        output: (1, 1).
        threshold: it counts from here on.
        rest_ms: after one, none is reported for so long.
    """

    word: str
    output: str | None = None
    threshold: float = 0.5
    rest_ms: float = 1000.0
    kind: Literal["word"] = "word"


@dataclass(frozen=True, slots=True)
class WriteSpeech:
    """Tokens of what is said, each the likeliest behind those before; by a decoder over frames.

    The model takes the tokens so far, or where its input holds one the last alone and keeps what it
    needs in states, and all frames that the model before it in a chain gives, or what that one
    encoded for it.

    Attributes:
        vocabulary: file below ``pipeline/``: a ``tokenizer.json``.
        begin: Tokens that every text begins with, which are no text.
        end: Tokens that end it.
        output: (1, tokens, scores).
        most: tokens of a text, the first ones left aside.
        per_second: the same for a second of audio; 0 for no such limit.
        suppress: tokens that never come.
        suppress_first: tokens that are not the first of a text.
    """

    vocabulary: str
    begin: tuple[int, ...]
    end: tuple[int, ...]
    output: str | None = None
    most: int = 448
    per_second: float = 0.0
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    kind: Literal["write_speech"] = "write_speech"


@dataclass(frozen=True, slots=True)
class Speak:
    """Samples of a voice, -1..1.

    Attributes:
        sample_rate: Hz.
        output: all axes but one are of size 1.
    """

    sample_rate: int
    output: str | None = None
    kind: Literal["speak"] = "speak"


@dataclass(frozen=True, slots=True)
class Encode:
    """All outputs are for the decoder that follows, by their names."""

    kind: Literal["encode"] = "encode"


@dataclass(frozen=True, slots=True)
class Features:
    """Frames for the next model of a chain: value * scale + offset.

    Attributes:
        output: its last axis is the frame's; all others are time, in C order.
        scale: factor.
        offset: added afterwards.
    """

    output: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    kind: Literal["features"] = "features"


Head = (
    Classify
    | DetectAnchors
    | DetectGrid
    | DetectBoxes
    | DetectRows
    | DetectQueries
    | Depth
    | FindText
    | ReadText
    | Segment
    | Embed
    | Notes
    | HearVoice
    | SpotWord
    | WriteSpeech
    | Speak
    | Features
    | Encode
)
"""What the bundle records about the outputs."""

Detect = DetectAnchors | DetectGrid | DetectBoxes | DetectRows | DetectQueries
"""Heads that give ``Detection``."""


def outputs_of(head: Head) -> tuple[str | None, ...]:
    """Name the outputs that a head reads; None where the model's only one is meant."""
    match head:
        case DetectAnchors():
            return (*head.boxes, *head.scores)
        case DetectBoxes():
            extra = () if head.classes is None else (head.classes,)
            return (head.boxes, head.scores, *extra)
        case DetectQueries():
            masks = () if head.masks is None else (head.masks,)
            return (head.boxes, head.scores, *masks)
        case DetectGrid(extra=Prototypes() as extra) | DetectRows(extra=Prototypes() as extra):
            return (head.output, extra.output)
        case Encode():
            return ()
        case Notes():
            return (head.onsets, head.sounding)
        case _:
            return (head.output,)


def files_of(head: Head | None) -> tuple[str, ...]:
    """Name the files below ``pipeline/`` that a head reads."""
    match head:
        case ReadText():
            return (head.charset,)
        case WriteSpeech():
            return (head.vocabulary,)
        case _:
            return ()
