"""Pipelines by the names of transformers' tasks: the right bundle opens, another is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.errors import UsageError
from edgeinfer.heads import Classify, Depth, DetectGrid, Embed, Segment
from edgeinfer.runtime.pipelines.names import ALIASES, TASKS
from edgeinfer.types import AudioInput, ConstantInput, ImageInput, TextInput
from tests.runtime.pipelines import test_image, test_sentence, test_speech, test_voice
from tests.runtime.pipelines.conftest import MakeBundle

MAP = """
grey (float[1, 3, 4, 4] image) => (float[1, H, W] map)
{
    axis = Constant <value_ints = [1]> ()
    map = ReduceMean <axes = [1], keepdims = 0> (image)
}
"""
PLANES = """
planes (float[1, 3, 4, 4] image) => (float[1, 3, 4, 4] map) { map = Relu(image) }
"""
LEVEL = """
level (float[1, T] x) => (float[1, 2] y)
{
    most = ReduceMax <axes = [1], keepdims = 1> (x)
    none = Sub(most, most)
    y = Concat <axis = 1> (most, none)
}
"""
PICTURE = ImageInput(4, 4)


def bundles(make: MakeBundle) -> dict[str, list[Path]]:
    """One for each task."""
    pictures = {"preprocessing": {"image": PICTURE}}
    ids, mask = TextInput("vocab.txt", 6), TextInput("vocab.txt", 6, field="mask")
    texts = {"preprocessing": {"ids": ids, "mask": mask}}
    words = {"vocab.txt": test_sentence.PIECES}
    boxes = {"image": ImageInput(8, 8, resize="letterbox"), "bias": ConstantInput((-0.5,))}
    vector = test_image.COLOURS
    return {
        "image-classification": [make("a", vector, head=Classify(), **pictures)],
        "audio-classification": [
            make("b", LEVEL, head=Classify(), preprocessing={"x": AudioInput(1000)})
        ],
        "text-classification": [make("c", test_sentence.COUNT, words, head=Classify(), **texts)],
        "object-detection": [make("d", test_image.BOXES, head=DetectGrid(), preprocessing=boxes)],
        "image-segmentation": [make("e", PLANES, head=Segment(), **pictures)],
        "depth-estimation": [make("f", MAP, head=Depth(), **pictures)],
        "feature-extraction": [
            make("g", test_sentence.COUNT, words, head=Embed(pooling="mean"), **texts)
        ],
        "image-feature-extraction": [make("h", vector, head=Embed(), **pictures)],
        "automatic-speech-recognition": [*test_speech.bundles(make)],
        "text-to-speech": [test_voice.voice(make)],
    }


def test_every_task_takes_its_bundle_and_no_other(make: MakeBundle) -> None:
    pytest.importorskip("tokenizers")
    made = bundles(make)
    assert made.keys() == TASKS.keys()
    for task, paths in made.items():
        model = paths if len(paths) > 1 else paths[0]
        with edgeinfer.pipeline(task, model=model) as opened:
            assert opened.models[-1].head is not None
        for other in TASKS.keys() - {task}:
            with pytest.raises(UsageError) as caught:
                edgeinfer.pipeline(other, model=model)
            assert str(caught.value).endswith(f"not for {other!r}; it is for {task!r}")


def test_other_names_and_ways_to_say_it(make: MakeBundle) -> None:
    path = test_voice.voice(make)
    assert set(ALIASES.values()) <= TASKS.keys()
    for said in (
        edgeinfer.pipeline("text-to-audio", model=path),
        edgeinfer.pipeline(task="text-to-speech", model=str(path)),
        edgeinfer.pipeline(path, task="text-to-speech"),
        edgeinfer.pipeline(model=[path]),
    ):
        with said as opened:
            assert opened.takes == "a text"


def test_what_is_no_task(make: MakeBundle) -> None:
    path = test_voice.voice(make)
    with pytest.raises(UsageError, match=r"expected one of audio-.*; did you mean 'object-detec"):
        edgeinfer.pipeline("object_detection", model=path)
    with pytest.raises(UsageError, match="'text-to-speech': name the bundle too: model="):
        edgeinfer.pipeline("text-to-speech")
    with pytest.raises(UsageError, match="expected the name of one task"):
        edgeinfer.pipeline("text-to-speech", path, model=path)
    with pytest.raises(UsageError, match="expected the name of one task"):
        edgeinfer.pipeline("text-to-speech", task="text-to-speech", model=path)
    with pytest.raises(UsageError, match="no bundle given"):
        edgeinfer.pipeline("text-to-speech", model=[])
