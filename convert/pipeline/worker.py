"""The front of a conversion in a process that ends before the gate runs.

The graph library, the oracles' engines and what they leave in memory are gone when the artifacts
are run, and a model that takes an engine down does not take its caller along.
"""

from __future__ import annotations

import builtins
import gc
import logging
import math
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, TextIO, cast

from edgeinfer.accuracy import Metric, Outputs, TaskMeasure
from edgeinfer.backends.engines import leave_out_gpus_of_tvm
from edgeinfer.backends.process import bounds, channel, child, isolation
from edgeinfer.backends.process.answers import Listed, fits
from edgeinfer.backends.process.confine import confine
from edgeinfer.convert.late import late
from edgeinfer.convert.pipeline.clock import uncounted
from edgeinfer.convert.pipeline.deferred import import_onnx_ir
from edgeinfer.convert.pipeline.front import AlreadyKnown, Front, PreparedConversion
from edgeinfer.convert.pipeline.plan import Job
from edgeinfer.convert.pipeline.request import Request
from edgeinfer.convert.quantize.search import measurements
from edgeinfer.convert.verify import Finding
from edgeinfer.errors import CrashedError, Problem, SourceError, VerifyError
from edgeinfer.garbage import look_seldom
from edgeinfer.metrics import Budget
from edgeinfer.printable import visible
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
        self._metric, self._progress = request.metric, request.progress
        metric = request.metric
        if metric is not None and not isinstance(metric, TaskMeasure):
            metric = _MeasuredThere(str(getattr(metric, "__name__", "your metric")))
        # Whoever hears of the progress is in this process; the front needs no description.
        self._request = replace(request, progress=None, description=None, metric=metric)

    def prepare(self, variants: Path, known: AlreadyKnown | None = None) -> PreparedConversion:
        """See ``Front.prepare``.

        Raises:
            SourceError: to read the model takes far more memory or time than its size explains.
            CrashedError: the process ended half-way.
            VerifyError: an engine did not come back in time.
        """
        writable = [variants, *([] if self._request.keep is None else [Path(self._request.keep)])]
        prepared = self._do("prepare", variants, known, writable=writable)
        _refuse_places(prepared, variants)
        return cast("PreparedConversion", prepared)

    def explain(
        self, job: Job, engine: str, feeds: Feeds, budget: Budget, folder: Path
    ) -> tuple[Finding, bool]:
        """See ``Front.explain``.

        Raises:
            CrashedError: the process ended half-way.
        """
        arguments = job, engine, feeds, budget, folder
        explained = self._do("explain", *arguments, writable=[folder])
        return cast("tuple[Finding, bool]", explained)

    def check(self) -> dict[str, list[Problem]]:
        """See ``Front.check``.

        Raises:
            SourceError: the model takes far more memory or time than its size explains.
            CrashedError: the process ended half-way.
        """
        return cast("dict[str, list[Problem]]", self._do("check"))

    def _do(self, method: str, *arguments: Any, writable: Sequence[Path] = ()) -> Any:
        message = self._request, method, arguments, writable
        asked = _Asked(
            *(message, _GIVEN[method], self._progress, self._metric),
            trusted=self._request.trust_source,
        )
        with _there(writable):
            return asked.answer([Path(self._request.model)], _CHECK_SPARE)


@contextmanager
def _there(folders: Sequence[Path]) -> Iterator[None]:
    """Make the folders that a confined process writes into; one that stays empty goes."""
    new = [folder for folder in folders if not folder.exists()]
    for folder in new:
        # Whoever writes into it says what is wrong.
        with suppress(OSError):
            folder.mkdir()
    try:
        yield
    finally:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()


_CHECK_SPARE, _INSPECT_SPARE = 700 << 20, 300 << 20
"""Bytes of memory; half of them are the libraries of all targets, and those that read models."""

_TORCH_SPARE, _TORCH_S = 700 << 20, 120.0
"""Bytes more, and seconds, where PyTorch reads a program, runs it and writes it anew."""

_FUNCTIONS: Mapping[str, tuple[str, str, int]] = {
    "inspect": ("model_contents", "contents", _INSPECT_SPARE),
    "look at a language model": ("model_contents", "language_model", _INSPECT_SPARE),
    "read a language model": ("model_contents", "whole_language_model", _INSPECT_SPARE),
    "compare graphs": ("verify.divergence", "first_divergence", _CHECK_SPARE),
    "make inputs": ("verify.divergence", "made_inputs", _CHECK_SPARE),
    "list kernels": ("tuning.workloads", "read_workloads", _CHECK_SPARE),
    "join packages": ("lower.coreml.functions", "join_packages", _CHECK_SPARE),
}
"""Functions that read a stranger's files: their modules and names, and the memory they need."""

