"""``edgeinfer targets``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.output import Output, output_options, table

if TYPE_CHECKING:
    from rich.table import Table

    from edgeinfer.profiles import Profile


@click.command()
@output_options
def targets(out: Output) -> None:
    """List the devices that models can be converted for."""
    from edgeinfer import profiles

    known = [profiles.load(name) for name in profiles.names()]
    out.result({"targets": known}, lambda: _view(known))


def _view(known: list[Profile]) -> Iterator[Table]:
    columns = ("target", "what it is", "formats", "backends", "precisions")
    yield table(
        columns,
        [
            (
                ", ".join((p.name, *p.aliases)),
                p.title,
                ", ".join((*p.formats, *(f"{f} (optional)" for f in p.optional_formats))),
                ", ".join(p.backends),
                ", ".join(p.precisions),
            )
            for p in known
        ],
    )
