"""An engine that fails in every way there is: what it does is what the artifact's file says.

Tests copy this file to a folder of its own and register it there as the plugin ``faulty``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from edgeinfer.backends.base import Artifact, Capabilities, Device, LoadOptions, Probe
from edgeinfer.errors import LoadError, RunError


def _abort() -> NoReturn:
    sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\n")
    sys.stderr.flush()
    os.abort()


def _refuse() -> NoReturn:
    raise RunError("faulty: a shape that does not fit")


def _run_out() -> NoReturn:
    raise MemoryError


FAULTS: dict[str, Any] = {
    "abort": _abort,
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(7),
    "hang": lambda: time.sleep(3600),
    "memory": _run_out,
    "refuse": _refuse,
}


class FaultyBackend:
    name: ClassVar[str] = "faulty"

    def probe(self) -> Probe:
        if os.environ.get("FAULTY_PROBE"):
            FAULTS[os.environ["FAULTY_PROBE"]]()
        return Probe("faulty", "1.0", (Device("cpu", "test"),))

    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset({"onnx"}), frozenset({"float32"}))

    def load(self, artifact: Artifact, options: LoadOptions) -> FaultyExecutable:
        when, _, fault = artifact.path.read_text().partition(":")
        if when == "load":
            FAULTS[fault]()
        if when == "refuse":
            raise LoadError("faulty: not today")
        return FaultyExecutable(artifact, when, fault)


class FaultyExecutable:
    """Echoes its inputs, doubled; ``first:<fault>`` fails once for each file, ``run`` always."""

    def __init__(self, artifact: Artifact, when: str, fault: str) -> None:
        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        self._when, self._fault, self._mark = when, fault, artifact.path.with_suffix(".failed")

    def run(self, feeds: Any) -> dict[str, Any]:
        if self._when == "run" or (self._when == "first" and not self._mark.exists()):
            Path(self._mark).touch()
            FAULTS[self._fault]()
        return {
            f"{name}_out": array if array.dtype.hasobject else np.asarray(array * 2, array.dtype)
            for name, array in feeds.items()
        }

    def close(self) -> None:
        pass

    def bind(self, inputs: Any, outputs: Any) -> Any:
        def call() -> None:
            for name, result in self.run(inputs).items():
                outputs[name][...] = result

        return call


class SteadyBackend(FaultyBackend):
    """Does the same and never fails."""

    name: ClassVar[str] = "steady"

    def probe(self) -> Probe:
        return Probe("steady", "1.0", (Device("cpu", "test"),))

    def load(self, artifact: Artifact, options: LoadOptions) -> FaultyExecutable:
        return FaultyExecutable(artifact, "", "")


class WrongBackend(SteadyBackend):
    """Gives wrong numbers."""

    name: ClassVar[str] = "wrong"

    def load(self, artifact: Artifact, options: LoadOptions) -> FaultyExecutable:
        return WrongExecutable(artifact, "", "")


class WrongExecutable(FaultyExecutable):
    def run(self, feeds: Any) -> dict[str, Any]:
        return {name: value + 1 for name, value in super().run(feeds).items()}
