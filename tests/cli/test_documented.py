"""The page of the command line names every command and every option of each.

``python -m tests.cli.test_documented`` writes its tables of declared options anew.
"""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgeinfer.cli.declared import listed
from edgeinfer.cli.group import edgeinfer
from edgeinfer.convert.options import SECTIONS, ConvertOptions
from edgeinfer.options import Value, options_of

FILE = Path(__file__).parents[2] / "docs" / "cli.md"
PAGE = FILE.read_text(encoding="utf-8")
BEGIN, END = "<!-- options of convert -->\n", "<!-- end of options -->\n"


def table() -> str:
    """Return the options of convert as the page has them."""
    known = options_of(ConvertOptions)
    lines = ["| option | |", "|---|---|"]
    for section in listed(ConvertOptions, SECTIONS):
        lines.append(f"| **{section.title}** | |")
        for one in (known[name] for name in section.names):
            value = f" {one.value.metavar or 'NAME'}" if one.value != Value() else ""
            flags = ", ".join(f"`{flag}{value}`" for flag in one.flags).replace("|", "\\|")
            lines.append(f"| {flags} | {one.text} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """Return the page with the table as it is to be."""
    before, rest = PAGE.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def test_the_table_is_made_of_the_declarations() -> None:
    assert written() == PAGE, "python -m tests.cli.test_documented"


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def words_of_page() -> set[str]:
    return set(PAGE.replace("|", " ").replace("`", " ").replace(",", " ").split())


ALL = dict(commands(edgeinfer))


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_on_the_page(name: str) -> None:
    assert set(name.split()) <= words_of_page()
    options = [p for p in ALL[name].params if isinstance(p, click.Option)]
    for option in options:
        words = [o for o in option.opts if o.startswith("--")]
        assert any(f"{word}{end}" in PAGE for word in words for end in " `\n/,|)"), words


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
