"""A recording in; its stretches of speech, what they say, and what a language model answers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from edgeinfer.errors import UsageError
from edgeinfer.results import Reply, Result, Text, VoiceActivity
from edgeinfer.runtime.pipelines.audio import AudioPipeline, AudioStream, as_mono, recorded
from edgeinfer.runtime.pipelines.model import OwnedModels
from edgeinfer.runtime.pipelines.speech import SpeechPipeline
from edgeinfer.types import Array


@runtime_checkable
class Chats(Protocol):
    """What a pipeline needs of an ``LLM``."""

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Any = None) -> Any:
        """Go on with a conversation."""
        ...


class SpokenPipeline(OwnedModels):
    """A model that hears where somebody speaks, two that write it down, and one that answers.

    Args:
        voice: finds stretches of speech.
        speech: writes one down.
        llm: answers; None where nobody does, or somebody else asks it. It is its owner's to close.
        is_owner: close it with the pipeline.
    """

    takes = "a recording"
    takes_whole = True

    def __init__(
        self, voice: AudioPipeline, speech: SpeechPipeline, llm: Chats | None, *, is_owner: bool
    ) -> None:
        self.models = [*voice.models, *speech.models]
        self.model, self.rate = speech.model, voice.rate
        self._voice, self._speech, self._llm, self._is_owner = voice, speech, llm, is_owner

    def __call__(
        self,
        recording: Any,
        rate: int | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        params: Any = None,
    ) -> list[Result]:
        """Write down a recording, and let the language model answer all of it at once.

        Args:
            recording: a path, the contents of a file, or (samples,) or (samples, channels) of
                floats -1..1 or int16.
            rate: Rate of an array, in Hz.
            messages: Conversation before, as for ``LLM.chat``.
            params: as for ``LLM.chat``.

        Returns:
            A ``VoiceActivity`` for each stretch of speech, behind it its ``Text`` where something
            was understood, and at the end the ``Reply``, where there is a text and a model.

        Raises:
            InputError: it is no recording, or an array without its rate.
            RunError: an engine failed, or outputs are not what a head says.
        """
        found = self.listen(recording, rate)
        text = said(found)
        if self._llm is None or not text:
            return found
        return [*found, self.reply(text, messages, params)]

    def listen(self, recording: Any, rate: int | None = None) -> list[Result]:
        """Write down the stretches of speech of a recording; as a call, but nobody answers."""
        parts, _ = recorded(recording, rate, self.rate, whole=False)
        stream = self.stream()
        return [*(result for part in parts for result in stream.feed(part)), *stream.finish()]

    def stream(self) -> SpokenStream:
        """Begin to listen to audio that comes in chunks."""
        return SpokenStream(self._voice, self._speech)

    def reply(
        self, text: str, messages: Sequence[Mapping[str, Any]] = (), params: Any = None
    ) -> Reply:
        """Return what the language model says to a text.

        Raises:
            UsageError: there is none.
        """
        if self._llm is None:
            raise UsageError("pipeline: no language model answers; name its bundle last")
        generated = self._llm.chat([*messages, {"role": "user", "content": text}], params)
        return Reply(generated.text, generated.outputs[0].finish)

    def close(self) -> None:
        """Free the engines, and the language model where the pipeline opened it."""
        super().close()
        if self._is_owner and self._llm is not None:
            cast("Any", self._llm).close()


class SpokenStream:
    """Audio in chunks of any length; made by ``SpokenPipeline.stream``.

    It holds the stretch of speech that is going on, and nothing before it.

    Args:
        voice: finds stretches of speech.
        speech: writes one down.
    """

    def __init__(self, voice: AudioPipeline, speech: SpeechPipeline) -> None:
        self._heard = cast("AudioStream[VoiceActivity]", voice.stream())
        self._speech, self._rate = speech, voice.rate
        self._kept, self._begin = list[Array](), 0

    @property
    def speaking(self) -> bool:
        """Whether speech is going on."""
        return self._heard.speaking

    def feed(self, samples: Array) -> list[Result]:
        """Take the next samples; return each stretch that ended, and what it says.

        Args:
            samples: (n,) or (n, channels) at the pipeline's rate: floats -1..1, or int16.

        Raises:
            ClosedError: the stream was finished.
            InputError: they are no samples.
        """
        given = as_mono(np.asarray(samples))
        # Whoever records may use the array again.
        self._kept.append(given.copy())
        found = self._written(self._heard.feed(given))
        while self._kept and self._begin + len(self._kept[0]) <= self._heard.open_from:
            self._begin += len(self._kept.pop(0))
        return found

    def finish(self) -> list[Result]:
        """End the stream; return what was still open."""
        return self._written(self._heard.finish())

    def _written(self, stretches: Sequence[VoiceActivity]) -> list[Result]:
        found: list[Result] = []
        for stretch in stretches:
            ends = (round(time * self._rate) - self._begin for time in (stretch.start, stretch.end))
            sound = np.concatenate(self._kept)[slice(*ends)]
            found += [stretch, *self._speech(sound, self._rate)]
        return found


def said(found: Sequence[Result]) -> str:
    """Return all that was understood."""
    return " ".join(each.text for each in found if isinstance(each, Text))
