"""``edgeinfer generate``."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli import lm
from edgeinfer.cli.output import Lines, Output, output_options, visible
from edgeinfer.errors import UsageError

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM, Completion
    from edgeinfer.runtime.llm.sequence import SequenceRequest


@click.command()
@click.argument("bundle")
@click.argument("prompt")
@lm.IMAGES
@lm.ADAPTER
@lm.sampling_options
@click.option(
    "-n",
    "--number",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of texts.",
)
@click.option("--logprobs", type=click.IntRange(0, 100), help="Alternatives to list at each token.")
@click.option("--chat", "as_chat", is_flag=True, help="PROMPT is a message to the model.")
@click.option("--system", metavar="TEXT", help="System message, with --chat.")
@lm.model_options
@output_options
def generate(
    bundle: str,
    prompt: str,
    number: int,
    logprobs: int | None,
    as_chat: bool,
    system: str | None,
    images: tuple[str, ...],
    adapter: str,
    out: Output,
    **given: Any,
) -> None:
    """Let the language model of BUNDLE go on with PROMPT.

    PROMPT "-" is read from stdin. The text appears as it is generated; -n texts appear when all
    are. --chat makes a conversation of PROMPT, as the model was trained on. Pictures stand where
    PROMPT has the model's word for one, such as <image>, or before it.
    """
    if system is not None and not as_chat:
        raise UsageError("--system goes with --chat")
    if prompt == "-":
        prompt = sys.stdin.read()
    from edgeinfer.runtime.llm.images import ImagePrompt, LocalImage

    model, sampling = lm.split(given)
    with lm.opened(bundle, **model, sequences=number) as llm:
        params = lm.sampled(llm.defaults, **sampling, n=number, logprobs=logprobs)
        if as_chat:
            first = [] if system is None else [{"role": "system", "content": system}]
            messages = [*first, {"role": "user", "content": lm.content(prompt, images)}]
            request = llm.chat_request(messages, params, adapter=adapter)
        else:
            asked = ImagePrompt(prompt, [*map(LocalImage, images)]) if images else prompt
            request = llm.request(asked, params, adapter=adapter)
        if number == 1 and not out.json and not out.quiet:
            _stream(llm, request, out)
            return
        (completion,) = llm.run([request])
        data = {
            "prompt_tokens": list(completion.prompt),
            "outputs": [dataclasses.asdict(each) for each in completion.outputs],
            "stats": llm.stats(),
        }
        out.result(data, lambda: _texts(completion))


def _stream(llm: LLM, request: SequenceRequest, out: Output) -> None:
    """Print a text as it comes, and on stderr what it took."""
    for event in llm.engine.open(request):
        if event.error is not None:
            raise event.error
        click.echo(visible(event.text), nl=False)
        if event.finish is not None and event.usage is not None:
            click.echo()
            out.remark(f"({lm.usage_line(event.usage)}; ended by {event.finish})")


def _texts(completion: Completion) -> list[str]:
    lines = []
    for index, each in enumerate(completion.outputs):
        if len(completion.outputs) > 1:
            lines.append(f"--- {index + 1} ({each.finish})")
        lines.append(Lines(each.text))
    return lines
