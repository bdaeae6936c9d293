"""Tasks by the names that Hugging Face gives them, and which bundles are for them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import get_args

from edgeinfer.errors import UsageError
from edgeinfer.heads import (
    Classify,
    Depth,
    Detect,
    Embed,
    Head,
    Segment,
    Speak,
    WriteSpeech,
)
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """What a task takes and gives.

    Attributes:
        takes: as a pipeline says it.
        heads: what its outputs may mean.
    """

    takes: str
    heads: tuple[type, ...]


_PICTURE, _RECORDING, _TEXT = "an image", "a recording", "a text"

TASKS: Mapping[str, PipelineTask] = {
    "image-classification": PipelineTask(_PICTURE, (Classify,)),
    "audio-classification": PipelineTask(_RECORDING, (Classify,)),
    "text-classification": PipelineTask(_TEXT, (Classify,)),
    "object-detection": PipelineTask(_PICTURE, get_args(Detect)),
    "image-segmentation": PipelineTask(_PICTURE, (Segment,)),
    "depth-estimation": PipelineTask(_PICTURE, (Depth,)),
    "feature-extraction": PipelineTask(_TEXT, (Embed,)),
    "image-feature-extraction": PipelineTask(_PICTURE, (Embed,)),
    "automatic-speech-recognition": PipelineTask(_RECORDING, (WriteSpeech,)),
    "text-to-speech": PipelineTask(_TEXT, (Speak,)),
}
"""By the name in transformers."""

ALIASES = {"sentiment-analysis": "text-classification", "text-to-audio": "text-to-speech"}
"""Other names that transformers takes."""


def check_name(task: str) -> None:
    """Refuse a name that no task has.

    Raises:
        UsageError: it lists those there are.
    """
    names = sorted({*TASKS, *ALIASES})
    if task in names:
        return
    close = get_close_matches(task, names, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UsageError(f"task {task!r}: expected one of {', '.join(names)}{hint}")


def check_task(task: str, bundle: str, takes: str, head: Head) -> None:
    """Refuse a bundle that is for another task.

    Args:
        task: a name in ``TASKS`` or ``ALIASES``.
        bundle: path of the last one.
        takes: what the pipeline takes.
        head: what its outputs mean.

    Raises:
        UsageError: as said; it names the tasks that the bundle is for.
    """
    wanted = TASKS[ALIASES.get(task, task)]
    if takes == wanted.takes and isinstance(head, wanted.heads):
        return
    fit = [n for n, t in TASKS.items() if takes == t.takes and isinstance(head, t.heads)]
    hint = f"; it is for {' or '.join(map(repr, fit))}" if fit else "; leave the task's name out"
    raise UsageError(f"{bundle}: takes {takes} and gives {head.kind!r}; not for {task!r}{hint}")
