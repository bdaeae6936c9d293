"""Checks of what a backend says of itself and of how it opens files."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from edgeinfer.backends.base import (
    Artifact,
    Backend,
    Capabilities,
    Device,
    DeviceKind,
    LoadOptions,
    Probe,
)
from edgeinfer.backends.testing.cases import Case, Values, graph, normal
from edgeinfer.backends.testing.expect import (
    CheckError,
    expected_error,
    require,
    require_outputs,
    require_runs,
)
from edgeinfer.backends.testing.models import CASES
from edgeinfer.backends.testing.subject import Subject
from edgeinfer.errors import LoadError, NotAvailableError
from edgeinfer.types import TensorSpec

_LOADS = 50
_SPARE_THREADS = 8
_BUSY_SECONDS = 0.3
_PARALLEL_LIMIT = 1.4


def check_probe_is_consistent(subject: Subject, _: Path) -> None:
    """A probe never raises, says the same twice, and gives either devices or a reason."""
    try:
        first, second = subject.backend.probe(), subject.backend.probe()
    except Exception as error:
        raise CheckError(f"probe() raised {type(error).__name__}: {error}") from error
    require(isinstance(first, Probe), f"probe() gave a {type(first).__name__}")
    require(first == second, f"two probes differ: {first} and {second}")
    require(first.backend == subject.backend.name, f"the probe is named {first.backend!r}")
    if not first.available:
        require(bool(first.reason), "no device and no reason")
        return
    require(not first.reason, f"available and yet a reason: {first.reason}")
    require(bool(first.version), "available and yet no version")
    require(all(isinstance(d, Device) for d in first.devices), f"devices are {first.devices}")
    kinds = {d.kind for d in first.devices}
    require(kinds <= set(get_args(DeviceKind)), f"unknown kinds of device: {sorted(kinds)}")
    devices = [(d.kind, d.index) for d in first.devices]
    require(len(devices) == len(set(devices)), f"a device is listed twice: {first.devices}")


def check_name_and_capabilities(subject: Subject, _: Path) -> None:
    """The backend is a ``Backend`` with a name and says which formats and types it takes."""
    backend = subject.backend
    require(isinstance(backend, Backend), f"{backend!r} lacks a method of Backend")
    require(bool(backend.name) and backend.name == backend.name.strip(), "the name is empty")
    able = backend.capabilities()
    require(isinstance(able, Capabilities), f"capabilities() gave a {type(able).__name__}")
    require(bool(able.formats), "it opens no format")
    require(bool(able.dtypes), "it takes no element type")
    known = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    known |= {"float16", "float32", "float64", "bfloat16", "complex64", "complex128"}
    unknown = able.dtypes - known - {"bool", "string"}
    require(not unknown, f"element types that edgeinfer does not know: {sorted(unknown)}")


def check_missing_file_is_refused(subject: Subject, folder: Path) -> None:
    """A path without a file raises LoadError."""
    artifact = subject.artifact(CASES["add"], folder)
    with expected_error(LoadError, "load of a missing file"):
        subject.backend.load(replace(artifact, path=folder / "missing.bin"), LoadOptions())
    nothing = folder / "nothing"
    nothing.mkdir()
    with expected_error(LoadError, "load of an empty folder"):
        subject.backend.load(replace(artifact, path=nothing), LoadOptions())


def check_damaged_files_are_refused(subject: Subject, folder: Path) -> None:
    """Truncated, empty and foreign files raise LoadError and leave stderr alone."""
    artifact = subject.artifact(CASES["matmul"], folder)
    if not artifact.path.is_file():
        return
    whole = artifact.path.read_bytes()
    damages = {
        "a truncated file": whole[: len(whole) // 2],
        "an empty file": b"",
        "a text file": b"This is not a model.\n" * 20,
        "zeros": bytes(4096),
    }
    for what, content in damages.items():
        artifact.path.write_bytes(content)
        with silence_required(f"load of {what}"), expected_error(LoadError, f"load of {what}"):
            subject.backend.load(artifact, LoadOptions())


def check_other_formats_are_refused(subject: Subject, folder: Path) -> None:
    """A format that the backend does not list raises LoadError, whatever the file holds."""
    artifact = subject.artifact(CASES["add"], folder)
    formats = subject.backend.capabilities().formats
    require(artifact.format in formats, f"{artifact.format!r} is not in {sorted(formats)}")
    with expected_error(LoadError, "load of a format it does not list"):
        subject.backend.load(replace(artifact, format="no-such-format"), LoadOptions())


def check_unknown_arithmetic_is_refused(subject: Subject, folder: Path) -> None:
    """An artifact that is to be computed in unknown floats raises LoadError, whatever it holds."""
    artifact = subject.artifact(CASES["add"], folder)
    with expected_error(LoadError, "load to be computed in floats that nobody knows"):
        subject.backend.load(replace(artifact, computed_in="fp12"), LoadOptions())


def check_other_element_types_are_refused(subject: Subject, folder: Path) -> None:
    """A model with an element type that the backend does not list raises LoadError."""
    dtypes = subject.backend.capabilities().dtypes
    for case in CASES.values():
        if case.dtypes <= dtypes:
            continue
        try:
            artifact = subject.artifact(case, folder)
        except Exception:
            continue
        with expected_error(LoadError, f"load of {sorted(case.dtypes)}"):
            subject.backend.load(artifact, LoadOptions())


def check_absent_devices_are_refused(subject: Subject, folder: Path) -> None:
    """A kind of device that is not here raises NotAvailableError; another is never taken."""
    here = {device.kind for device in subject.backend.probe().devices}
    artifact = subject.artifact(CASES["add"], folder)
    for kind in get_args(DeviceKind):
        if kind not in here:
            with expected_error(NotAvailableError, f"load on an absent {kind}"):
                subject.backend.load(artifact, LoadOptions(device=kind))


def check_wrong_descriptions_are_refused(subject: Subject, folder: Path) -> None:
    """An artifact that lacks a described tensor, or has it of another type, raises LoadError."""
    artifact = subject.artifact(CASES["add"], folder)
    a, b = artifact.inputs
    (y,) = artifact.outputs
    descriptions: dict[str, tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]] = {
        "an input of another name": ((a, replace(b, name="other")), (y,)),
        "one input too few": ((a,), (y,)),
        "an input of another type": ((a, replace(b, dtype="int64")), (y,)),
        "an output of another name": ((a, b), (replace(y, name="other"),)),
        "an output of another type": ((a, b), (replace(y, dtype="float16"),)),
    }
    for what, (inputs, outputs) in descriptions.items():
        described = Artifact(artifact.format, artifact.path, inputs, outputs)
        with expected_error(LoadError, f"load described with {what}"):
            subject.backend.load(described, LoadOptions())


def check_description_is_kept(subject: Subject, folder: Path) -> None:
    """``inputs`` and ``outputs`` of the executable are those of the artifact, in its order."""
    artifact = subject.artifact(CASES["many_tensors"], folder)
    executable = subject.backend.load(artifact, LoadOptions())
    require(executable.inputs == artifact.inputs, f"inputs are {executable.inputs}")
    require(executable.outputs == artifact.outputs, f"outputs are {executable.outputs}")
    swapped = replace(artifact, inputs=artifact.inputs[::-1], outputs=artifact.outputs[::-1])
    executable = subject.backend.load(swapped, LoadOptions())
    ((feeds, expected),) = CASES["many_tensors"].runs()
    backwards = dict(reversed(expected.items()))
    require_outputs(executable.run(feeds), backwards, "description in reverse order")


def check_thread_options(subject: Subject, folder: Path) -> None:
    """Any number of threads gives the right numbers; fewer than one raises LoadError."""
    case = CASES["matmul"]
    for threads in (1, 2, 3):
        require_runs(subject.load(case, folder, threads=threads), case)
    for threads in (0, -1):
        with expected_error(LoadError, f"load with {threads} threads"):
            subject.load(case, folder, threads=threads)


def check_one_thread_is_one(subject: Subject, folder: Path) -> None:
    """With ``threads=1`` one thread does the work, and none spins next to it."""

    def build() -> tuple[Any, list[tuple[Values, Values]]]:
        model = graph("(float[512,512] x) => (float[512,512] y) { h = MatMul(x, x) y = Relu(h) }")
        return model, []

    heavy = Case("heavy_matmul", frozenset({"float32"}), build)
    executable = subject.load(heavy, folder, threads=1)
    feeds = {"x": normal(512, 512)}
    executable.run(feeds)
    before, end = _cpu_by_thread(), time.perf_counter() + _BUSY_SECONDS
    while time.perf_counter() < end:
        executable.run(feeds)
    used = [now - before.get(thread, 0) for thread, now in _cpu_by_thread().items()]
    # Shares, not CPUs per second: they do not depend on what else the machine is doing.
    parallel = sum(used) / max(1, *used)
    require(parallel < _PARALLEL_LIMIT, f"one thread requested, {parallel:.1f} threads busy")


def _cpu_by_thread() -> dict[str, int]:
    """Return each thread's CPU time so far in ns; empty where the system does not tell."""
    times: dict[str, int] = {}
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            times[task.name] = int((task / "schedstat").read_text().split()[0])
    return times


