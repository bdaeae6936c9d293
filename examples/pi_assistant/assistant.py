"""Waits for a word, listens, understands and answers, all on the board.

    python assistant.py --word mel.edge embedding.edge alexa.edge --voice vad.edge \\
        --speech encoder.edge decoder.edge --chat chat.edge \\
        --action "light on=gpioset gpiochip0 17=1" --say speaker.edge

Behind the word one stretch of speech is taken, written down and given to a language model, which
answers in JSON: what to say, and which of the actions to do, if any. The JSON has a schema, so that
no other action can come out of it. Without --say the answer is printed alone. A recording stands
in for the microphone: --source talk.wav.
"""

import argparse
import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import edgeinfer
from edgeinfer.errors import EdgeInferError
from edgeinfer.media.live import audio
from edgeinfer.results import Result
from edgeinfer.runtime.pipelines import SpokenPipeline
from edgeinfer.runtime.pipelines.spoken import SpokenStream, said
from edgeinfer.tasks import Speaker, WordSpotter
from edgeinfer.types import Array

PATIENCE = 8.0
"""Seconds after the word within which somebody has to have spoken."""

ROLE = (
    "You are a voice assistant. Answer in one short sentence. Choose the action that was requested "
    "or none."
)


@dataclass
class Listener:
    """Waits for the word, then hears what is said behind it."""

    word: WordSpotter
    assistant: SpokenPipeline

    def __post_init__(self) -> None:
        if self.word.rate != self.assistant.rate:
            raise SystemExit(f"sample rates differ: {self.word.rate} and {self.assistant.rate}")
        self.samples = 0
        self.wait()

    def wait(self) -> None:
        """Begin to wait for the word."""
        self.waits, self.begun = self.word.stream(), self.samples
        self.spoken: SpokenStream | None = None

    def feed(self, piece: Array) -> str:
        """Take sound; return what was said behind the word, once it is."""
        rate = self.word.rate
        self.samples += len(piece)
        if self.spoken is None:
            since = self.begun / rate
            for heard in self.waits.feed(piece):
                print(f"heard {heard.label!r} at {since + heard.time:.2f} s", flush=True)
                self.spoken, self.begun = self.assistant.stream(), self.samples
            return ""
        found = self.spoken.feed(piece)
        if not found and (self.samples - self.begun) / rate < PATIENCE:
            return ""
        return self._end(found)

    def finish(self) -> str:
        """End the sound; return what was said until then."""
        return "" if self.spoken is None else self._end(self.spoken.finish())

    def _end(self, found: list[Result]) -> str:
        self.wait()
        if not found:
            print("nothing said", flush=True)
        return said(found)


def schema(actions: Mapping[str, str]) -> str:
    """Return the form of an answer: a sentence, and one of the actions or none."""
    names = {"enum": ["none", *actions]}
    fields = {"say": {"type": "string", "maxLength": 200}, "action": names}
    closed = {"additionalProperties": False, "required": list(fields)}
    return json.dumps({"type": "object", "properties": fields, **closed})


def answer(assistant: SpokenPipeline, text: str, actions: Mapping[str, str]) -> dict[str, str]:
    """Ask the language model."""
    from edgeinfer.runtime.llm.params import Grammar

    form = Grammar("json_schema", schema(actions))
    params = edgeinfer.SamplingParams(max_tokens=96, temperature=0.0, grammar=form)
    reply = assistant.reply(text, [{"role": "system", "content": ROLE}], params)
    answered: dict[str, str] = json.loads(reply.text)
    return answered


def act(answered: dict[str, str], actions: Mapping[str, str]) -> None:
    """Do what was answered."""
    print(f"answer: {answered['say']} [{answered['action']}]", flush=True)
    if command := actions.get(answered["action"]):
        run(command)


def run(command: str, given: bytes = b"") -> None:
    """Run a program; one that is not there ends nothing."""
    try:
        subprocess.run(shlex.split(command), input=given, check=False)
    except OSError as e:
        print(f"{command}: {e.strerror}", flush=True)


def say(text: str, speaker: Speaker, player: str) -> None:
    """Let a voice say a text; the player gets a WAV file on its standard input."""
    sound = speaker.say(text)
    print(f"said: {sound.seconds:.1f} s", flush=True)
    run(player, sound.wav())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Waits for a word, listens and answers.")
    parser.add_argument("--word", nargs="+", required=True, metavar="BUNDLE")
    parser.add_argument("--voice", required=True, metavar="BUNDLE")
    parser.add_argument("--speech", nargs=2, required=True, metavar="BUNDLE")
    parser.add_argument("--chat", required=True, metavar="BUNDLE")
    parser.add_argument("--action", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--say", metavar="BUNDLE", help="a voice of letters; it says the answer")
    parser.add_argument("--player", default="aplay -q -", help="gets a WAV file")
    parser.add_argument("--source", default="mic", help="mic, mic:DEVICE, or a recording")
    parser.add_argument("--paced", action="store_true", help="play a recording at its own speed")
    args = parser.parse_args()
    if any("=" not in action for action in args.action):
        parser.error("--action: expected NAME=COMMAND")
    return args


def assist(args: argparse.Namespace) -> None:
    actions = dict(action.split("=", 1) for action in args.action)
    with contextlib.ExitStack() as stack:
        word = stack.enter_context(WordSpotter(*args.word, threads=1))
        llm = stack.enter_context(edgeinfer.LLM(args.chat))
        assistant = stack.enter_context(edgeinfer.pipeline(args.voice, *args.speech, llm))
        if not isinstance(assistant, SpokenPipeline):
            raise SystemExit(f"{args.voice}: finds no speech")
        speaker = stack.enter_context(Speaker(args.say)) if args.say else None
        listener = Listener(word, assistant)
        pieces = audio(args.source, assistant.rate, paced=args.paced)
        source = stack.enter_context(contextlib.closing(pieces))

        def tell(text: str) -> None:
            if not text:
                return
            print(f"understood: {text}", flush=True)
            answered = answer(assistant, text, actions)
            act(answered, actions)
            if speaker is not None:
                say(answered["say"], speaker, args.player)

        for piece in source:
            tell(listener.feed(piece))
        tell(listener.finish())


if __name__ == "__main__":
    try:
        assist(arguments())
    except KeyboardInterrupt:
        sys.exit(130)
    except EdgeInferError as e:
        sys.exit(f"assistant.py: {e}")
