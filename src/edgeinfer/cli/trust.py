"""Options of every command that opens a bundle: whom to trust, and whether its code may run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from edgeinfer.bundle.opening import Opening
from edgeinfer.cli.declared import declared, spelled

_ALLOW = click.option(
    "--allow-native",
    "native",
    flag_value="allow",
    default=None,
    help="Run machine code that no trusted key signed and this machine did not make.",
)
_DENY = click.option(
    "--no-native", "native", flag_value="deny", default=None, help="Run no machine code at all."
)


TRUST_FILES = tuple(n for n, o in spelled(Opening).items() if o.value.metavar in ("FILE", "PUBLIC"))
"""Parameters that name files."""


def trust_options(
    *names: str, runs: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add them; the command gets one ``trust``, the keyword arguments of ``Bundle.open``.

    Args:
        *names: further names of ``--trusted``.
        runs: whether the command runs what is in a bundle.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(*args: Any, native: str | None = None, **kwargs: Any) -> None:
            trust = {name: kwargs.pop(name) for name in spelled(Opening)}
            command(*args, trust={**trust, "native": native}, **kwargs)

        made: Callable[..., None] = wrapped
        for option in (_DENY, _ALLOW) if runs else ():
            made = option(made)
        return declared(Opening, also={"trusted": names})(made)

    return add
