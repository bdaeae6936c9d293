"""The page of the command line names every command and every option of each."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgeinfer.cli.group import edgeinfer

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


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
