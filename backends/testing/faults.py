"""Engines that fail in every way there is, for tests of what uses engines.

What ``faulty`` does is what the artifact's file says: ``<when>:<fault>``. *When* is ``load``,
``run``, ``first`` (once for each file, whatever the process), ``after3`` (every run but the first
three) or ``close``; *fault* is a key of ``FAULTS`` or ``ANSWERS``. ``steady`` does the same work
and never fails, ``wrong`` adds one to every number::

    from edgeinfer.backends.testing import faults

    faults.install(tmp_path)                        # a folder that is on sys.path
    (tmp_path / "m.onnx").write_text("after3:abort")

Environment variables say what the probe finds, in processes of its own too: ``FAULTY_PROBE`` a
fault, ``FAULTY_KIND`` the kind of device, ``FAULTY_GONE`` a file that exists once the device is
gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, cast

import numpy as np

from edgeinfer.backends.base import Artifact, Capabilities, Device, DeviceKind, LoadOptions, Probe
from edgeinfer.backends.checks import check_device
from edgeinfer.errors import LoadError, RunError
from edgeinfer.types import Array, Feeds

LEAK_BYTES = 8 << 20
"""What a run of a leaking engine never gives back."""


def install(folder: Path) -> None:
    """Register the engines as plugins of a folder that is on ``sys.path``."""
    info = folder / "edgeinfer_faults-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: edgeinfer-faults\nVersion: 1.0\n")
    lines = [f"{kind.name} = {__name__}:{kind.__name__}" for kind in ENGINES]
    (info / "entry_points.txt").write_text("\n".join(("[edgeinfer.backends]", *lines)) + "\n")


def _abort() -> NoReturn:
    sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\n")
    sys.stderr.flush()
    os.abort()


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _raise(kind: type[Exception], *text: str) -> Callable[[], NoReturn]:
    def fault() -> NoReturn:
        raise kind(*text)

    return fault


def _leak() -> None:
    # Written, or the system would not count it.
    _kept.append(np.ones(LEAK_BYTES, np.uint8))


_kept: list[Array] = []

FAULTS: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "abort": _abort,
        "segv": _signal(signal.SIGSEGV),
        "kill": _signal(getattr(signal, "SIGKILL", signal.SIGTERM)),
        "exit": lambda: os._exit(7),
        "hang": lambda: time.sleep(3600),
        "memory": _raise(MemoryError),
        "refuse": _raise(RunError, "faulty: a shape that does not fit"),
        "lost": _raise(RunError, "faulty: the device was lost"),
        "stray": _raise(RuntimeError, "an error of the\nengine's own kind"),
        "leak": _leak,
    }
)
"""What happens instead of, or before, an answer."""

ANSWERS: Mapping[str, Callable[[dict[str, Array]], Any]] = MappingProxyType(
    {
        "numbers": lambda found: {name: array + 1 for name, array in found.items()},
        "nan": lambda found: {name: np.full_like(array, np.nan) for name, array in found.items()},
        "shape": lambda found: {name: array[:-1] for name, array in found.items()},
        "rank": lambda found: {name: array[None] for name, array in found.items()},
        "dtype": lambda found: {name: array.astype("float64") for name, array in found.items()},
        "missing": lambda found: {},
        "other": lambda found: {f"{name}!": array for name, array in found.items()},
        "list": lambda found: {name: array.tolist() for name, array in found.items()},
        "nothing": lambda found: None,
    }
)
"""What is made of the right answer."""


class FaultyBackend:
    """Fails as the artifact's file says."""

    name: ClassVar[str] = "faulty"

    def probe(self) -> Probe:
        """Find one device, unless the environment says otherwise."""
        if os.environ.get("FAULTY_PROBE"):
            FAULTS[os.environ["FAULTY_PROBE"]]()
        if os.path.exists(os.environ.get("FAULTY_GONE", "")):
            return Probe(self.name, "1.0", (), "its device is gone; plug it in")
        kind = cast("DeviceKind", os.environ.get("FAULTY_KIND", "cpu"))
        return Probe(self.name, "1.0", (Device(kind, "test"),))

    def capabilities(self) -> Capabilities:
        """Say what it takes."""
        return Capabilities(frozenset({"onnx"}), frozenset({"float32"}))

    def load(self, artifact: Artifact, options: LoadOptions) -> FaultyExecutable:
        """Open a file, and do what it says of loading."""
        check_device(self.probe(), options.device)
        when, _, fault = artifact.path.read_text().partition(":")
        if when == "refuse":
            raise LoadError("faulty: not today")
        if when == "load":
            FAULTS[fault]()
        return FaultyExecutable(artifact, when, fault)


class FaultyExecutable:
    """Gives its inputs, doubled, as outputs named ``<input>_out``."""

    def __init__(self, artifact: Artifact, when: str, fault: str) -> None:
        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        self._when, self._fault, self._mark = when, fault, artifact.path.with_suffix(".failed")
        self._runs = 0

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once."""
        due = self._is_due()
        if due and self._fault in FAULTS:
            FAULTS[self._fault]()
        if os.path.exists(os.environ.get("FAULTY_GONE", "")):
            raise RunError("faulty: the device was lost")
        found = {
            f"{name}_out": array if array.dtype.hasobject else np.asarray(array * 2, array.dtype)
            for name, array in feeds.items()
        }
        return ANSWERS[self._fault](found) if due and self._fault in ANSWERS else found

    def bind(self, inputs: Feeds, outputs: Feeds) -> Any:
        """Fix buffers."""

        def call() -> None:
            for name, result in self.run(inputs).items():
                outputs[name][...] = result

        return call

    def close(self) -> None:
        """Close, and do what the file says of closing."""
        if self._when == "close":
            FAULTS[self._fault]()

    def _is_due(self) -> bool:
        self._runs += 1
        if self._when == "first":
            first = not self._mark.exists()
            self._mark.touch()
            return first
        if self._when.startswith("after"):
            return self._runs > int(self._when.removeprefix("after"))
        return self._when == "run"


class SteadyBackend(FaultyBackend):
    """Does the same and never fails."""

    name: ClassVar[str] = "steady"

    def probe(self) -> Probe:
        """Find one processor, always."""
        return Probe(self.name, "1.0", (Device("cpu", "test"),))

    def load(self, artifact: Artifact, options: LoadOptions) -> FaultyExecutable:
        """Open a file, whatever it says."""
        return SteadyExecutable(artifact, "", "")


class SteadyExecutable(FaultyExecutable):
    """Gives the right answer whatever the environment says."""

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once."""
        return {f"{name}_out": array * np.float32(2) for name, array in feeds.items()}


class WrongBackend(SteadyBackend):
    """Gives wrong numbers."""

    name: ClassVar[str] = "wrong"

    def load(self, artifact: Artifact, options: LoadOptions) -> FaultyExecutable:
        """Open a file."""
        return WrongExecutable(artifact, "", "")


class WrongExecutable(SteadyExecutable):
    """Adds one to every number."""

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once."""
        return {name: value + 1 for name, value in super().run(feeds).items()}


ENGINES = (FaultyBackend, SteadyBackend, WrongBackend)
