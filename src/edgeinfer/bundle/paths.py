"""Which paths a bundle may hold: portable ones that stay inside it on every file system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

MAX_PATH = 400
"""Characters; leaves room for the cache folder in front where paths end at 4096 bytes."""

_RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{n}" for port in ("com", "lpt") for n in range(10)),
}
_FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f\x7f]')


def path_problem(path: str) -> str:
    """Say why a path may not be in a bundle; empty when it may."""
    if not path:
        return "is empty"
    if len(path) > MAX_PATH:
        return f"is longer than {MAX_PATH} characters"
    if not is_text(path):
        return "is not valid Unicode"
    if "\\" in path:
        return "has a backslash"
    if path.startswith("/"):
        return "is absolute"
    if path[1:2] == ":" and path[0].isascii() and path[0].isalpha():
        return "names a drive"
    for part in path.split("/"):
        problem = _part_problem(part)
        if problem:
            return problem
    return ""


def _part_problem(part: str) -> str:
    if part in ("", ".", ".."):
        return f"has a {part!r} component" if part else "has an empty component"
    if found := _FORBIDDEN.search(part):
        return f"has the character {found.group()!r}"
    if part.endswith((".", " ")) or part.startswith(" "):
        return "has a component that starts or ends with a space or ends with a dot"
    if part.partition(".")[0].lower() in _RESERVED:
        return f"has the component {part!r}, which some systems reserve"
    if len(part.encode()) > 255:
        return "has a component longer than 255 bytes"
    return ""


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8; escapes and odd file names can hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def folded(path: str) -> str:
    """Return what a case-insensitive, normalising file system makes of a path."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def first_double(names: Iterable[str]) -> str | None:
    """Return the first name that is there a second time; None where each is there once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def collisions(paths: Iterable[str]) -> list[str]:
    """Describe distinct paths that some file system takes for the same, or file and folder."""
    problems = []
    seen: dict[str, str] = {}
    for path in paths:
        other = seen.setdefault(folded(path), path)
        if other != path:
            problems.append(f"{path!r} and {other!r} are one file where case does not count")
    # In this order what lies in a folder follows at once on a file of the folder's name.
    ordered = sorted(seen, key=lambda key: key.replace("/", "\0"))
    for key, following in pairwise(ordered):
        if following.startswith(f"{key}/"):
            problems.append(f"{seen[key]!r} is a file and the folder of {seen[following]!r}")
    return problems
