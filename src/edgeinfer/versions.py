"""Versions of engines and what a bundle asks of them, as PEP 440 has them.

A device has NumPy and one engine; a package for three comparisons would be one more to install.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from edgeinfer.records import dataclass

_VERSION = r"""\s* v? (?:(?P<epoch>\d+)!)? (?P<release>\d+(?:\.\d+)*)
    (?:[-_.]? (?P<pre>alpha|a|beta|b|preview|pre|c|rc) [-_.]? (?P<pre_n>\d*))?
    (?P<post> -(?P<post_a>\d+) | [-_.]?(?:post|rev|r)[-_.]?(?P<post_b>\d*))?
    (?P<dev> [-_.]?dev[-_.]?(?P<dev_n>\d*))?
    (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))? \s*"""
_CLAUSE = re.compile(r"\s*(===|==|!=|~=|<=|>=|<|>)\s*([^\s,;)]+)\s*")
_LONGEST = 256
"""Characters of a version; Python reads no number of many thousand digits."""
_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}

_Part = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Version:
    """A version; where it stands among others is its ``key``.

    Attributes:
        epoch: 0 but for few packages.
        release: e.g. ``(1, 32)`` of 1.32.0; zeros at the end say nothing.
        pre: e.g. ``("rc", 1)``; None for none.
        post: None for none.
        dev: None for none.
        local: what stands behind a plus sign.
    """

    epoch: int
    release: tuple[int, ...]
    pre: tuple[str, int] | None = None
    post: int | None = None
    dev: int | None = None
    local: tuple[_Part, ...] | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What versions are ordered by; the local part last."""
        # A version under development of a release stands before its first alpha.
        before_all = self.pre is None and self.post is None and self.dev is not None
        pre = ("", 0) if before_all else self.pre or ("~", 0)
        post = -1 if self.post is None else self.post
        dev = math.inf if self.dev is None else self.dev
        local = ((-math.inf, ""),) if self.local is None else self.local
        return (self.epoch, _trimmed(self.release), pre, post, dev, local)

    @property
    def public(self) -> tuple[object, ...]:
        """The same without the local part."""
        return self.key[:-1]

    @property
    def base(self) -> tuple[object, ...]:
        """Epoch and release alone."""
        return self.key[:2]

    @property
    def is_prerelease(self) -> bool:
        """Whether it comes before its release."""
        return self.pre is not None or self.dev is not None


def _trimmed(release: tuple[int, ...]) -> tuple[int, ...]:
    last = max((i + 1 for i, part in enumerate(release) if part), default=0)
    return release[:last]


def parse(text: str) -> Version | None:
    """Return a version; None where the text is none."""
    if len(text) > _LONGEST:
        return None
    if text.isascii() and all(map(str.isdigit, numbers := text.split("."))):
        # As nearly all are: a load does not wait for the expression.
        return Version(0, tuple(map(int, numbers)))
    match = re.fullmatch(_VERSION, text, re.VERBOSE | re.IGNORECASE | re.ASCII)
    if match is None:
        return None
    pre = match["pre"] and match["pre"].lower()
    post = match["post_a"] or match["post_b"] or 0 if match["post"] else None
    local = match["local"]
    return Version(
        epoch=int(match["epoch"] or 0),
        release=tuple(map(int, match["release"].split("."))),
        pre=(_PRE.get(pre, pre), int(match["pre_n"] or 0)) if pre else None,
        post=None if post is None else int(post),
        dev=int(match["dev_n"] or 0) if match["dev"] else None,
        local=tuple(map(_part, re.split("[-_.]", local.lower()))) if local else None,
    )


def _part(text: str) -> _Part:
    return (int(text), "") if text.isdigit() else (-1, text)


def is_specifier(text: str) -> bool:
    """Whether a text asks for versions; an empty one asks for any."""
    return _clauses(text) is not None


def accepts(specifier: str, version: str | None) -> bool:
    """Say whether a version is one that a specifier asks for; versions before a release count too.

    Args:
        specifier: e.g. ``>=1.23, !=1.30``; empty accepts everything.
        version: Version of an engine; None or a text that is no version is accepted by an empty one
            only.
    """
    clauses = _clauses(specifier)
    if clauses == []:
        return True
    found = parse(version or "")
    if not clauses:
        return False
    return all(
        version == wanted if how == "===" else found is not None and _holds(found, how, wanted)
        for how, wanted in clauses
    )


def _clauses(text: str) -> list[tuple[str, str]] | None:
    """Split a specifier; None where it is none."""
    found = []
    for part in filter(str.strip, text.split(",")):
        match = _CLAUSE.fullmatch(part)
        if match is None or not _is_clause(*match.groups()):
            return None
        found.append((match[1], match[2]))
    return found


def _is_clause(how: str, wanted: str) -> bool:
    if how == "===":
        return True
    starred = wanted.endswith(".*")
    version = parse(wanted.removesuffix(".*"))
    if version is None or (starred and how not in ("==", "!=")):
        return False
    if starred and (version.dev is not None or version.local):
        return False
    if version.local and how not in ("==", "!="):
        return False
    return how != "~=" or len(version.release) > 1


def _holds(found: Version, how: str, wanted: str) -> bool:
    asked = parse(wanted.removesuffix(".*"))
    if asked is None:
        return False
    match how:
        case "==" | "!=":
            equal = _begins(found, asked) if wanted.endswith(".*") else _equal(found, asked)
            return equal == (how == "==")
        case "~=":
            first = Version(asked.epoch, asked.release[:-1])
            return found.public >= asked.public and _begins(found, first)
        case ">=":
            return found.public >= asked.public
        case "<=":
            return found.public <= asked.public
        case "<":
            # What comes before the very release that is excluded is not meant.
            first = asked if asked.is_prerelease else replace(asked, dev=0)
            return found.key < first.key
        case _:
            # Neither what was mended in that release, nor a build of it.
            mended = found.post is not None and asked.post is None and asked.dev is None
            same = found.base == asked.base and found.pre == asked.pre
            return found.public > asked.public and not (mended and same)


def _equal(found: Version, asked: Version) -> bool:
    return found.key == asked.key if asked.local else found.public == asked.public


def _begins(found: Version, asked: Version) -> bool:
    """Whether a version is one of a series, such as 1.30.*."""
    if asked.pre is not None or asked.post is not None:
        # Up to the part that was named last; zeros count.
        names = (asked.pre is None or found.pre == asked.pre) and (
            asked.post is None or found.post == asked.post
        )
        return names and found.base == asked.base
    count = len(asked.release)
    padded = (*found.release, *(0,) * count)[:count]
    return found.epoch == asked.epoch and padded == asked.release
