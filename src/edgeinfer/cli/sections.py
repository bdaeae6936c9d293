"""Help in sections: what belongs together stands together, with an example of it."""

from __future__ import annotations

from typing import Any

import click

from edgeinfer.options import Section


class Sectioned(click.Command):
    """A command whose help lists its options in sections."""

    def __init__(self, *args: Any, sections: tuple[Section, ...], **kwargs: Any) -> None:
        """Take the sections; every option is in one of them."""
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, and last what is in none, such as ``--help``."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {p.name: p.get_help_record(ctx) for p in options}
        for section in self.sections:
            rows = [row for n in section.names if (row := records.pop(n, None)) is not None]
            with formatter.section(section.title):
                formatter.write_dl(rows)
                formatter.write_paragraph()
                # As it is, however wide: a line that is broken cannot be copied.
                formatter.write(f"{'':{formatter.current_indent}}$ {section.example}\n")
        with formatter.section("Other options"):
            formatter.write_dl([row for row in records.values() if row is not None])
