"""Options of ``edgeinfer run`` that say how a bundle is loaded; those of ``edgeinfer.load``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgeinfer.cli.names import BACKEND, POLICIES, POLICY, named
from edgeinfer.cli.output import visible
from edgeinfer.cli.trust import trust_options
from edgeinfer.types import Progress

if TYPE_CHECKING:
    from edgeinfer.runtime.session import Session
    from edgeinfer.runtime.telemetry import SessionStats

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    named("-b", "--backend", type=BACKEND, help="Use this engine or fail."),
    named("--policy", type=POLICY, default="latency", show_default=True, help=POLICIES),
    click.option("--device", type=click.Choice(["cpu", "gpu", "npu"]), help="Use this or fail."),
    click.option("--threads", type=click.IntRange(1, 1024), help="Of the engine."),
    click.option(
        "--allow-fallback", is_flag=True, help="Let operators run on the CPU, and say which."
    ),
    click.option("--isolate", is_flag=True, help="Run the engine in a process of its own."),
    click.option(
        "--run-timeout",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Stop a run of it that takes longer.",
    ),
    click.option(
        "--on-crash",
        type=click.Choice(["raise", "next"]),
        default="raise",
        show_default=True,
        help="'next' hands over to the next engine when one goes down twice; isolates.",
    ),
    click.option("--stats", is_flag=True, help="Count runs, and tell times and failures."),
)


def loading_options(command: F) -> F:
    """Add the options; the command gets them by keyword, for ``as_loaded`` to read."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return trust_options()(command)  # type: ignore[return-value]


def as_loaded(
    *,
    run_timeout: float | None,
    on_crash: str,
    isolate: bool,
    stats: bool,
    trust: dict[str, Any],
    **given: Any,
) -> dict[str, Any]:
    """Return them as ``edgeinfer.load`` takes them."""
    return {
        **given,
        **trust,
        "isolate": isolate or run_timeout is not None,
        "run_timeout_s": run_timeout,
        "on_crash": on_crash,
        # Unasked, the environment decides.
        "stats": True if stats else None,
    }


def told_stats(session: Session, options: Mapping[str, Any]) -> SessionStats | None:
    """Return what a session counted, where that was asked for."""
    return session.stats() if options["stats"] else None


class _Steps(logging.Handler):
    """Passes on what a load logs of its steps, such as the candidate that it checks."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self._progress(visible(record.getMessage()), None)


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
