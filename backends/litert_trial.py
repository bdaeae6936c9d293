"""Run a ``.tflite`` file nobody has run before in a process of its own.

LiteRT 2.3.0 ends the process on some malformed files, e.g. int8 tensors without a scale. A child
loads the file and runs it once on zeros; how that ended is remembered by the file's SHA-256, so the
next load of the same bytes costs a hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from edgeinfer.backends import child
from edgeinfer.backends.engines import import_litert
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.errors import LoadError, NotAvailableError

FOLDER = "litert-trials"
TIMEOUT_S = 600
"""The first run of the largest models takes seconds; a child that hangs is a fault of the file."""

_OK = "ok"
_remembered: dict[str, str] = {}
_quiet = Lock()
_OWN_LINES = re.compile(rb"^(INFO|VERBOSE|WARNING|ERROR): .*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Opening:
    """How an interpreter is made.

    Attributes:
        path: the file.
        threads: of the interpreter.
        xnnpack: apply the XNNPACK delegate, as LiteRT does by default.
        delegate: library of another delegate; empty for none.
        options: of that delegate.
    """

    path: str
    threads: int
    xnnpack: bool
    delegate: str = ""
    options: dict[str, str] = field(default_factory=dict)


def open_interpreter(opening: Opening) -> tuple[Any, bool]:
    """Make an interpreter; the second value is whether it is ready to run at the file's own sizes.

    Where inputs have open sizes, the file holds 1 for each, which may be too small for a
    convolution. Then nothing is allocated before sizes are set.
    """
    litert = import_litert()
    kinds = litert.OpResolverType
    kind = kinds.AUTO if opening.xnnpack else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    delegates = None
    if opening.delegate:
        delegates = [litert.load_delegate(opening.delegate, opening.options)]
    with _silence():
        interpreter = litert.Interpreter(
            model_path=opening.path,
            num_threads=opening.threads,
            experimental_op_resolver_type=kind,
            experimental_delegates=delegates,
        )
        try:
            interpreter.allocate_tensors()
        except RuntimeError as error:
            if "custom op" in str(error) or not _has_open_sizes(interpreter):
                raise
            return interpreter, False
    return interpreter, True


def _has_open_sizes(interpreter: Any) -> bool:
    inputs = interpreter.get_input_details()
    return any(size < 0 for detail in inputs for size in detail.get("shape_signature", ()))


def check_runs(opening: Opening, version: str) -> None:
    """Try a file unless these bytes were tried before, in the same way by the same engine.

    A process that is here to be ended needs no trial.

    Raises:
        LoadError: the trial ended the process, or no process could be started.
    """
    if child.is_expendable():
        return
    how = f"{opening.xnnpack}-{opening.delegate}-{sorted(opening.options.items())}"
    digest = _sha256(opening.path, *_stamp(opening.path))
    key = hashlib.sha256(f"{digest}-{version}-{how}".encode()).hexdigest()
    verdict = _remembered.get(key) or _recall(key)
    if verdict is None:
        verdict = _try(opening)
        _keep(key, verdict)
    _remembered[key] = verdict
    if verdict != _OK:
        raise LoadError(f"litert: {opening.path} ends the process: {verdict}")


def _stamp(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=64)
def _sha256(path: str, *_: int) -> str:
    """Hash a file; the further arguments tell versions of it apart."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _recall(key: str) -> str | None:
    try:
        return (writable_folder(FOLDER) / key).read_text(encoding="utf-8") or None
    except OSError:
        return None


def _keep(key: str, verdict: str) -> None:
    # A cache that cannot be written costs a trial at each start, nothing else.
    with contextlib.suppress(OSError):
        folder = writable_folder(FOLDER)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            file.write(verdict)
        os.replace(file.name, folder / key)


def _try(opening: Opening) -> str:
    try:
        process = child.Child(__name__, keep_errors=True)
    except NotAvailableError as error:
        raise LoadError(
            f"litert: no process to try {opening.path} in: {error}; extra option trial=off skips it"
        ) from error
    try:
        process.send(opening)
        # What Python can report, the load or the run in this process reports too.
        process.receive(TIMEOUT_S)
    except TimeoutError:
        return f"no end after {TIMEOUT_S} s"
    except child.ChildEndedError as error:
        return error.how
    finally:
        process.kill()
    return _OK


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep LiteRT's log lines off stderr; what others write meanwhile still arrives.

    There is no switch for them: "INFO: Created TensorFlow Lite XNNPACK delegate for CPU."
    """
    with _quiet, tempfile.TemporaryFile() as sink:
        try:
            saved = os.dup(2)
        except OSError:  # no stderr at all
            yield
            return
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            sink.seek(0)
            rest = _OWN_LINES.sub(b"", sink.read())
            if rest:
                with contextlib.suppress(OSError):
                    os.write(saved, rest)
            os.close(saved)


def _main() -> None:
    """Load a file and run it once on zeros; say when that is over, however it went."""
    connection, _ = child.connect()
    opening = child.read(connection)
    try:
        interpreter, ready = open_interpreter(opening)
        if ready:
            for detail in interpreter.get_input_details():
                zeros = np.zeros(detail["shape"], detail["dtype"])
                interpreter.set_tensor(detail["index"], zeros)
            interpreter.invoke()
    except Exception as error:
        child.write(connection, str(error))
    else:
        child.write(connection, "")


if __name__ == "__main__":
    _main()
