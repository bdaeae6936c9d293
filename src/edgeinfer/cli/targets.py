"""``edgeinfer targets``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.names import TARGET
from edgeinfer.cli.output import Output, output_options, table

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table
    from edgeinfer.profiles import Profile


@click.command()
@click.argument("names", nargs=-1, type=TARGET, metavar="[NAME...]")
@output_options
def targets(names: tuple[str, ...], out: Output) -> None:
    """List the devices that models can be converted for.

    With NAME all that is known of it: other names, precisions, peculiarities and their sources.
    """
    from edgeinfer import profiles

    wanted = profiles.names() if not names or "all" in names else names
    known = [profiles.load(name) for name in dict.fromkeys(wanted)]
    out.result({"targets": known}, lambda: _details(known) if names else _view(known))


def _formats(profile: Profile) -> str:
    return ", ".join(
        (*profile.formats, *(f"{name} (optional)" for name in profile.optional_formats))
    )


def _view(known: list[Profile]) -> Iterator[str | Table]:
    rows = [(p.name, p.title, _formats(p), ", ".join(p.backends)) for p in known]
    yield table(("target", "what it is", "formats", "engines"), rows)
    yield "precisions and other names of one: edgeinfer targets NAME"


def _details(known: list[Profile]) -> Iterator[str | Table]:
    for number, profile in enumerate(known):
        if number:
            yield ""
        rows = [
            ("other names", ", ".join(profile.aliases)),
            ("systems", ", ".join(profile.os)),
            ("processors", ", ".join(profile.arch)),
            ("formats", _formats(profile)),
            ("engines", ", ".join(profile.backends)),
            ("precisions", ", ".join(profile.precisions)),
            *(("note", f"{quirk.what} ({quirk.source})") for quirk in profile.quirks),
        ]
        yield table((profile.name, profile.title), [row for row in rows if row[1]])
