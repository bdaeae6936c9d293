"""Texts without what commands a terminal or begins a line: names in files are anybody's."""

from __future__ import annotations


def visible(text: str) -> str:
    """Return a text without what commands a terminal; it keeps its lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def as_line(text: str) -> str:
    """Return a text as one line, likewise: a line feed of a stranger's would begin one of ours."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
