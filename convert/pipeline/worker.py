"""The front of a conversion in a process that ends before the gate runs.

The graph library, the oracles' engines and what they leave in memory are gone when the artifacts
are run, and a model that takes an engine down does not take its caller along.
"""

from __future__ import annotations

import gc
import logging
import math
import tempfile
import threading
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any, TextIO

from edgeinfer.backends.process import bounds, child, isolation
from edgeinfer.backends.process.confine import confine
from edgeinfer.backends.process.deadline import announce
from edgeinfer.convert.late import late
from edgeinfer.convert.pipeline.clock import uncounted
from edgeinfer.convert.pipeline.deferred import import_onnx_ir
from edgeinfer.convert.pipeline.front import AlreadyKnown, Front, PreparedConversion
from edgeinfer.convert.pipeline.plan import Job
from edgeinfer.convert.pipeline.request import Request
from edgeinfer.convert.verify import Finding
from edgeinfer.errors import CrashedError, Problem, SourceError, VerifyError
from edgeinfer.metrics import Budget
from edgeinfer.types import Feeds

_MODULE = "edgeinfer.convert.pipeline.worker"
_START = "start the converter"


def can_work_apart(model: object, example_inputs: object) -> bool:
    """Whether a model can be read by another process as well as by this one."""
    if not isinstance(model, str | Path) or example_inputs is not None:
        return False
    return isolation.apart()


class Worker:
    """``Front`` with each of its methods in a process of its own."""

    def __init__(self, request: Request) -> None:
        """Start nothing yet; ``prepare`` does."""
        # Whoever hears of the progress is in this process; the front needs no description.
        self._request, self._progress = (
            replace(request, progress=None, description=None),
            request.progress,
        )

    def prepare(self, variants: Path, known: AlreadyKnown | None = None) -> PreparedConversion:
        """See ``Front.prepare``.

        Raises:
            CrashedError: the process ended half-way.
            VerifyError: an engine did not come back in time.
        """
        prepared: PreparedConversion = self._do("prepare", variants, known)
        return prepared

    def explain(
        self, job: Job, engine: str, feeds: Feeds, budget: Budget, folder: Path
    ) -> tuple[Finding, bool]:
        """See ``Front.explain``.

        Raises:
            CrashedError: the process ended half-way.
        """
        explained: tuple[Finding, bool] = self._do("explain", job, engine, feeds, budget, folder)
        return explained

    def check(self) -> dict[str, list[Problem]]:
        """See ``Front.check``.

        Raises:
            SourceError: the model takes far more memory or time than its size explains.
            CrashedError: the process ended half-way.
        """
        found: dict[str, list[Problem]] = self._do("check", looks_at=self._request.model)
        return found

    def _do(self, method: str, *arguments: Any, looks_at: str | Path | None = None) -> Any:
        asked = _Asked((self._request, method, arguments), self._progress)
        return asked.answer(None if looks_at is None else Path(looks_at), _CHECK_SPARE)


def inspected(path: Path) -> Any:
    """Return the ``ModelInfo`` of a file.

    Raises:
        SourceError: it cannot be read, or takes far more memory or time than its size explains.
        CrashedError: the process ended half-way.
    """
    return _Asked((None, "inspect", (path,)), None).answer(path, _INSPECT_SPARE)


_CHECK_SPARE, _INSPECT_SPARE = 700 << 20, 300 << 20
"""Bytes of memory; half of them are the libraries of all targets, and those that read models."""

_TORCH_SPARE, _TORCH_S = 700 << 20, 120.0
"""Bytes more, and seconds, where PyTorch reads a program, runs it and writes it anew."""


