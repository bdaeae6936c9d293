"""Options of ``edgeinfer run`` that say how a bundle is loaded; those of ``edgeinfer.load``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgeinfer.bundle.opening import Opening
from edgeinfer.cli.declared import declared, spelled
from edgeinfer.cli.output import as_line
from edgeinfer.cli.trust import trust_options
from edgeinfer.runtime.options import SessionOptions
from edgeinfer.types import Progress

if TYPE_CHECKING:
    from edgeinfer.runtime.session import Session
    from edgeinfer.runtime.telemetry import SessionStats

F = TypeVar("F", bound=Callable[..., Any])

_NAMES = spelled(SessionOptions).keys() - spelled(Opening).keys()


def loading_options(command: F) -> F:
    """Add the options; the command gets them by keyword, for ``as_loaded`` to read."""
    return trust_options()(declared(SessionOptions, _NAMES)(command))  # type: ignore[return-value]


def time_limit_option(default: float | None) -> Callable[[F], F]:
    """Add ``--time-limit`` to a command that runs artifacts one after the other.

    Args:
        default: seconds; None runs engines in this process, where nothing can end them.
    """
    where = "" if default else "Each engine then has a process of its own. "
    return click.option(
        "--time-limit",
        type=click.FloatRange(0, min_open=True),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=f"Time limit of loading an artifact and of a run. {where}A loop may never end.",
    )


def as_loaded(*, trust: dict[str, Any], **given: Any) -> dict[str, Any]:
    """Return them as ``edgeinfer.load`` takes them."""
    isolate = given["isolate"] or given["run_timeout_s"] is not None
    return {**given, **trust, "isolate": isolate, "allow": given["allow"] or None}


def told_stats(session: Session, options: Mapping[str, Any]) -> SessionStats | None:
    """Return what a session counted, where that was requested."""
    return session.stats() if options["stats"] else None


class _Steps(logging.Handler):
    """Passes on what a load logs of its steps, such as the candidate that it checks."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self._progress(as_line(record.getMessage()), None)


@contextlib.contextmanager
def steps_shown(progress: Progress | None) -> Iterator[None]:
    """Show the steps of loads in the block: the first one of a bundle takes seconds."""
    if progress is None:
        yield
        return
    progress("load the bundle", None)
    log, handler = logging.getLogger("edgeinfer"), _Steps(progress)
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)
