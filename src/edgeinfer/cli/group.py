"""The group of all commands."""

from __future__ import annotations

import importlib

import click

from edgeinfer._version import __version__
from edgeinfer.errors import NotAvailableError
from edgeinfer.installed import without_converter

COMMANDS = (
    "convert",
    "check",
    "inspect",
    "run",
    "generate",
    "chat",
    "serve",
    "verify",
    "eval",
    "compare",
    "bench",
    "build",
    "extract",
    "join",
    "tune",
    "sign",
    "encrypt",
    "decrypt",
    "targets",
    "devices",
    "doctor",
    "cache",
    "completion",
)
"""In the order of the help; each is a module of this package with a command of its name."""


class _Group(click.Group):
    """Lists commands in their order and guesses at misspelt ones."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(f"edgeinfer.cli.{cmd_name}")
        except ModuleNotFoundError as error:
            if reason := without_converter(error):
                return _missing(cmd_name, reason)
            raise
        command = getattr(module, cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, n=1)
            guess = f", did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(f"no command '{name}'{guess}", ctx)
        return super().resolve_command(ctx, args)


def _missing(name: str, reason: str) -> click.Command:
    """Return a command that says why it is not here, whatever it is given."""

    def refuse(words: tuple[str, ...]) -> None:
        raise NotAvailableError(reason)

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    lenient = {"ignore_unknown_options": True}
    help = "Needs the converter, which is not installed."
    return click.Command(name, lenient, refuse, [words], help=help)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="edgeinfer %(version)s")
def edgeinfer() -> None:
    """One trained model in, the fastest right artifact on every edge device.

    Exit codes: 0 fine, 1 a finding about the model, 2 usage, 3 environment.
    """
