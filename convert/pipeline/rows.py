"""Further precisions of a bundle: options of an engine, or files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.convert.quantize.recipe import ALIASES, AUTO, Recipe, recipe
from edgeinfer.errors import UsageError
from edgeinfer.profiles.schema import Profile

if TYPE_CHECKING:
    from edgeinfer.convert.pipeline.request import Request

Able = Callable[[Profile, Recipe], bool]


def resolved(
    words: Sequence[str], profiles: Sequence[Profile], able: Able, *, first: str, alone: bool
) -> tuple[str, ...]:
    """Return the full names of what is requested besides the first precision.

    Args:
        words: Names of recipes or aliases, one or several with commas in each.
        profiles: Profiles of the targets.
        able: whether a target has files in a recipe.
        first: the first precision.
        alone: whether one artifact is written, without a bundle.

    Raises:
        UsageError: one is no such precision, or none of the targets can have it.
    """
    texts = [words] if isinstance(words, str) else words
    asked = dict.fromkeys(w.strip() for text in texts for w in text.split(",") if w.strip())
    if not asked:
        return ()
    if first != "fp32" or alone:
        why = "one artifact has one precision" if alone else f"the first one is {first!r}"
        raise UsageError(f"--also {next(iter(asked))}: {why}; further precisions need fp32")
    found: dict[str, None] = {}
    for word in asked:
        names = ALIASES.get(word, (word,))
        able_names = [n for n in names if any(_has(p, n, able) for p in profiles)]
        if word == AUTO or not recipe(names[0]).consent:
            raise UsageError(f"--also {word}: name a recipe such as bf16, fp16 or static_wi8_ai8")
        if not able_names:
            known = sorted({*(n for p in profiles for n in _all(p) if recipe(n).consent)})
            listed = ", ".join(known) or "none"
            raise UsageError(
                f"--also {word}: not possible on {', '.join(p.name for p in profiles)}; possible "
                f"on one at least: {listed}"
            )
        # Of an alias each target has its own.
        found |= dict.fromkeys(able_names)
    return tuple(found)


def _all(profile: Profile) -> Iterator[str]:
    yield from profile.precisions
    for format in _formats(profile):
        yield from profile.on_request(format)


def _has(profile: Profile, name: str, able: Able) -> bool:
    return able(profile, recipe(name)) or any(
        name in profile.on_request(f) for f in _formats(profile)
    )


def _formats(profile: Profile) -> tuple[str, ...]:
    return *profile.formats, *profile.optional_formats


def on_request(profile: Profile, format: str, also: Sequence[str]) -> tuple[str, ...]:
    """Return which of these precisions an engine computes a file of fp32 in when it is set to."""
    return tuple(name for name in also if name in profile.on_request(format))


def conversions(request: Request) -> Iterator[Request]:
    """Yield the conversions that write files in the other precisions."""
    for name in request.also:
        profiles = tuple(filter(None, (_with_files(p, name) for p in request.profiles)))
        keep = None if request.keep is None else Path(request.keep) / name
        if profiles:
            yield replace(
                request, precision=name, profiles=profiles, also=(), machine_code=(), keep=keep
            )


def _with_files(profile: Profile, name: str) -> Profile | None:
    """Return a target with the formats that have files of their own in a precision, if any."""
    if name not in profile.precisions:
        return None
    needed, optional = (
        tuple(f for f in formats if name not in profile.on_request(f))
        for formats in (profile.formats, profile.optional_formats)
    )
    if not needed and not optional:
        return None
    return replace(profile, formats=needed, optional_formats=optional)
