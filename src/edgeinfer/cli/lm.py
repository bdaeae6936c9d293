"""Options of the commands for language models; those of ``edgeinfer.LLM`` and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import UsageError

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.llm import LLM
    from edgeinfer.runtime.llm.params import Grammar, SamplingParams, Usage

F = TypeVar("F", bound=Callable[..., Any])

_MODEL = (
    click.option(
        "--variant", default="", metavar="ID", help="Variant of the bundle; default the first."
    ),
    click.option("--draft", metavar="BUNDLE", help="Smaller draft model for speculative decoding."),
    click.option(
        "--context", type=click.IntRange(1), metavar="TOKENS", help="Longest text, with its prompt."
    ),
    click.option("--cache-mb", type=click.IntRange(1), help="Memory of the KV cache."),
    click.option(
        "--cache-type",
        default="",
        metavar="NAME",
        help="Type of the KV cache: float16, uint8 or uint4.",
    ),
    click.option(
        "--threads", type=click.IntRange(1, 1024), help="Number of threads; default all cores."
    ),
    click.option("--no-lookup", is_flag=True, help="Do not speculate from earlier text."),
    click.option(
        "--disk", metavar="FOLDER", help="Keep prefixes of prompts on disk for the next start."
    ),
)

_SAMPLING = (
    click.option("--max-tokens", type=click.IntRange(1), help="Most tokens to generate."),
    click.option(
        "--temperature", type=float, help="Sampling temperature; 0 takes the most probable token."
    ),
    click.option("--top-k", type=int, help="Sample from the K most probable tokens."),
    click.option(
        "--top-p", type=float, help="Sample from the fewest tokens with probability P together."
    ),
    click.option(
        "--min-p",
        type=float,
        help="Sample from tokens with at least P times the best's probability.",
    ),
    click.option("--repetition-penalty", type=float, help="Penalty for repeating tokens."),
    click.option("--seed", type=int, help="Seed of the sampling."),
    click.option("--stop", multiple=True, metavar="TEXT", help="Ends the text; may be repeated."),
)

ADAPTER = click.option(
    "--adapter", default="", metavar="NAME", help="Low-rank adapter of the bundle to use."
)

IMAGES = click.option(
    "--image",
    "images",
    multiple=True,
    metavar="FILE",
    help="Picture to look at, for a model that sees; may be repeated.",
)

_GRAMMAR = (
    click.option("--json-schema", metavar="FILE", help="The text is JSON of this schema."),
    click.option("--regex", metavar="EXPRESSION", help="The whole text matches it."),
    click.option("--grammar", metavar="FILE", help="The text is of this Lark or .gbnf grammar."),
)


def model_options(command: F) -> F:
    """Add options that say how a model is loaded; for ``opened``."""
    for option in reversed(_MODEL):
        command = option(command)
    return trust_options()(command)  # type: ignore[return-value]


def sampling_options(command: F) -> F:
    """Add options that say how a text goes on; for ``sampled``."""
    for option in reversed((*_SAMPLING, *_GRAMMAR)):
        command = option(command)
    return command


def opened(
    bundle: str,
    *,
    variant: str,
    draft: str | None,
    context: int | None,
    cache_mb: int | None,
    cache_type: str,
    threads: int | None,
    no_lookup: bool,
    disk: str | None,
    trust: dict[str, Any],
    sequences: int = 1,
) -> LLM:
    """Load a model as the options say."""
    from edgeinfer.runtime.llm.llm import LLM

    return LLM(
        bundle,
        variant=variant,
        draft=draft,
        context=context or 0,
        sequences=sequences,
        cache_mb=cache_mb or 0,
        cache=cache_type,
        threads=threads or 0,
        lookup=not no_lookup,
        disk=disk,
        **trust,
    )


MODEL_NAMES = (
    *("variant", "draft", "context", "cache_mb", "cache_type", "threads", "no_lookup", "disk"),
    "trust",
)


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the model, and the others."""
    model = {name: given.pop(name) for name in MODEL_NAMES}
    return model, given


def sampled(
    defaults: SamplingParams,
    *,
    json_schema: str | None,
    regex: str | None,
    grammar: str | None,
    stop: tuple[str, ...],
    **given: Any,
) -> SamplingParams:
    """Return the model's own parameters with those that were requested.

    Raises:
        UsageError: more than one form of the text is requested, or a file cannot be read.
        InputError: a value makes no sense.
    """
    from dataclasses import replace

    asked = {name: value for name, value in given.items() if value is not None}
    if stop:
        asked["stop"] = stop
    form = _form(json_schema, regex, grammar)
    if form is not None:
        asked["grammar"] = form
    return replace(defaults, **asked)


def _form(json_schema: str | None, regex: str | None, grammar: str | None) -> Grammar | None:
    from edgeinfer.media.preprocessing import read_text
    from edgeinfer.runtime.llm.params import Grammar

    if sum(each is not None for each in (json_schema, regex, grammar)) > 1:
        raise UsageError("give one of --json-schema, --regex and --grammar")
    if json_schema is not None:
        return Grammar("json_schema", read_text(Path(json_schema)))
    if grammar is not None:
        return Grammar("gbnf" if grammar.endswith(".gbnf") else "lark", read_text(Path(grammar)))
    return None if regex is None else Grammar("regex", regex)


def content(text: str, images: Sequence[str]) -> Any:
    """Return the content of a message: a text, or its parts where images come with it."""
    if not images:
        return text
    from edgeinfer.runtime.llm.images import LocalImage

    pictures = [{"type": "image", "image": LocalImage(image)} for image in images]
    return [*pictures, {"type": "text", "text": text}]


def usage_line(usage: Usage) -> str:
    """Return a line on what a generation took."""
    first = usage.first_token_s
    parts = [f"{usage.prompt_tokens} tokens read"]
    if usage.cached_tokens:
        parts.append(f"{usage.cached_tokens} of them known")
    if first is not None:
        parts.append(f"first token after {first:.3g} s")
        rest = usage.total_s - first
        speed = f" at {(usage.completion_tokens - 1) / rest:.3g} a second" if rest > 0 else ""
        parts.append(f"{usage.completion_tokens} generated{speed}")
    if usage.drafted_tokens:
        parts.append(f"{usage.accepted_tokens} of {usage.drafted_tokens} guesses right")
    return ", ".join(parts)