_WORKS = frozenset({"prepare", "explain", "compare graphs", "make inputs", "list kernels"})
"""What runs a model that was looked at, or makes something of it; bounds of a look end there."""


def read_apart(
    task: str,
    given: Any,
    *arguments: Any,
    files: Sequence[Path],
    writable: Sequence[Path] = (),
    trusted: bool = False,
) -> Any:
    """Have a function of ``_FUNCTIONS`` called in a process of its own, where there can be one.

    Args:
        task: which one.
        given: what it gives; an annotation.
        *arguments: what it takes.
        files: what it reads of others.
        writable: folders that it may write into.
        trusted: the user vouches for the files, which are read without bounds then.

    Raises:
        SourceError: a file cannot be read, or takes far more memory or time than its size explains.
        CrashedError: the process ended half-way.
        EdgeInferError: as the function.
    """
    module, name, spare = _FUNCTIONS[task]
    if not isolation.apart():
        return getattr(late(module), name)(*arguments)
    message = None, task, arguments, writable
    with _there(writable):
        answer = _Asked(message, given, trusted=trusted).answer(files, spare)
    for folder in writable:
        _refuse_links(folder)
    return answer


_GIVEN: Mapping[str, Any] = {
    "prepare": PreparedConversion,
    "explain": tuple[Finding, bool],
    "check": dict[str, list[Problem]],
}
"""What the process gives for what it is asked to do."""

_TOLD: Mapping[str, tuple[Any, ...]] = {
    "failed": (Exception, str),
    "limit": (float | None, str),
    "stage": (str, float | None),
    "log": (str, int, str),
    "warning": (str, str, str, int),
    "belongs": (list[str],),
    "looked": (),
    "measure": (list[Any], list[Any]),
    "measured": (str, str),
}
"""What it says besides, or instead."""

_MOST_TEXT, _MOST_NAME = 1 << 14, 200
"""Characters that are shown of a text or a name."""

_WARNINGS: Mapping[str, type[Warning]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Warning)
}


def _refuse_places(prepared: PreparedConversion, variants: Path) -> None:
    """Refuse what would have this process write or remove elsewhere; the other one has ended.

    Raises:
        CrashedError: there is such a thing.
    """
    names = [one.name for one in prepared.written]
    if odd := [name for name in names if Path(name).name != name or name == ".."]:
        raise CrashedError("converter", "name its files", f"no name of a folder: {odd[0]!r}")
    _refuse_links(variants)


def _refuse_links(written: Path) -> None:
    for folder, folders, files in os.walk(written):
        if links := [n for n in (*folders, *files) if Path(folder, n).is_symlink()]:
            raise CrashedError("converter", "write its files", f"{links[0]} is a link")