def check_loads_leave_nothing_behind(subject: Subject, folder: Path) -> None:
    """Loading and closing many times leaves no threads and no open files."""
    case = CASES["add"]
    artifact = subject.artifact(case, folder)
    before = None
    for index in range(_LOADS):
        executable = subject.backend.load(artifact, LoadOptions(threads=2))
        executable.run(case.runs()[0][0])
        executable.close()
        if index == 1:
            before = _threads_and_files()
    threads, files = np.subtract(_threads_and_files(), before or (0, 0))
    require(threads < _SPARE_THREADS, f"{_LOADS} loads and closes left {threads} threads")
    require(files < _SPARE_THREADS, f"{_LOADS} loads and closes left {files} open files")


def _threads_and_files() -> tuple[int, int]:
    """Count this process's threads and open files; zeros where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0, 0
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


@contextmanager
def silence_required(action: str) -> Iterator[None]:
    """Fail the check if the block writes to the process's stdout or stderr."""
    with tempfile.TemporaryFile() as sink:
        saved = [os.dup(fd) for fd in (1, 2)]
        for fd in (1, 2):
            os.dup2(sink.fileno(), fd)
        try:
            yield
        finally:
            for fd, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, fd)
                os.close(copy)
        sink.seek(0)
        text = sink.read().decode(errors="replace").strip()
    require(not text, f"{action} prints: {text[:200]}")
