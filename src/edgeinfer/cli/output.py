"""What a command prints: results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from edgeinfer.cli.table import Table
from edgeinfer.cli.table import render as render
from edgeinfer.cli.table import table as table
from edgeinfer.printable import as_line as as_line
from edgeinfer.printable import visible as visible
from edgeinfer.records import dataclass
from edgeinfer.types import Progress


class Lines(str):
    """A text of a model, whose line feeds are its own; it stands last, or after a line of ours."""

    __slots__ = ()


def shown(part: str | Table) -> str:
    """Return a part of a result as it is printed."""
    if not isinstance(part, str):
        return render(part)
    return visible(part) if isinstance(part, Lines) else as_line(part)


@dataclass(frozen=True, slots=True)
class Output:
    """How the user wants output.

    Attributes:
        json: one JSON document on stdout instead of text.
        quiet: no text; errors and JSON are still printed.
    """

    json: bool = False
    quiet: bool = False

    def result(self, data: object, view: Callable[[], Iterable[str | Table]]) -> None:
        """Print the result of a command.

        Args:
            data: for programs; dataclasses, NumPy numbers and paths are understood.
            view: gives lines and tables for people, each line by itself; called only when they are
                printed.
        """
        if self.json:
            click.echo(to_json(data))
        elif not self.quiet:
            for part in view():
                click.echo(shown(part))

    def remark(self, line: str) -> None:
        """Print a line that is not the result, for people."""
        if not self.quiet:
            click.echo(as_line(line), err=True)

    @contextlib.contextmanager
    def progress(self, *, lines: bool = False) -> Iterator[Progress | None]:
        """Show what is being done while the block runs; None where nobody looks.

        Args:
            lines: off a terminal print a line for each stage, so that a log shows where it is.
        """
        if self.quiet or not (lines or _watched()):
            yield None
            return
        if not _watched():
            yield _Lines()
            return
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                SpinnerColumn,
                TaskProgressColumn,
                TextColumn,
                TimeElapsedColumn,
            )
        # A device has no need of bars.
        except ModuleNotFoundError:
            yield _Lines()
            return

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TaskProgressColumn(show_speed=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=None)

            def update(what: str, done: float | None) -> None:
                # Without a share there is no end to draw, and no percentage to tell.
                known = None if done is None else 1.0
                bar.update(task, description=what, completed=done or 0.0, total=known)

            yield update


class _Lines:
    """Prints a line when another stage begins, not for every step of it.

    What has no known place among the stages is for people who watch. The first stage is shown with
    the second: it reads what was given, and an error of that is one line.
    """

    def __init__(self) -> None:
        self._stage = ""
        self._held = ""

    def __call__(self, what: str, done: float | None) -> None:
        stage = what.partition(":")[0]
        if done is None or stage == self._stage:
            return
        is_first, self._stage = not self._stage, stage
        if is_first:
            self._held = what
            return
        for line in filter(None, (self._held, what)):
            click.echo(as_line(line), err=True)
        self._held = ""


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--json`` and ``--quiet``; the command receives them as one ``out``."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, quiet: bool, **kwargs: Any) -> None:
        command(*args, out=Output(as_json, quiet), **kwargs)

    return wrapped


def size(count: int) -> str:
    """Return bytes for people, in powers of 1000."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def milliseconds(value: float | None) -> str:
    """Return a time for people."""
    if value is None:
        return "-"
    return f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:.3g} s"


def together(said: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Say each text once, of everything that it is said of."""
    found: dict[str, list[str]] = {}
    for of, text in said:
        found.setdefault(text, []).append(of)
    yield from (f"{', '.join(of)}: {text}" for text, of in found.items())


def to_json(data: object) -> str:
    """Return valid JSON for anything a command reports.

    JSON has no NaN and no infinities; they become the strings ``nan``, ``inf`` and ``-inf``.
    """
    return json.dumps(_jsonable(data), indent=2)


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields}
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _jsonable(value.tolist())
    raise TypeError(f"no JSON form for {type(value).__name__}")


def _watched() -> bool:
    """Whether somebody looks at stderr."""
    unattended = os.environ.get("CI") or os.environ.get("TERM") == "dumb"
    return sys.stderr is not None and sys.stderr.isatty() and not unattended
