"""``--device``: the same command on a device that ssh reaches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgeinfer.errors import UsageError

NAME = "device"

Written = tuple[str, str, bytes]


def device_option(
    bundle: str, *files: str, output: Written | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add ``--device``: with it the command runs there, and this process runs nothing of it.

    Args:
        bundle: the parameter that names the bundle.
        *files: further parameters that name files, which travel with the command.
        output: the parameter that names a file to write, its suffix, and how such files begin.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--device",
            NAME,
            metavar="ssh://[USER@]HOST[:PORT][/PYTHON]",
            help="Run it there: bundle and runtime are copied, and what it says comes back.",
        )
        @functools.wraps(command)
        def wrapped(*args: Any, **values: Any) -> None:
            device = values.pop(NAME)
            if device is None:
                command(*args, **values)
                return
            _check(values[bundle])
            from edgeinfer.cli.sending import run_there

            run_there(click.get_current_context(), device, (bundle, *files), output)

        return wrapped

    return add


def _check(path: str) -> None:
    from edgeinfer.bundle.storage import is_bundle

    if Path(path).exists() and not is_bundle(Path(path)):
        raise UsageError(f"{path}: a device runs bundles; edgeinfer convert {path} makes one")
