"""From pictures, recordings and texts to names, boxes, notes and texts, by what bundles say."""

from __future__ import annotations

import os
from typing import Any

from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, FindText, ReadText, Speak, WriteSpeech
from edgeinfer.runtime.pipelines.audio import AudioPipeline, AudioStream
from edgeinfer.runtime.pipelines.image import ImagePipeline
from edgeinfer.runtime.pipelines.lines import LinesPipeline
from edgeinfer.runtime.pipelines.model import PipelineModel
from edgeinfer.runtime.pipelines.sentence import SentencePipeline
from edgeinfer.runtime.pipelines.speech import SpeechPipeline
from edgeinfer.runtime.pipelines.voice import VoicePipeline
from edgeinfer.types import AudioInput, FrameInput, ImageInput, SpectrogramInput, TextInput

__all__ = [
    "AudioPipeline",
    "AudioStream",
    "ImagePipeline",
    "LinesPipeline",
    "Pipeline",
    "PipelineModel",
    "SentencePipeline",
    "SpeechPipeline",
    "VoicePipeline",
    "pipeline",
    "put_together",
]

Pipeline = (
    ImagePipeline
    | AudioPipeline
    | LinesPipeline
    | SentencePipeline
    | SpeechPipeline
    | VoicePipeline
)


def pipeline(*bundles: str | os.PathLike[str], **options: Any) -> Pipeline:
    """Open one bundle, or several that work together, as what their records say they are.

    Several are either a chain, in which each model takes the frames that the one before gives
    (sound to features to a word, or to a text), or one that finds text, one that reads it and
    maybe one that tells which way up it is, in any order.

    >>> named = edgeinfer.pipeline("lite0.edge")("cat.jpg")            # doctest: +SKIP
    >>> ocr = edgeinfer.pipeline("det.edge", "cls.edge", "rec.edge")   # doctest: +SKIP

    Args:
        *bundles: paths.
        **options: Options of ``edgeinfer.load``.

    Raises:
        UsageError: a bundle does not say what its outputs mean, or they do not fit together.
    """
    if not bundles:
        raise UsageError("pipeline: no bundle given")
    models: list[PipelineModel] = []
    try:
        # One at a time: what was opened before one that fails is closed.
        models.extend(PipelineModel(bundle, **options) for bundle in bundles)
        return put_together(models)
    except BaseException:
        for model in models:
            model.close()
        raise


def put_together(models: list[PipelineModel]) -> Pipeline:
    """Return the pipeline that opened models make; as ``pipeline``.

    Raises:
        UsageError: they do not fit together.
    """
    first = models[0]
    if len(models) == 1 and isinstance(first.head, Speak):
        return VoicePipeline(first)
    if len(models) == 1:
        match first.record:
            case ImageInput():
                return ImagePipeline(first)
            case AudioInput() | SpectrogramInput():
                return AudioPipeline(models)
            case TextInput():
                return SentencePipeline(first)
            case _:
                kind = "frames of another model" if isinstance(first.record, FrameInput) else "ids"
                raise UsageError(f"{first.path}: takes {kind}; name the bundle that gives them too")
    if len(models) == 2 and isinstance(models[1].head, WriteSpeech):
        return SpeechPipeline(*models)
    if isinstance(first.record, AudioInput | SpectrogramInput):
        return AudioPipeline(models)
    return _lines(models)


def _lines(models: list[PipelineModel]) -> LinesPipeline:
    kinds: dict[type, PipelineModel] = {type(model.head): model for model in models}
    find, read, turn = kinds.pop(FindText, None), kinds.pop(ReadText, None), None
    if len(models) == 3:
        turn = kinds.pop(Classify, None)
    if find is None or read is None or kinds or len(models) > 2 + (turn is not None):
        given = ", ".join(f"{m.path} ({m.head.kind})" for m in models)
        raise UsageError(
            f"pipeline: {given} do not work together; expected one of kind 'find_text', one of "
            "'read_text' and at most one of 'classify', or a chain that begins with a recording"
        )
    return LinesPipeline(find, read, turn)
