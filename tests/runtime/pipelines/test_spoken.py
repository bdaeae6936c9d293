"""Speech is found in a recording, written down and answered, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer.cli.pipeline_output import as_table
from edgeinfer.errors import ClosedError, InputError, UsageError
from edgeinfer.results import Reply, Result, Text, VoiceActivity, as_json
from edgeinfer.runtime.llm.llm import LLM
from edgeinfer.runtime.llm.params import SamplingParams
from edgeinfer.runtime.pipelines import SpokenPipeline
from edgeinfer.tasks import SpeechTranscriber
from edgeinfer.types import Array, AudioInput, StateInput
from tests.runtime.llm.test_llm import model as tiny_model
from tests.runtime.pipelines import test_speech
from tests.runtime.pipelines.conftest import MakeBundle
from tests.runtime.pipelines.test_audio import LOUDNESS, RATE, SOUND, VOICE
from tests.runtime.serve.conftest import text_bundle

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def spoken(make: MakeBundle) -> list[Path]:
    """Bundles for which loudness 0.6 says "ab" and 0.9 says "cd", three times."""
    records = {"x": SOUND, "h": StateInput("hn")}
    voice = make("voice", LOUDNESS, head=VOICE, preprocessing=records)
    sound = AudioInput(RATE, gain=10 / 3)
    return [voice, *test_speech.bundles(make, sound=sound, said=test_speech.head(most=3))]


def recording() -> Array:
    signal = np.zeros(700, np.float32)
    signal[100:200], signal[400:520] = 0.6, 0.9
    return signal


TEXTS = ["ababab", "cdcdcd"]


@pytest.fixture
def paths(make: MakeBundle) -> list[Path]:
    return spoken(make)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    monkeypatch.setattr(LLM, "_open", lambda *_: tiny_model())
    with LLM("tiny.edge") as made:
        yield made


def opened(*bundles: Any) -> SpokenPipeline:
    found = edgeinfer.pipeline(*bundles, threads=1)
    assert isinstance(found, SpokenPipeline)
    return found


def kinds(found: list[Result]) -> list[type]:
    return [type(each) for each in found]


def test_what_is_said_in_each_stretch(paths: list[Path]) -> None:
    with opened(*paths) as pipeline:
        found = pipeline(recording(), RATE)
        assert pipeline(np.zeros(700, np.float32), RATE) == []
        with pytest.raises(InputError, match="its sample rate"):
            pipeline(recording())
        with pytest.raises(UsageError, match="no language model answers"):
            pipeline.reply("hello")
    assert kinds(found) == [VoiceActivity, Text] * 2
    assert [each.text for each in found if isinstance(each, Text)] == TEXTS
    times = [(each.start, each.end) for each in found if isinstance(each, VoiceActivity)]
    assert times == pytest.approx(np.array([(0.11, 0.21), (0.41, 0.53)]), abs=0.02)
    with SpeechTranscriber(*paths) as writer:
        assert writer.transcribe(recording(), RATE) == " ".join(TEXTS)


@pytest.mark.parametrize("size", [7, 64, 700])
def test_chunks_do_not_matter(paths: list[Path], size: int) -> None:
    with opened(*paths) as pipeline:
        whole, stream = pipeline(recording(), RATE), pipeline.stream()
        found: list[Result] = []
        chunk = np.zeros(size, np.float32)
        most = 0
        for begin in range(0, 700, size):
            part = recording()[begin : begin + size]
            chunk[: len(part)] = part
            # Whoever records may use its array again.
            found += stream.feed(chunk[: len(part)])
            most = max(most, sum(map(len, stream._kept)))
        assert not stream.speaking
        found += stream.finish()
        assert found == whole
        # The longest stretch with the silence that ends it, and not the recording.
        assert size == 700 or most < 260
        with pytest.raises(ClosedError):
            stream.feed(chunk)


def test_a_language_model_answers(paths: list[Path], llm: LLM) -> None:
    before = [{"role": "system", "content": "Be brief."}]
    asked = [*before, {"role": "user", "content": " ".join(TEXTS)}]
    expected = llm.chat(asked, GREEDY)
    with opened(*paths, llm) as pipeline:
        found = pipeline(recording(), RATE, messages=before, params=GREEDY)
        assert pipeline(np.zeros(100, np.float32), RATE) == []
    assert kinds(found) == [VoiceActivity, Text, VoiceActivity, Text, Reply]
    assert found[-1] == Reply(expected.text, "length")
    assert as_json(found[-1]) == {"kind": "reply", "text": expected.text, "finish": "length"}
    # It is still its owner's.
    assert llm.chat(asked, GREEDY).text == expected.text
    assert len([*as_table(found)]) == 3


def test_a_bundle_of_a_language_model_is_the_last(
    paths: list[Path], llm: LLM, tmp_path: Path
) -> None:
    chat = text_bundle(tmp_path / "chat.edge")
    with opened(*paths, chat) as pipeline:
        found = pipeline(recording(), RATE, params=GREEDY)
    assert kinds(found)[-1] is Reply
    with pytest.raises(ClosedError):
        pipeline.reply("hello")
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((*paths[1:], chat), "before a language model expected"),
        ((llm, *paths), "one language model, as the last"),
        ((paths[0], llm), "before a language model expected"),
    ]
    for given, text in wrong:
        with pytest.raises(UsageError, match=text):
            edgeinfer.pipeline(*given)
