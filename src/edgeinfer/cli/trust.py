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


_REQUIRE = click.option(
    "--require-signature", is_flag=True, help="Open nothing that no trusted key signed."
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
            trusted: tuple[str, ...],
            require_signature: bool,
            native: str | None = None,
            **kwargs: Any,
        ) -> None:
            trust = {
                "trusted": trusted,
                "require_signature": require_signature,
                "native": native,
            }
            command(*args, trust=trust, **kwargs)

        made: Callable[..., None] = wrapped
        for option in (
            *((_DENY, _ALLOW) if runs else ()),
            _REQUIRE,
            _trusted(("--trusted", *names)),
        ):
            made = option(made)
        return made

    return add
