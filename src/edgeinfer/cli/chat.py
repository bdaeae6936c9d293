"""``edgeinfer chat``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli import lm
from edgeinfer.cli.output import Output, output_options, visible
from edgeinfer.errors import InputError, UsageError

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.params import SamplingParams

HELP = """\
\"\"\" begins and ends a message of several lines, a \\ at the end of a line goes on with the next
/system TEXT    tell the model something first, and begin anew
/image FILE     show it an image with the next message
/clear          begin anew
/again          another answer to the last message
/undo           take the last message and its answer back
/stats          what the engine did
/help           this
/quit           or Ctrl-D"""


@click.command()
@click.argument("bundle")
@click.option("--system", default="", metavar="TEXT", help="System message.")
@lm.IMAGES
@lm.ADAPTER
@lm.sampling_options
@lm.model_options
@output_options
def chat(
    bundle: str, system: str, images: tuple[str, ...], adapter: str, out: Output, **given: Any
) -> None:
    """Talk with the language model of BUNDLE.

    Without a terminal each line of stdin is a message, and answers go to stdout. Ctrl-C ends an
    answer, Ctrl-D the conversation; /help lists what else there is. Pictures go with the first
    message.
    """
    if out.json:
        raise UsageError("chat has no JSON; use edgeinfer generate --chat --json")
    model, sampling = lm.split(given)
    with lm.opened(bundle, **model) as llm:
        params = lm.sampled(llm.defaults, **sampling)
        if llm.model.template is None:
            raise UsageError(f"{bundle}: the model has no chat template; use edgeinfer generate")
        if sys.stdin.isatty():
            out.remark(f"{llm.model.name}; /help says what there is")
        _Conversation(llm, params, out, system, adapter, images).run()


class _Conversation:
    """Messages so far, and what can be done with them."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        out: Output,
        system: str,
        adapter: str,
        images: Sequence[str],
    ) -> None:
        self._llm, self._params, self._out = llm, params, out
        self._system, self._adapter = system, adapter
        self._turns: list[dict[str, Any]] = []
        # They go with the next message.
        self._images = list(images)

    def run(self) -> None:
        """Answer until nothing more is said."""
        for text in _said():
            word, _, rest = text.partition(" ")
            command = getattr(self, f"_do_{word[1:]}", None) if word.startswith("/") else None
            if word in ("/quit", "/exit"):
                return
            if command is not None:
                command(rest.strip())
            elif word.startswith("/") and word[1:].isalpha():
                self._out.remark(f"no command {word}; /help lists them")
            elif text.strip():
                self._turns.append({"role": "user", "content": lm.content(text, self._images)})
                self._images = []
                self._answer()

    def _answer(self) -> None:
        first = [{"role": "system", "content": self._system}] if self._system else []
        try:
            messages = [*first, *self._turns]
            request = self._llm.chat_request(messages, self._params, adapter=self._adapter)
            stream = self._llm.engine.open(request)
        except (InputError, UsageError) as e:
            self._turns.pop()
            self._out.remark(f"{e} (/clear begins anew)" if self._turns else str(e))
            return
        text = ""
        with contextlib.closing(stream):
            try:
                for event in stream:
                    if event.error is not None:
                        raise event.error
                    text += event.text
                    click.echo(visible(event.text), nl=False)
                    if event.usage is not None:
                        click.echo()
                        self._out.remark(f"({lm.usage_line(event.usage)})")
            except KeyboardInterrupt:
                click.echo()
                self._out.remark("(ended)")
        self._turns.append({"role": "assistant", "content": text})

    def _do_system(self, text: str) -> None:
        self._system = text
        self._turns.clear()

    def _do_image(self, text: str) -> None:
        self._images.append(text)

    def _do_clear(self, _: str) -> None:
        self._turns.clear()

    def _do_undo(self, _: str) -> None:
        del self._turns[-2:]

    def _do_again(self, _: str) -> None:
        if self._turns:
            self._turns.pop()
            self._answer()

    def _do_stats(self, _: str) -> None:
        stats = self._llm.stats()
        speed = f"{stats.tokens_per_second:.3g} tokens a second"
        pages = f"{stats.pages_used + stats.pages_kept} of {stats.pages} pages hold something"
        known = f"{stats.cached_tokens} of {stats.prompt_tokens} tokens read were known"
        self._out.remark(f"{stats.generated_tokens} tokens generated, {speed}; {known}; {pages}")

    def _do_help(self, _: str) -> None:
        for line in HELP.splitlines():
            self._out.remark(line)


def _said() -> Iterator[str]:
    """Give the messages of whoever is at stdin."""
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() a history and keys to edit with
    while True:
        try:
            text = _message("> " if interactive else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            # At the prompt it drops what was typed, as shells do.
            click.echo(err=True)
            continue
        yield text


def _message(prompt: str) -> str:
    line = input(prompt)
    more = "… " if prompt else ""
    if line.startswith('"""'):
        lines = [line[3:]]
        while not lines[-1].endswith('"""') or (len(lines) == 1 and line == '"""'):
            lines.append(input(more))
        return "\n".join(lines)[:-3].strip("\n")
    while line.endswith("\\"):
        line = f"{line[:-1]}\n{input(more)}"
    return line