class _Asked:
    """One thing that a process of its own does.

    Args:
        message: the request, the name of what is to be done, and its arguments.
        progress: hears of stages.
    """

    def __init__(self, message: tuple[Any, ...], progress: Any) -> None:
        self._message, self._progress = message, progress
        self._stage, self._until, self._what = _START, math.inf, ""

    def answer(self, looks_at: Path | None, spare: int) -> Any:
        """Start the process and wait for what it gives; where it only looks, with bounds."""
        process = child.Child(_MODULE)
        watch = None
        if looks_at is not None:
            spare_s = bounds.SECONDS
            if looks_at.suffix == ".pt2":
                spare, spare_s = spare + _TORCH_SPARE, _TORCH_S
            watch = bounds.BoundedLook(process.pid, bounds.size_of(looks_at), spare, spare_s)
        try:
            with watch or nullcontext():
                process.send(self._message)
                return self._waited(process, watch)
        except TimeoutError as e:
            text = f"the model does not end: {self._what}; --time-limit gives it longer"
            raise VerifyError(text) from e
        except child.ChildEndedError as e:
            if watch is not None and watch.over:
                raise SourceError(
                    f"{looks_at}: was not read to the end: that takes more than {watch.over}, far "
                    "more than a file of its size explains"
                ) from e
            raise CrashedError("converter", self._stage, e.how, self._left(looks_at)) from e
        finally:
            process.kill()

    def _left(self, looks_at: Path | None) -> str:
        """Say what an end half-way leaves behind."""
        if looks_at is not None:
            return ""
        kept = self._message[0].keep
        return "nothing was written" + ("" if kept is None else f" but the stages in {kept}")

    def _waited(self, process: child.Child, watch: bounds.BoundedLook | None) -> Any:
        while True:
            left = None if self._until == math.inf else max(0.0, self._until - time.monotonic())
            kind, *content = process.receive(left)
            if kind == "done":
                return content[0]
            if kind == "failed":
                error, text = content
                raise error from child.RemoteTraceback(text)
            if kind == "limit":
                seconds, self._what = content
                self._until = math.inf if seconds is None else time.monotonic() + seconds
            elif kind == "stage":
                self._stage = uncounted(content[0])
                if self._progress is not None:
                    self._progress(*content)
            elif kind == "log":
                name, level, line = content
                logging.getLogger(name).log(level, "%s", line)
            elif kind == "warning":
                warnings.warn_explicit(*content)
            elif kind == "belongs" and watch is not None:
                watch.grow(*content)


class _Line:
    """Tells the other process what happens here, from any thread."""

    def __init__(self, connection: socket) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def tell(self, *message: Any) -> None:
        with self._lock:
            child.write(self._connection, message)

    def stage(self, what: str, done: float | None) -> None:
        self.tell("stage", what, done)

    def limit(self, seconds: float | None, what: str) -> None:
        self.tell("limit", seconds, what)

    def belongs(self, size: int) -> None:
        self.tell("belongs", size)

    def warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        # A class of some package would make the other process import that package.
        plain = next(kind for kind in category.__mro__ if kind.__module__ == "builtins")
        self.tell("warning", str(message), plain, filename, lineno)


class _Log(logging.Handler):
    """Sends what is logged."""

    def __init__(self, line: _Line) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.tell("log", record.name, record.levelno, record.getMessage())


def _inspect(path: Path) -> Any:
    return late("model_contents").model_info(late("sources").read(path))


def main() -> None:
    """Be the process: do one thing, tell how it went."""
    gc.freeze()
    connection, _ = child.connect()
    line = _Line(connection)
    logging.getLogger().addHandler(_Log(line))
    announce(line.limit)
    bounds.announce(line.belongs)
    # The other process's filters decide what is shown.
    warnings.simplefilter("default")
    warnings.showwarning = line.warn
    request, method, arguments = child.read(connection)
    import_onnx_ir()
    if request is None or method == "check":
        # A second layer around readers and operators that a stranger's file chooses.
        confine([Path(tempfile.gettempdir())])
        isolation.make_expendable()
    try:
        if request is None:
            result = _inspect(*arguments)
        else:
            front = Front(replace(request, progress=line.stage))
            result = getattr(front, method)(*arguments)
    except Exception as error:
        line.tell("failed", *child.portable(error))
    else:
        line.tell("done", result)


if __name__ == "__main__":
    main()
