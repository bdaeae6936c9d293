"""Options of every command that opens a bundle: whom to trust, and whether its code may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

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


def _trusted(names: tuple[str, ...]) -> Callable[[F], F]:
    return click.option(
        *names,
        "trusted",
        multiple=True,
        metavar="PUBLIC",
        help="Public key, a PEM file, that must have signed it; may be given several times.",
    )


TRUST_FILES = ("trusted", "revoked", "signature")
"""Parameters that name files."""

_NAMES = (
    *("trusted", "require_signature"),
    *("expect_name", "protect_rollback", "signers", "revoked", "signature"),
)
_SIGNED = (
    click.option(
        "--require-signature", is_flag=True, help="Open nothing that no trusted key signed."
    ),
    click.option("--expect-name", metavar="NAME", help="Open no model of another name."),
    click.option(
        "--protect-rollback", is_flag=True, help="Open no version older than one opened here."
    ),
    click.option(
        "--signers",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="So many trusted keys must have signed it.",
    ),
    click.option(
        "--revoked",
        metavar="FILE",
        help="Digests and key ids that are trusted no more, one a line.",
    ),
    click.option(
        "--signature",
        metavar="FILE",
        help="By OpenSSF's model-signing, of a key that --trusted names; default BUNDLE.sig.",
    ),
)


def trust_options(
    *names: str, runs: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add them; the command gets one ``trust``, the keyword arguments of ``Bundle.open``.

    Args:
        *names: further names of ``--trusted``.
        runs: whether the command runs what is in a bundle.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        import functools

        @functools.wraps(command)
        def wrapped(
            *args: Any,
            native: str | None = None,
            **kwargs: Any,
        ) -> None:
            trust = {name: kwargs.pop(name) for name in _NAMES}
            command(*args, trust={**trust, "native": native}, **kwargs)

        made: Callable[..., None] = wrapped
        for option in (
            *((_DENY, _ALLOW) if runs else ()),
            *reversed(_SIGNED),
            _trusted(("--trusted", *names)),
        ):
            made = option(made)
        return made

    return add
