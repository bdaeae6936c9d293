"""Device profiles: one TOML file a device, read into frozen dataclasses."""

from __future__ import annotations

import difflib
import functools
import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.bounded import read_bounded
from edgeinfer.errors import ProfileError
from edgeinfer.profiles import asked
from edgeinfer.profiles.reader import parse
from edgeinfer.profiles.schema import Profile, Quirk

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["Profile", "Quirk", "load", "names", "targets"]


def names() -> tuple[str, ...]:
    """Return the names of the profiles that ship with edgeinfer, sorted; aliases are left out."""
    return tuple(
        sorted(
            file.name.removesuffix(".toml")
            for file in importlib.resources.files(__name__).iterdir()
            if file.name.endswith(".toml")
        )
    )


def targets() -> tuple[Profile, ...]:
    """Return the profiles of all devices that models can be converted for."""
    return tuple(load(name) for name in names())


def load(name: str) -> Profile:
    """Return the profile of a target.

    Args:
        name: a shipped profile's name or alias, or the path of a ``.toml`` file.

    Raises:
        ProfileError: unknown name, unreadable or malformed file.
    """
    if name.endswith(".toml"):
        return _from_file(Path(name))
    if name.replace("-", "").isalnum() and _file(name).is_file():
        return _own(name)
    shipped = _shipped()
    known = {alias: p for p in shipped.values() for alias in (p.name, *p.aliases)}
    if name in known:
        return known[name]
    if word := asked.hint(name, shipped.values()):
        raise ProfileError(f"unknown target {name!r}: {word}; `edgeinfer targets` lists all")
    close = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise ProfileError(
        f"unknown target {name!r}: {guess}known: {', '.join(sorted(known))}; "
        "or give the path of a .toml profile"
    )


_MOST = 1 << 20
"""Bytes of a profile."""


def _from_file(path: Path) -> Profile:
    try:
        text = read_bounded(path, _MOST).decode()
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or e
        raise ProfileError(f"{path}: cannot be read: {reason}") from e
    return parse(text, str(path))


def _file(name: str) -> Traversable:
    return importlib.resources.files(__name__) / f"{name}.toml"


@functools.cache
def _own(name: str) -> Profile:
    return parse(_file(name).read_text("utf-8"), f"{name}.toml")


@functools.cache
def _shipped() -> Mapping[str, Profile]:
    profiles = {name: _own(name) for name in names()}
    _check_names(profiles)
    return profiles


def _check_names(profiles: Mapping[str, Profile]) -> None:
    owner: dict[str, str] = {}
    for stem, profile in profiles.items():
        if profile.name != stem:
            raise ProfileError(f"{stem}.toml: name: expected {stem!r}, received {profile.name!r}")
        for name in (profile.name, *profile.aliases):
            if name in owner:
                raise ProfileError(f"{stem}.toml: {name!r} is taken by {owner[name]}.toml")
            owner[name] = stem
