"""The command line that could have requested a conversion, for its report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import join

from edgeinfer.convert.option_words import ELSEWHERE
from edgeinfer.convert.options import ConvertOptions
from edgeinfer.convert.pipeline.request import Request, default_name
from edgeinfer.options import default_of, options_of


def command_of(request: Request) -> str:
    """Return the command line; what only Python can give is written as ``...``."""
    source = str(request.model) if isinstance(request.model, str | Path) else ELSEWHERE
    words = ["edgeinfer", "convert", source, *_options(request), "-o", request.destination]
    return join(words).replace(f"'{ELSEWHERE}'", ELSEWHERE)


def _options(request: Request) -> Iterator[str]:
    described = request.description
    left = {"output", "overwrite", "keep"}
    if described is not None:
        left |= {"preprocessing", *(["labels"] if described.labels else ())}
    if request.name == default_name(request.model):
        left.add("name")
    shown = {
        "targets": [p.name for p in request.profiles],
        "precision": "" if request.precision == "fp32" else request.precision,
    }
    for name, known in options_of(ConvertOptions).items():
        value = shown.get(name, getattr(request, name))
        unsaid = name in left or value in (default_of(ConvertOptions, name), None, "")
        if known.flags and not unsaid:
            yield from known.words(value)
