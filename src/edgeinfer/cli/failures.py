"""One place where errors become a line on stderr and an exit code.

====  =================================================================
code  meaning
====  =================================================================
0     fine
1     a finding about the model: unsupported, budget breached, bad input
2     usage or configuration
3     environment: missing engine, no device, full disk, no memory
70    a bug in edgeinfer
130   interrupted by the user
141   the reader of the output went away
143   terminated
====  =================================================================
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import field
from typing import Any, NoReturn

import click

from edgeinfer.cli.output import as_line, to_json, visible
from edgeinfer.errors import SURROUNDINGS, EdgeInferError
from edgeinfer.installed import without_converter
from edgeinfer.records import dataclass

DEBUG = "EDGEINFER_DEBUG"
BUG, INTERRUPTED, PIPE, TERMINATED = 70, 130, 141, 143
ENVIRONMENT = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """What is reported of an error.

    Attributes:
        kind: name of its class, or a word where the class says nothing.
        message: for people.
        code: Code of the process.
        details: the error's own fields, for programs.
    """

    kind: str
    message: str
    code: int
    details: dict[str, Any] = field(default_factory=dict)


def terminate_cleanly() -> None:
    """Unwind on SIGTERM, so that half-written files are removed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_terminate)


def guarded(command: click.Command, argv: Sequence[str]) -> int:
    """Run a command and return the exit code; every error is one line.

    With ``--json`` among the arguments the error is also an object on stdout:
    ``{"error": {"type", "message", "exit_code", ...}}``.
    """
    warnings = _Warnings()
    try:
        with warnings, command.make_context("edgeinfer", list(argv)) as context:
            command.invoke(context)
        _flush()
        warnings.tell(argv)
    except click.exceptions.Exit as e:
        warnings.tell(argv)
        return _exit(e.exit_code)
    except (KeyboardInterrupt, EOFError, click.Abort) as e:
        kept = isinstance(e, KeyboardInterrupt) and str(e)
        text = f"interrupted, {kept or 'nothing was written'}"
        return _tell(Failure("Interrupted", text, INTERRUPTED), argv)
    except BrokenPipeError:
        return _silent()
    except Exception as e:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return _tell(describe(e), argv, e)
    return 0


_BEGINS = re.compile(r"\n(?=\S)")

_MOST_WARNINGS = 100


class _Warnings(logging.Handler):
    """Holds what the library warns of; an error that follows says it again and is reported alone.

    A command may run forever, so lines that are repeated, and those beyond the first hundred,
    are not kept.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: dict[str, None] = {}
        self.left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = " ".join(record.getMessage().split())
        if line in self.lines:
            return
        if len(self.lines) < _MOST_WARNINGS:
            self.lines[line] = None
        else:
            self.left_out += 1

    def __enter__(self) -> None:
        logging.getLogger("edgeinfer").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("edgeinfer").removeHandler(self)

    def tell(self, argv: Sequence[str]) -> None:
        if not {"--quiet", "-q"} & set(_options(argv)):
            for line in self.lines:
                click.echo(as_line(f"edgeinfer: warning: {line}"), err=True)
            if self.left_out:
                click.echo(f"edgeinfer: warning: and {self.left_out} more", err=True)


def describe(error: Exception) -> Failure:
    """Say what an error means to the user."""
    kind = type(error).__name__
    if isinstance(error, EdgeInferError):
        return Failure(kind, str(error), type(error).exit_code, _fields(error))
    if isinstance(error, click.ClickException):
        return Failure("UsageError", _usage(error), 2)
    if isinstance(error, ModuleNotFoundError) and (reason := without_converter(error)):
        return Failure("NotAvailableError", reason, ENVIRONMENT)
    if isinstance(error, MemoryError):
        return Failure("OutOfMemory", "out of memory, nothing was written", ENVIRONMENT)
    if isinstance(error, OSError) and error.errno in SURROUNDINGS:
        where = f"{error.filename}: " if error.filename else ""
        return Failure("SystemError", f"{where}{error.strerror}", ENVIRONMENT)
    message = (
        f"this is a bug: {kind}: {' '.join(str(error).split()) or 'no message'}; "
        f"please report it with what {DEBUG}=1 prints"
    )
    return Failure("Bug", message, BUG, {"exception": kind})


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).removesuffix(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see '{context.command_path} --help'" if context else message


def _fields(error: EdgeInferError) -> dict[str, Any]:
    return {k: _plain(v) for k, v in vars(error).items() if not k.startswith("_")}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _tell(failure: Failure, argv: Sequence[str], error: Exception | None = None) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return failure.code
    try:
        if "--json" in _options(argv):
            entry = {"type": failure.kind, "message": failure.message, "exit_code": failure.code}
            # No field of an error stands for what the process does.
            click.echo(to_json({"error": {**entry, **failure.details, **entry}}))
        _flush()
    except OSError:
        _abandon_stdout()
    # What a stranger's file is called may have line feeds: no line but the first begins as ours do.
    message = _BEGINS.sub("\n  ", failure.message)
    click.echo(visible(f"edgeinfer: {message}"), err=True)
    return failure.code


def _options(argv: Sequence[str]) -> Sequence[str]:
    return argv[: argv.index("--")] if "--" in argv else argv


def _exit(code: int) -> int:
    """Return the code of a command that ended itself, once its output is out."""
    try:
        _flush()
    except BrokenPipeError:
        return _silent()
    return code


def _silent() -> int:
    _abandon_stdout()
    return PIPE


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _abandon_stdout() -> None:
    """Let the interpreter's own flush at exit go nowhere instead of printing a warning."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _on_terminate(number: int, frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)
