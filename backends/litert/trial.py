"""Run a ``.tflite`` file nobody has run before in a process of its own.

LiteRT 2.3.0 ends the process on some malformed files, e.g. int8 tensors without a scale. A child
loads the file and runs it once on zeros.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import field
from typing import IO, Any

import numpy as np

from edgeinfer import forks
from edgeinfer.backends.engines import import_litert, know_bfloat16
from edgeinfer.backends.process.trial import Trials, answer
from edgeinfer.records import dataclass

TRIALS = Trials("litert", "edgeinfer.backends.litert.trial")

_quiet = forks.lock()
_OWN_LINES = re.compile(rb"^(INFO|VERBOSE|WARNING|ERROR): .*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class InterpreterOpening:
    """How an interpreter is made.

    Attributes:
        path: the file.
        threads: Threads of the interpreter.
        xnnpack: apply the XNNPACK delegate, as LiteRT does by default.
        delegate: library of another delegate; empty for none.
        options: Options of that delegate.
    """

    path: str
    threads: int
    xnnpack: bool
    delegate: str = ""
    options: dict[str, str] = field(default_factory=dict)


def open_interpreter(opening: InterpreterOpening) -> tuple[Any, bool]:
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
        if not _are_known(interpreter):
            know_bfloat16()
        try:
            interpreter.allocate_tensors()
        except RuntimeError as error:
            if "custom op" in str(error) or not _has_open_sizes(interpreter):
                raise
            return interpreter, False
    return interpreter, True


def _are_known(interpreter: Any) -> bool:
    """Whether NumPy knows the types of what goes in and comes out."""
    try:
        interpreter.get_input_details()
        interpreter.get_output_details()
    except ValueError:
        # "Invalid data-type for array"
        return False
    return True


def _has_open_sizes(interpreter: Any) -> bool:
    inputs = interpreter.get_input_details()
    return any(size < 0 for detail in inputs for size in detail.get("shape_signature", ()))


def check_runs(opening: InterpreterOpening, version: str, digest: str = "") -> None:
    """Try a file unless these bytes were tried before, in the same way by the same engine.

    Raises:
        LoadError: the trial ended the process, or no process could be started.
    """
    ways = f"{opening.xnnpack}-{opening.delegate}-{sorted(opening.options.items())}"
    TRIALS.check(opening.path, f"{version}-{ways}", opening, digest)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep LiteRT's log lines off stderr; what others write meanwhile still arrives.

    There is no switch for them: "INFO: Created TensorFlow Lite XNNPACK delegate for CPU."
    """
    with _quiet, _nameless_file() as sink:
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


def _nameless_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("litert"), "w+b")
    import tempfile

    return tempfile.TemporaryFile()


def _attempt(opening: InterpreterOpening) -> None:
    """Load a file and run it once on zeros."""
    interpreter, ready = open_interpreter(opening)
    if ready:
        for detail in interpreter.get_input_details():
            zeros = np.zeros(detail["shape"], detail["dtype"])
            interpreter.set_tensor(detail["index"], zeros)
        interpreter.invoke()


if __name__ == "__main__":
    answer(_attempt)
