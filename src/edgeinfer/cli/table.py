"""Tables as text: where it is narrow, names go under their row or are folded, figures never are."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

from edgeinfer.printable import as_line
from edgeinfer.records import dataclass

PIPE_WIDTH = 200
"""Columns where nobody looks at a terminal: wide enough not to break a line."""

_GAP = 2
_LEAST = 4
"""Columns that a folded name gets at least, where there are as many."""

_WORD = 32
"""Columns of a word; a longer one, such as a path, is broken before its column moves."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under titles.

    Attributes:
        titles: Titles of the columns.
        right: which columns are set right; what is in them is never broken.
        rows: cells, as many as there are titles.
    """

    titles: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self, width: int) -> list[str]:
        """Return the table as lines without blanks at their ends; the first are the titles.

        Where words would have to be broken, columns of names move to a line under each row, the
        last ones first.
        """
        kept, under = list(range(len(self.titles))), list[int]()
        while not _fits(made := self._of(kept), width):
            names = [i for i in kept[1:] if not self.right[i]]
            if not names:
                break
            kept.remove(names[-1])
            under.insert(0, names[-1])
        widths = _fitting(made, width)
        lines = made._set(made.titles, widths)
        for row, cells in zip(made.rows, self.rows, strict=True):
            lines += made._set(row, widths)
            details = "; ".join(
                f"{self.titles[i]}: {cells[i]}".strip(": ") for i in under if cells[i]
            )
            for line in _folded(details, width - _GAP) if details else ():
                lines.append(" " * _GAP + line)
        return lines

    def _of(self, columns: Sequence[int]) -> Table:
        return Table(
            tuple(self.titles[i] for i in columns),
            tuple(self.right[i] for i in columns),
            tuple(tuple(row[i] for i in columns) for row in self.rows),
        )

    def _set(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        """Set one row, whose cells may take several lines."""
        cells = [
            [cell] if right else _folded(cell, wide)
            for cell, right, wide in zip(row, self.right, widths, strict=True)
        ]
        made = []
        for number in range(max(map(len, cells), default=0)):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            set_out = [
                " " * (wide - _width(part)) + part if right else part + " " * (wide - _width(part))
                for part, right, wide in zip(parts, self.right, widths, strict=True)
            ]
            made.append((" " * _GAP).join(set_out).rstrip())
        return made


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Make a table; a column whose title starts with ``>`` is set right."""
    titles = tuple(columns)
    return Table(
        tuple(t.removeprefix(">") for t in titles),
        tuple(t.startswith(">") for t in titles),
        tuple(tuple(as_line(str(cell)) for cell in row) for row in rows),
    )


def render(made: Table) -> str:
    """Return a table as text, as wide as the terminal, whose titles are bold."""
    lines = made.lines(terminal_width())
    if sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    return "\n".join(lines)


def terminal_width() -> int:
    """Return the columns there are for text."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    if is_terminal or "COLUMNS" in os.environ:
        return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    return PIPE_WIDTH


def _columns(made: Table) -> list[Sequence[str]]:
    return [*zip(made.titles, *made.rows, strict=True)]


def _unbroken(made: Table) -> list[int]:
    """Return the least width of each column that breaks no word, and no figure."""
    return [
        max(map(_width, column), default=0)
        if right
        else min(_WORD, max((_width(w) for cell in column for w in cell.split()), default=0))
        for column, right in zip(_columns(made), made.right, strict=True)
    ]


def _fits(made: Table, width: int) -> bool:
    return sum(_unbroken(made)) + _GAP * (len(made.titles) - 1) <= width


def _fitting(made: Table, width: int) -> list[int]:
    """Return the width of each column; the widest names give way first, and words last."""
    widths = [max(map(_width, column), default=0) for column in _columns(made)]
    over = sum(widths) + _GAP * (len(widths) - 1) - width
    names = [i for i, right in enumerate(made.right) if not right]
    for least in (_unbroken(made), [_LEAST] * len(widths)):
        while over > 0:
            free = [i for i in names if widths[i] > least[i]]
            if not free:
                break
            widths[max(free, key=lambda i: widths[i])] -= 1
            over -= 1
    return widths


def _folded(text: str, width: int) -> list[str]:
    if _width(text) <= width:
        return [text]
    if _width(text) == len(text):
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    lines, line = [], ""
    for character in text:
        if _width(line + character) > width and line:
            lines.append(line)
            line = ""
        line += character
    return [*lines, line]


def _width(text: str) -> int:
    """Return the columns that a text takes: some characters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
