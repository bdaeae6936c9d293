"""TOML by the standard library; before Python 3.11 by the package that became part of it."""

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
    from tomllib import TOMLDecodeError as TOMLDecodeError
else:
    import tomli as tomllib
    from tomli import TOMLDecodeError as TOMLDecodeError

_DEEPEST = 64
"""Brackets within brackets, and parts of a key; the library's time grows with their square."""

_TOKENS = re.compile(
    r"""
    \#[^\n]*
    | \"{3} (?:[^"\\]|\\.|\"{1,2}(?!"))* (?:\"{3,5})?
    | '{3} (?:[^']|'{1,2}(?!'))* (?:'{3,5})?
    | "(?:[^"\\\n]|\\[^\n])*"?
    | '[^'\n]*'?
    | [.=,\n\[\]{}]
    """,
    re.VERBOSE | re.DOTALL,
)
"""Strings as the library reads them: of one line, which no backslash continues, and of several, at
whose end up to two quotes are their own."""


_ENDS = frozenset("=,\n[]{}")
"""What a key ends with, or its value."""


def loads(text: str) -> dict[str, Any]:
    """Read a document.

    Raises:
        TOMLDecodeError: it is none, or nested too deeply.
    """
    depth = parts = 0
    for token in _TOKENS.finditer(text):
        found = token.group()
        if found == ".":
            parts += 1
        elif found in _ENDS:
            parts = 0
        depth = max(0, depth + (found in "[{") - (found in "]}"))
        if max(depth, parts) > _DEEPEST:
            line = text.count("\n", 0, token.start()) + 1
            raise TOMLDecodeError(f"more than {_DEEPEST} levels (at line {line})")
    try:
        return tomllib.loads(text)
    except TOMLDecodeError:
        raise
    except RecursionError as e:
        raise TOMLDecodeError("too many levels") from e
    except ValueError as e:
        # Python bounds the digits of a number.
        raise TOMLDecodeError(str(e)) from e
