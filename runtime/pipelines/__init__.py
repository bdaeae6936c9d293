"""From images, recordings and texts to names, boxes, notes and texts, by what bundles say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.opening import openings
from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, FindText, HearVoice, ReadText, Speak, WriteSpeech
from edgeinfer.llm.generation import is_text
from edgeinfer.runtime.pipelines.audio import AudioPipeline, AudioStream
from edgeinfer.runtime.pipelines.image import ImagePipeline
from edgeinfer.runtime.pipelines.lines import LinesPipeline
from edgeinfer.runtime.pipelines.model import PipelineModel
from edgeinfer.runtime.pipelines.names import ALIASES, TASKS, check_name, check_task
from edgeinfer.runtime.pipelines.sentence import SentencePipeline
from edgeinfer.runtime.pipelines.speech import SpeechPipeline
from edgeinfer.runtime.pipelines.spoken import Chats, SpokenPipeline
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
    "SpokenPipeline",
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
    | SpokenPipeline
    | VoicePipeline
)


PathLike = str | os.PathLike[str]

_SPOKEN = 3
"""Models that find speech, hear and write."""


def pipeline(
    *bundles: PathLike | Chats,
    task: str | None = None,
    model: PathLike | Sequence[PathLike] | None = None,
    **options: Any,
) -> Pipeline:
    """Open one bundle, or several that work together, as what their records say they are.

    Several are either a chain, in which each model takes the frames that the one before gives
    (audio to features to a word, or to a text), or one that finds text, one that reads it and
    maybe one that tells which way up it is, in any order. Before a chain to a text may stand one
    that finds speech, and then behind it a language model, which answers.

    >>> named = edgeinfer.pipeline("lite0.edge")("cat.jpg")            # doctest: +SKIP
    >>> ocr = edgeinfer.pipeline("det.edge", "cls.edge", "rec.edge")   # doctest: +SKIP
    >>> named = edgeinfer.pipeline("image-classification", model="lite0.edge")  # doctest: +SKIP

    Args:
        *bundles: paths; next to ``model`` the task instead, as in transformers. A language model
            may be an ``LLM``, which stays its owner's.
        task: what it is for, by the name that transformers has for it; a bundle for something else
            is refused. None takes any.
        model: path of the bundle, or of several.
        **options: Options of ``edgeinfer.load``.

    Raises:
        UsageError: a bundle does not say what its outputs mean, is for another task, or they do not
            fit together; or no task has that name.
    """
    given = bundles[-1] if bundles else None
    llm = given if isinstance(given, Chats) else None
    named = tuple(bundle for bundle in bundles if not isinstance(bundle, Chats))
    if len(named) + (llm is not None) != len(bundles):
        raise UsageError("pipeline: one language model, as the last")
    task, paths = _asked(named, task, model)
    if not paths:
        raise UsageError("pipeline: no bundle given")
    models: list[PipelineModel] = []
    is_owner = llm is None and len(paths) > 1 and _is_text(paths[-1], options)
    try:
        # One at a time: what was opened before one that fails is closed.
        models.extend(PipelineModel(path, **options) for path in paths[: len(paths) - is_owner])
        if is_owner:
            from edgeinfer.runtime.llm.llm import LLM

            threads = options.get("threads") or 0
            llm = LLM(paths[-1], threads=threads, **openings(options))
        made = put_together(models, llm, is_owner=is_owner)
        if task is not None:
            check_task(task, models[-1].path, made.takes, made.models[-1].head)
        return made  # noqa: TRY300 - whatever fails above closes what was opened
    except BaseException:
        for each in (*models, *((llm,) if is_owner and llm is not None else ())):
            each.close()
        raise


def _is_text(path: PathLike, options: Mapping[str, Any]) -> bool:
    with Bundle.open(path, verify=False, **openings(options)) as bundle:
        return is_text(bundle.manifest)


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


def put_together(
    models: list[PipelineModel], llm: Chats | None = None, *, is_owner: bool = False
) -> Pipeline:
    """Return the pipeline that opened models make; as ``pipeline``.

    Args:
        models: in order.
        llm: answers what was said; None for none.
        is_owner: it is closed with the pipeline.

    Raises:
        UsageError: they do not fit together.
    """
    first = models[0]
    if isinstance(first.head, HearVoice) and len(models) == _SPOKEN:
        voice, speech = AudioPipeline(models[:1]), SpeechPipeline(*models[1:])
        return SpokenPipeline(voice, speech, llm, is_owner=is_owner)
    if llm is not None:
        raise UsageError(
            f"{first.path}: before a language model expected one that finds speech, one that hears "
            "and one that writes"
        )
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
