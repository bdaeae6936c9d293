"""What a command prints, as a page that needs nothing next to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeinfer.cli.files import check_output, write_bytes
from edgeinfer.printable import as_line

if TYPE_CHECKING:
    from edgeinfer.cli.table import Table

BEGIN = b"<!doctype html>"

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ margin: 2rem auto; max-width: 70rem; padding: 0 1rem; font: 15px system-ui, sans-serif; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }}
th, td {{ padding: 4px 12px; border-bottom: 1px solid #8884; text-align: left; }}
.right {{ text-align: right; font-variant-numeric: tabular-nums; }}
p {{ margin: 4px 0; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
"""


def page_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--html``; the command receives it as ``page``."""
    return click.option(
        "--html",
        "page",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write what is printed as a page too.",
    )(command)


def check_page(path: Path | None) -> None:
    """Refuse a name that a page should not take, before anything slow starts."""
    if path is not None:
        check_output(path, ".html", BEGIN, overwrite=False, option="--html")


def write_page(path: Path | None, title: str, parts: Iterable[str | Table]) -> None:
    """Write lines and tables as a page; nothing where there is no path."""
    if path is None:
        return
    body = "".join(_line(part) if isinstance(part, str) else _table(part) for part in parts)
    text = f"{_HEAD.format(title=_safe(title))}{body}</body>\n</html>\n"
    write_bytes(path, text.encode(), overwrite=True)


def _line(line: str) -> str:
    return f"<p>{_safe(line)}</p>\n" if line else ""


def _table(table: Table) -> str:
    lines = [_row("th", table.titles, table.right)]
    lines += [_row("td", row, table.right) for row in table.rows]
    return "<table>\n" + "".join(lines) + "</table>\n"


def _row(tag: str, cells: Iterable[str], right: Iterable[bool]) -> str:
    made: list[str] = []
    for cell, is_right in zip(cells, right, strict=True):
        kind = ' class="right"' if is_right else ""
        made.append(f"<{tag}{kind}>{_safe(cell)}</{tag}>")
    return f"<tr>{''.join(made)}</tr>\n"


def _safe(text: str) -> str:
    """Return text that shows what it is, whoever named it."""
    return escape(as_line(text))
