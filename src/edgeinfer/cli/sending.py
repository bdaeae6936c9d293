"""A command on a device that ssh reaches: what it needs is copied, what it says comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgeinfer.cli.device import NAME
from edgeinfer.cli.files import check_output, write_bytes
from edgeinfer.cli.table import terminal_width
from edgeinfer.errors import UsageError
from edgeinfer.printable import as_line

_SAVED = "saved"
_DEMANDS = ("EDGEINFER_TRUSTED_KEYS", "EDGEINFER_REVOKED")
"""Variables that name files; what they demand here must hold on the device."""


def run_there(
    ctx: click.Context, device: str, files: tuple[str, ...], output: tuple[str, str, bytes] | None
) -> None:
    """Run this command on a device, print what it gave, and exit as it did.

    Args:
        ctx: Context of the command.
        device: Address of the device.
        files: Parameters that name files, which travel with the command.
        output: Parameter that names a file to write, its suffix, and how such files begin.

    Raises:
        UsageError: a file is missing, or nothing of that kind comes back.
    """
    from edgeinfer.remote.board import run

    sent = _Sent()
    words = [ctx.info_name or ""]
    save, wanted = None, ""
    for parameter, value in _given(ctx):
        if output is not None and parameter.name == output[0]:
            save = Path(value)
            check_output(save, *output[1:], overwrite=ctx.params["overwrite"])
            value = wanted = f"{_SAVED}{output[1]}"
        elif parameter.name == "page":
            raise UsageError("--html: no page comes back from a device; -o FILE.json does")
        elif parameter.name in files:
            value = sent.named(value)
        words += _spelled(parameter, value)
    environment = {"COLUMNS": str(terminal_width())}
    for name in _DEMANDS:
        if paths := os.environ.get(name):
            environment[name] = os.pathsep.join(sent.named(paths.split(os.pathsep)))
    if native := os.environ.get("EDGEINFER_NATIVE"):
        environment["EDGEINFER_NATIVE"] = native
    answer = run(device, words, sent.files, output=wanted, environment=environment)
    for line in answer.said.splitlines():
        click.echo(as_line(line))
    if save is not None and answer.wrote is not None:
        write_bytes(save, answer.wrote, overwrite=True)
    if answer.code:
        ctx.exit(answer.code)


def _given(ctx: click.Context) -> Iterator[tuple[click.Parameter, Any]]:
    """What the user gave, with options before arguments."""
    parameters = sorted(ctx.command.params, key=lambda p: isinstance(p, click.Argument))
    for parameter in parameters:
        name = parameter.name or ""
        if name == NAME or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[name]
        if isinstance(parameter, click.Option) and parameter.is_flag:
            # Several flags may set one value.
            if value is True or value == parameter.flag_value:
                yield parameter, True
        elif value not in (None, ()):
            yield parameter, value


def _spelled(parameter: click.Parameter, value: Any) -> list[str]:
    """Write a parameter as it is typed."""
    values = [*map(str, value)] if isinstance(value, (list, tuple)) else [str(value)]
    if isinstance(parameter, click.Argument):
        if any(one.startswith("-") for one in values):
            raise UsageError(f"{values}: with --device, write ./ before a name that begins with -")
        return values
    option = parameter.opts[-1]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [option]
    return [word for one in values for word in (option, one)]


class _Sent:
    """Files that travel, each into a folder of its own; a detached signature goes along."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def named(self, value: Any) -> Any:
        """Return what the device calls a file, a NAME=FILE or several.

        Raises:
            UsageError: there is none.
        """
        if isinstance(value, (list, tuple)):
            return [self.named(one) for one in value]
        before, equals, after = str(value).rpartition("=")
        path = Path(str(value))
        if equals and not path.exists():
            path, before = Path(after), f"{before}="
        else:
            before = ""
        if not path.exists():
            raise UsageError(f"{path}: no such file")
        name = f"{len(self.files)}/{path.resolve().name}"
        if path.is_dir():
            self._folder(name, path)
            return f"{before}{name}"
        self.files[name] = path
        signature = path.with_name(f"{path.name}.sig")
        if signature.is_file() and not signature.is_symlink():
            self.files[f"{name}.sig"] = signature
        return f"{before}{name}"

    def _folder(self, name: str, path: Path) -> None:
        """Send what a bundle's folder may hold: a stranger's links lead to the user's own files."""
        from edgeinfer.bundle.storage import Folder, is_bundle

        if not is_bundle(path):
            raise UsageError(f"{path}: is a folder; with --device name files")
        for inner in Folder(path).listing():
            self.files[f"{name}/{inner}"] = path / inner