class _Asked:
    """One thing that a process of its own does.

    Args:
        message: the request, the name of what is to be done, its arguments, and the folders that
            it may write into.
        given: what it gives for that.
        progress: hears of stages.
        metric: what answers ``_MeasuredThere``.
        trusted: nothing of the files is out of bounds.
    """

    def __init__(
        self,
        message: tuple[Any, ...],
        given: Any,
        progress: Any = None,
        metric: Metric | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        self._message, self._progress, self._metric = message, progress, metric
        self._trusted = trusted
        self._stage, self._until, self._what = _START, math.inf, ""
        self._given, self._listed = given, Listed(given, folders=message[3])

    def answer(self, files: Sequence[Path], spare: int) -> Any:
        """Start the process and wait for what it gives, with bounds for its look at the files."""
        process = child.Child(_MODULE)
        spare_s = bounds.SECONDS
        if any(file.suffix == ".pt2" for file in files):
            spare, spare_s = spare + _TORCH_SPARE, _TORCH_S
        if self._trusted:
            spare, spare_s = sys.maxsize, math.inf
        works = self._message[1] in _WORKS
        watch = bounds.BoundedLook(process.pid, files, spare, spare_s, works=works)
        try:
            with watch:
                process.send(self._message)
                return self._waited(process, watch)
        except TimeoutError as e:
            text = f"the model does not end: {self._what}; --time-limit gives it longer"
            raise VerifyError(text) from e
        except child.ChildEndedError as e:
            if watch.over:
                raise SourceError(
                    f"{files[0]}: to {self._stage} takes more than {watch.over}, which its size "
                    "does not explain; a file that you made yourself is read without bounds with "
                    "--trust-source (trust_source=True)"
                ) from e
            raise CrashedError("converter", self._stage, e.how, self._left()) from e
        finally:
            process.kill()

    def _left(self) -> str:
        """Say what an end half-way leaves behind."""
        request, _, _, writable = self._message
        if not writable:
            return ""
        return "nothing was written" + (
            "" if request is None or request.keep is None else f" but the stages in {request.keep}"
        )

    def _waited(self, process: child.Child, watch: bounds.BoundedLook) -> Any:
        while True:
            left = None if self._until == math.inf else max(0.0, self._until - time.monotonic())
            kind, *content = _heard(process.receive(left, self._listed), self._given)
            if kind == "done":
                return content[0]
            if kind == "failed":
                child.raise_answered(*content)
            if kind == "limit":
                seconds, self._what = content[0], _shown(content[1])
                self._until = math.inf if seconds is None else time.monotonic() + seconds
            elif kind == "stage":
                what, share = _shown(content[0]), _share(content[1])
                self._stage = uncounted(what)
                if self._progress is not None:
                    self._progress(what, share)
            elif kind == "log":
                _log(*content)
            elif kind == "warning":
                _warn(*content)
            elif kind == "belongs":
                watch.grow(*content)
            elif kind == "looked":
                watch.looked()
            elif kind == "measured":
                measurements.keep(*content)
            elif kind == "measure" and self._metric is not None:
                process.send(self._metric(*content))


def _heard(message: Any, given: Any) -> tuple[Any, ...]:
    """Return what was said, if it is something that is said.

    Raises:
        child.ChildEndedError: it is not; whoever says such things is asked no more.
    """
    if isinstance(message, tuple) and message and isinstance(message[0], str):
        kind, *content = message
        kinds = (given,) if kind == "done" else _TOLD.get(kind, (None,))
        if len(kinds) == len(content) and all(map(fits, content, kinds)):
            return message
    raise child.ChildEndedError("its answer is none")


def _shown(text: str) -> str:
    return visible(text[:_MOST_TEXT])


def _share(given: float | None) -> float | None:
    return given if given is not None and 0.0 <= given <= 1.0 else None


def _log(name: str, level: int, line: str) -> None:
    """Log what was logged there; no logger is made of a name that is new here."""
    name, known = _shown(name[:_MOST_NAME]), logging.root.manager.loggerDict
    near = name
    while near and not isinstance(known.get(near), logging.Logger):
        near = near.rpartition(".")[0]
    logger, level = logging.getLogger(near), 10 * min(max(level // 10, 1), 5)
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(name, level, "", 0, "%s", (_shown(line),), None))


def _warn(text: str, name: str, file: str, number: int) -> None:
    """Warn of what was warned of there."""
    # Whoever shows a warning reads the line that it names, if the name is one of a file.
    place = f"<converter: {_shown(Path(file[-_MOST_NAME:]).name)}>"
    line = number if 0 <= number < 1 << 31 else 0
    warnings.warn_explicit(_shown(text), _WARNINGS.get(name, UserWarning), place, line)


class _Line:
    """Tells the other process what happens here, from any thread."""

    def __init__(self, connection: socket) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def tell(self, *message: Any) -> None:
        with self._lock:
            child.answer(self._connection, message)

    def ask(self, *message: Any) -> Any:
        with self._lock:
            child.answer(self._connection, message)
            return child.read(self._connection)

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
        self.tell("warning", str(message), plain.__name__, filename, lineno)


class _MeasuredThere:
    """The user's own measure, whose code stays in the user's process."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, outputs: Sequence[Outputs], labels: Sequence[Any]) -> float:
        to = channel.line()
        if to is None:
            raise VerifyError("internal error: nobody is there to measure")
        return float(to.ask("measure", list(outputs), list(labels)))


class _Told(logging.Handler):
    """Sends what is logged."""

    def __init__(self, line: _Line) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.tell("log", record.name, record.levelno, record.getMessage())


def main() -> None:
    """Be the process: do one thing, tell how it went."""
    gc.freeze()
    look_seldom()
    connection, _ = child.connect()
    line = _Line(connection)
    logging.getLogger().addHandler(_Told(line))
    channel.announce(line)
    # The other process's filters decide what is shown.
    warnings.simplefilter("default")
    warnings.showwarning = line.warn
    request, method, arguments, writable = child.read(connection)
    import_onnx_ir()
    leave_out_gpus_of_tvm()
    # A second layer around readers and operators that a stranger's file chooses. What is to be
    # written may need compilers and engines in processes of their own.
    confine([Path(tempfile.gettempdir()), *writable], programs=bool(writable))
    if not writable:
        isolation.make_expendable()
    try:
        if request is None:
            line.tell("stage", "read the model", None)
            module, name, _ = _FUNCTIONS[method]
            result = getattr(late(module), name)(*arguments)
        else:
            front = Front(replace(request, progress=partial(line.tell, "stage")))
            result = getattr(front, method)(*arguments)
    except Exception as error:
        line.tell("failed", *child.portable(error))
    else:
        line.tell("done", result)


if __name__ == "__main__":
    main()
