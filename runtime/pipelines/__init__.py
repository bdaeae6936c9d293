"""From images, recordings and texts to names, boxes, notes and texts, by what bundles say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, FindText, ReadText, Speak, WriteSpeech
from edgeinfer.runtime.pipelines.audio import AudioPipeline, AudioStream
from edgeinfer.runtime.pipelines.image import ImagePipeline
from edgeinfer.runtime.pipelines.lines import LinesPipeline
from edgeinfer.runtime.pipelines.model import PipelineModel
from edgeinfer.runtime.pipelines.names import ALIASES, TASKS, check_name, check_task
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


PathLike = str | os.PathLike[str]


def pipeline(
    *bundles: PathLike,
    task: str | None = None,
    model: PathLike | Sequence[PathLike] | None = None,
    **options: Any,
) -> Pipeline:
    """Open one bundle, or several that work together, as what their records say they are.

    Several are either a chain, in which each model takes the frames that the one before gives
    (audio to features to a word, or to a text), or one that finds text, one that reads it and
    maybe one that tells which way up it is, in any order.

    >>> named = edgeinfer.pipeline("lite0.edge")("cat.jpg")            # doctest: +SKIP
    >>> ocr = edgeinfer.pipeline("det.edge", "cls.edge", "rec.edge")   # doctest: +SKIP
    >>> named = edgeinfer.pipeline("image-classification", model="lite0.edge")  # doctest: +SKIP

    Args:
        *bundles: paths; next to ``model`` the task instead, as in transformers.
        task: what it is for, by the name that transformers has for it; a bundle for something else
            is refused. None takes any.
        model: path of the bundle, or of several.
        **options: Options of ``edgeinfer.load``.

    Raises:
        UsageError: a bundle does not say what its outputs mean, is for another task, or they do not
            fit together; or no task has that name.
    """
    task, bundles = _asked(bundles, task, model)
    if not bundles:
        raise UsageError("pipeline: no bundle given")
    models: list[PipelineModel] = []
    try:
        # One at a time: what was opened before one that fails is closed.
        models.extend(PipelineModel(bundle, **options) for bundle in bundles)
        made = put_together(models)
        if task is not None:
            check_task(task, models[-1].path, made.takes, made.models[-1].head)
        return made  # noqa: TRY300 - whatever fails above closes what was opened
    except BaseException:
        for each in models:
            each.close()
        raise


def _asked(
    bundles: tuple[PathLike, ...],
    task: str | None,
    model: PathLike | Sequence[PathLike] | None,
) -> tuple[str | None, tuple[PathLike, ...]]:
    """Return the task, if one was named, and the bundles.

    Raises:
        UsageError: no task has that name, or it was given twice.
    """
    if model is not None:
        if len(bundles) + (task is not None) > 1:
            raise UsageError("pipeline: with model= expected the name of one task")
        named = task if task is not None else os.fspath(bundles[0]) if bundles else None
        task, bundles = named, (model,) if isinstance(model, str | os.PathLike) else (*model,)
    elif len(bundles) == 1 and os.fspath(bundles[0]) in {*TASKS, *ALIASES}:
        raise UsageError(f"pipeline: {bundles[0]!r}: name the bundle too: model='model.edge'")
    if task is not None:
        check_name(task)
    return task, bundles


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
