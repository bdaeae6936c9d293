"""``edgeinfer check``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.declared import declared, given
from edgeinfer.cli.models import TRUST_SOURCE, named_model
from edgeinfer.cli.output import Output, output_options, table
from edgeinfer.convert.options import ConvertOptions

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.errors import Problem


ASKED = ("targets", "precision", "input_shapes", "signature", "deployment", "integers")
"""Options of ``convert`` that decide what can be expressed."""


@click.command()
@click.argument("model")
@declared(ConvertOptions, ASKED)
@TRUST_SOURCE
@output_options
def check(model: str, trust_source: bool, out: Output, **words: Any) -> None:
    """List every node that a target cannot express.

    Nothing is converted. Exits with 1 when a target would refuse the model; a format that a target
    calls optional is left out of a bundle and does not count.
    """
    named = named_model(model, trust_source=trust_source)
    asked = given(ConvertOptions, words, ASKED)
    with out.progress() as progress:
        if progress is not None:
            progress("read the model", None)
        from edgeinfer.convert.pipeline import entry

        found = entry.check(named.model, **asked, **named.arguments())
    optional = _optional(asked["targets"])
    clean = not any(problems for key, problems in found.items() if key not in optional)
    data = {"convertible": clean, "targets": found, "optional": sorted(optional)}
    out.result(data, lambda: _view(found, optional))
    if not clean:
        raise click.exceptions.Exit(1)


def _optional(targets: tuple[str, ...]) -> set[str]:
    from edgeinfer.convert.pipeline.request import resolve_profiles

    return {f"{p.name}-{f}" for p in resolve_profiles(targets) for f in p.optional_formats}


def _view(found: dict[str, list[Problem]], optional: set[str]) -> Iterator[str | Table]:
    for target, problems in found.items():
        if not problems:
            yield f"{target}: everything converts"
            continue
        count = f"{len(problems)} node" + ("s" if len(problems) > 1 else "")
        remark = " (optional, would be left out)" if target in optional else ""
        yield f"{target}: {count} cannot be expressed{remark}"
        rows = [(p.op, p.node, p.reason, p.detail, p.hint) for p in problems]
        yield table(("operator", "node", "reason", "detail", "what helps"), rows)
