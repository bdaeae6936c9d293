"""Options of commands, made of the fields that declare them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from edgeinfer.cli.names import KINDS, Names, named
from edgeinfer.options import Option, Section, default_of, options_of

F = TypeVar("F", bound=Callable[..., Any])


def spelled(kind: type, only: Collection[str] = ()) -> dict[str, Option]:
    """Return the options of a class that a command line has; of some, if these are named."""
    found = options_of(kind).items()
    return {n: known for n, known in found if known.flags and (not only or n in only)}


def declared(
    kind: type, only: Collection[str] = (), also: Mapping[str, tuple[str, ...]] | None = None
) -> Callable[[F], F]:
    """Add the options of a class to a command, which gets them by the names of the fields.

    Args:
        kind: the class.
        only: names of those wanted, if not all are.
        also: further flags of some.
    """

    def add(command: F) -> F:
        for name, known in reversed(spelled(kind, only).items()):
            flags = (*known.flags, *(also or {}).get(name, ()))
            known = replace(known, flags=flags)
            command = _option(name, known, default_of(kind, name))(command)
        return command

    return add


def _option(name: str, known: Option, default: Any) -> Callable[[F], F]:
    more: dict[str, Any] = {"help": known.help}
    if isinstance(default, bool) or known.value.kind == "flag":
        return click.option(*known.flags, name, is_flag=True, default=default, **more)
    if known.value.multiple:
        more |= {"multiple": True}
    elif default is None or isinstance(default, str | int | float):
        more |= {"default": default, "show_default": bool(default)}
    if known.required:
        more |= {"required": True}
    if known.value.metavar:
        more |= {"metavar": known.value.metavar}
    kind = KINDS.get(known.value.kind)
    if isinstance(kind, Names):
        return named(*known.flags, name, type=kind, **more)
    return click.option(*known.flags, name, type=kind, **more)


def given(kind: type, words: Mapping[str, Any], only: Collection[str] = ()) -> dict[str, Any]:
    """Return what the words of a command line stand for, by field."""
    return {name: known.read(words[name]) for name, known in spelled(kind, only).items()}


def listed(kind: type, sections: Sequence[Section]) -> tuple[Section, ...]:
    """Return the sections of the help with the names of their options."""
    options = spelled(kind).items()
    return tuple(
        replace(s, names=tuple(n for n, known in options if known.section is s)) for s in sections
    )
