"""The kit finds each fault of a backend that has exactly one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, Capabilities, LoadOptions, Probe
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend
from edgeinfer.backends.testing import Subject, checks, conformance, run_checks
from edgeinfer.backends.testing.expect import CheckError
from edgeinfer.errors import BackendError, ClosedError, LoadError, NotAvailableError, RunError
from edgeinfer.types import Array, Feeds


class Wrapped:
    """An executable that passes everything on; faulty ones override a method."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.inputs = inner.inputs
        self.outputs = inner.outputs

    def run(self, feeds: Feeds) -> dict[str, Array]:
        return dict(self.inner.run(feeds))

    def run_inner(self, feeds: Feeds) -> dict[str, Array]:
        return dict(self.inner.run(feeds))

    def bind(self, inputs: Feeds, outputs: Feeds) -> Any:
        return self.inner.bind(inputs, outputs)

    def close(self) -> None:
        self.inner.close()


class Faulty:
    """ONNX Runtime, with a fault."""

    name: ClassVar[str] = "onnxruntime"
    executable: type[Wrapped] = Wrapped

    def __init__(self) -> None:
        self.inner = OnnxRuntimeBackend()

    def probe(self) -> Probe:
        return self.inner.probe()

    def capabilities(self) -> Capabilities:
        return self.inner.capabilities()

    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        return self.executable(self.inner.load(artifact, options))


SPINNERS: list[threading.Thread] = []
ENOUGH = threading.Event()
FAULTS: dict[str, tuple[type[Faulty], set[str]]] = {}


def caught_by(*names: str) -> Callable[[type], type]:
    """Register a faulty backend, or a faulty executable, with the checks that must fail."""

    def register(kind: type) -> type:
        backend = kind
        if issubclass(kind, Wrapped):
            backend = type(kind.__name__, (Faulty,), {"executable": kind})
        FAULTS[kind.__name__] = (backend, set(names))
        return kind

    return register


@caught_by("check_probe_is_consistent")
class ProbeRaises(Faulty):
    def probe(self) -> Probe:
        raise OSError("libacme.so: cannot open shared object file")


@caught_by("check_probe_is_consistent")
class ProbeWithoutReason(Faulty):
    def probe(self) -> Probe:
        return Probe("onnxruntime", None)


@caught_by("check_probe_is_consistent")
class ProbeOfAnotherName(Faulty):
    def probe(self) -> Probe:
        return replace(self.inner.probe(), backend="acme")


@caught_by("check_name_and_capabilities")
class UnknownElementType(Faulty):
    def capabilities(self) -> Capabilities:
        able = self.inner.capabilities()
        return replace(able, dtypes=able.dtypes | {"float"})


@caught_by("check_unknown_arithmetic_is_refused")
class ComputesInWhatItKnows(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        return super().load(replace(artifact, computed_in=""), options)


@caught_by("check_other_element_types_are_refused")
class TakesMoreThanItSays(Faulty):
    def capabilities(self) -> Capabilities:
        able = self.inner.capabilities()
        return replace(able, dtypes=able.dtypes - {"string"})


@caught_by("check_missing_file_is_refused", "check_damaged_files_are_refused")
class EngineErrorFromLoad(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        try:
            return self.inner.load(artifact, options)
        except LoadError as error:
            if "describe" in str(error) or artifact.format != "onnx":
                raise
            if error.__cause__ is None and "exist" not in str(error):
                raise
            raise ValueError(str(error)) from error


@caught_by("check_missing_file_is_refused", "check_other_formats_are_refused")
class SeveralLines(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        if artifact.format != "onnx" or not artifact.path.exists():
            raise LoadError("not loaded\nTraceback: ...")
        return self.inner.load(artifact, options)


@caught_by("check_other_formats_are_refused")
class OpensAnything(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        return self.inner.load(replace(artifact, format="onnx"), options)


@caught_by("check_absent_devices_are_refused")
class FallsBackToCpu(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        try:
            return self.inner.load(artifact, options)
        except NotAvailableError:
            return self.inner.load(artifact, replace(options, device="cpu"))


@caught_by("check_wrong_descriptions_are_refused", "check_description_is_kept")
class IgnoresTheDescription(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        return self.inner.load(replace(artifact, inputs=(), outputs=()), options)


@caught_by("check_thread_options")
class TakesZeroThreads(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        return self.inner.load(artifact, replace(options, threads=max(1, options.threads or 1)))


@caught_by("check_one_thread_is_one")
class KeepsAnotherThreadBusy(Faulty):
    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        if "heavy" in str(artifact.path):
            ENOUGH.clear()
            SPINNERS.append(threading.Thread(target=_spin, daemon=True))
            SPINNERS[-1].start()
        return self.inner.load(artifact, options)


def _spin() -> None:
    # For as long as the check looks: on a busy machine it may look late.
    block = np.ones((400, 400), np.float32)
    while not ENOUGH.is_set():
        np.sin(block, out=block)  # holds no lock, so it runs next to the engine


@caught_by("check_loads_leave_nothing_behind")
class LeavesFilesOpen(Faulty):
    kept: ClassVar[list[Any]] = []

    def load(self, artifact: Artifact, options: LoadOptions) -> Any:
        executable = self.inner.load(artifact, options)
        self.kept.append(artifact.path.open("rb"))
        return executable


@caught_by("check_unfit_inputs_raise")
class PrintsOnStderr(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        try:
            return dict(self.inner.run(feeds))
        except RunError:
            if len(feeds) < 2:
                os.write(2, b"[E:acme] bad input\n")
            raise


@caught_by("check_numbers_of_matmul", "check_numbers_of_float64_values")
class HalfPrecision(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            rough = {k: _rough(v) for k, v in feeds.items()}
        return dict(self.inner.run(rough))


def _rough(array: Array) -> Array:
    if array.dtype == np.float64:
        return array.astype(np.float32).astype(np.float64)
    return array.astype(np.float16).astype(np.float32) if array.shape == (4, 256) else array


@caught_by("check_numbers_of_int64_beyond_32_bits")
class Int64In32Bits(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        wide = {k: v.dtype == np.int64 for k, v in feeds.items()}
        return self.run_inner(
            {k: v.astype(np.int32).astype(np.int64) if wide[k] else v for k, v in feeds.items()}
        )


@caught_by("check_numbers_of_many_tensors")
class AnotherOrder(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        return dict(sorted(self.inner.run(feeds).items()))


@caught_by("check_runs_repeat")
class LastBitsVary(Wrapped):
    count = 0

    def run(self, feeds: Feeds) -> dict[str, Array]:
        outputs = self.inner.run(feeds)
        self.count += 1
        if outputs.keys() == {"y"} and outputs["y"].shape == (4, 32):
            outputs["y"][0, 0] = np.nextafter(
                outputs["y"][0, 0], np.float32(np.inf if self.count % 2 else -np.inf)
            )
        return dict(outputs)


@caught_by("check_outputs_belong_to_the_caller")
class OneBufferForAllRuns(Wrapped):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.buffers: dict[tuple[str, tuple[int, ...]], Array] = {}

    def run(self, feeds: Feeds) -> dict[str, Array]:
        outputs = self.inner.run(feeds)
        if threading.current_thread() is not threading.main_thread():
            return dict(outputs)
        for name, array in outputs.items():
            buffer = self.buffers.setdefault((name, array.shape), array)
            buffer[...] = array
            outputs[name] = buffer
        return dict(outputs)


@caught_by("check_outputs_belong_to_the_caller")
class ReadOnlyOutputs(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        outputs = self.inner.run(feeds)
        for array in outputs.values():
            array.flags.writeable = False
        return dict(outputs)


@caught_by("check_inputs_are_left_alone")
class WorksInTheInput(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        outputs = self.inner.run(feeds)
        x = feeds.get("x")
        if x is not None and x.shape == (2, 3) and "y" in outputs:
            np.maximum(x, 0, out=x)
        return dict(outputs)


@caught_by("check_strided_inputs")
class IgnoresStrides(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        return self.run_inner({k: _as_stored(v) for k, v in feeds.items()})


def _as_stored(array: Array) -> Array:
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        return array.ravel(order="K").reshape(array.shape)
    return array


@caught_by("check_unfit_inputs_raise")
class FillsMissingInputs(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        fill = {
            s.name: np.zeros(s.shape, s.dtype)
            for s in self.inputs
            if s.is_static and s.shape is not None and s.dtype != "string"
        }
        known = {k: v for k, v in feeds.items() if k in {s.name for s in self.inputs}}
        return self.run_inner(fill | known if feeds else known)


@caught_by("check_failed_runs_raise")
class EngineErrorFromRun(Wrapped):
    def run(self, feeds: Feeds) -> dict[str, Array]:
        try:
            return dict(self.inner.run(feeds))
        except RunError as error:
            if feeds.keys() == {"a", "b"} and feeds["a"].shape == (3,):
                raise RuntimeError(str(error)) from error
            raise


@caught_by("check_close")
class RunsAfterClose(Wrapped):
    def close(self) -> None:
        return


@caught_by("check_close")
class SecondCloseRaises(Wrapped):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise ClosedError("closed already")
        self.closed = True
        self.inner.close()


@caught_by("check_concurrent_runs")
class SharesScratchBetweenThreads(Wrapped):
    scratch: Feeds

    def run(self, feeds: Feeds) -> dict[str, Array]:
        self.scratch = feeds
        if threading.current_thread() is not threading.main_thread() and "x" in feeds:
            time.sleep(1e-4 if feeds["x"].shape == (2, 3) else 0)
        return dict(self.inner.run(self.scratch))


@caught_by("check_bind_reads_and_writes_in_place")
class CopiesWhenBinding(Wrapped):
    def bind(self, inputs: Feeds, outputs: Feeds) -> Any:
        return self.inner.bind({k: v.copy() for k, v in inputs.items()}, outputs)


@caught_by("check_bounds_are_independent")
class OneBindingForAll(Wrapped):
    bound: Any = None

    def bind(self, inputs: Feeds, outputs: Feeds) -> Any:
        bound = self.inner.bind(inputs, outputs)
        if inputs.keys() == {"a", "b"} and not inputs["a"][0].any():
            self.bound = bound
        return self.bound if self.bound is not None and inputs["a"][0, 0] == 10 else bound


@caught_by("check_unfit_buffers_raise")
class CopiesUnfitBuffers(Wrapped):
    def bind(self, inputs: Feeds, outputs: Feeds) -> Any:
        return self.inner.bind(
            {k: np.ascontiguousarray(v).reshape(v.shape) for k, v in inputs.items()}, outputs
        )


@caught_by("check_bound_sizes_must_fit")
class WritesWhatFits(Wrapped):
    def bind(self, inputs: Feeds, outputs: Feeds) -> Any:
        bound = self.inner.bind(inputs, outputs)

        def call() -> None:
            try:
                bound()
            except RunError:
                return

        return call if outputs["y"].shape in ((1, 4), (3, 4)) else bound


CAUGHT = [(name, check) for name, (_, names) in FAULTS.items() for check in sorted(names)]


@pytest.mark.parametrize(("name", "check"), CAUGHT)
def test_fault_is_caught(name: str, check: str, tmp_path: Path) -> None:
    backend, _ = FAULTS[name]
    try:
        with pytest.raises((CheckError, BackendError)):
            checks()[check](Subject(backend()), tmp_path)
    finally:
        ENOUGH.set()
    for spinner in SPINNERS:
        spinner.join()


def test_almost_every_check_has_a_fault_that_it_catches() -> None:
    idle = set(checks()) - {check for _, check in CAUGHT}
    idle = {name for name in idle if not name.startswith("check_numbers_of_")}
    assert idle == {
        "check_bind_equals_run",
        "check_bound_buffers_stay_alive",
        "check_close_during_runs",
        "check_optimization_off",
    }


def test_sound_backend_passes() -> None:
    assert [o for o in run_checks(Faulty()) if not o.ok] == []


def test_known_failure_is_reported_as_known() -> None:
    backend, _ = FAULTS["Int64In32Bits"]
    known = {"check_numbers_of_int64_beyond_32_bits": "the engine has 32-bit integers"}
    outcomes = {o.check: o for o in run_checks(backend(), known_failures=known)}
    assert outcomes["check_numbers_of_int64_beyond_32_bits"].status == "known"
    assert all(o.ok for o in outcomes.values())


def test_known_failure_that_passes_needs_attention() -> None:
    outcomes = run_checks(Faulty(), known_failures={"check_close": "closes too late"})
    (fixed,) = [o for o in outcomes if not o.ok]
    assert (fixed.check, fixed.status, fixed.message) == ("check_close", "fixed", "closes too late")


@pytest.mark.parametrize(
    ("known", "message"),
    [({"check_nothing": "why"}, "name no check"), ({"check_close": " "}, "without a reason")],
)
def test_known_failures_are_checked(known: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_checks(Faulty(), known_failures=known)
    with pytest.raises(ValueError, match=message):
        conformance([Subject(Faulty(), known_failures=known)])


def test_without_engine_only_what_needs_none_is_checked() -> None:
    class Absent(Faulty):
        def probe(self) -> Probe:
            return Probe("onnxruntime", None, reason="onnxruntime not installed")

    outcomes = run_checks(Absent())
    assert {o.status for o in outcomes} == {"passed", "skipped"}
    assert sum(o.status == "passed" for o in outcomes) == 2


def test_known_failures_become_strict_xfails() -> None:
    subject = Subject(Faulty(), known_failures={"check_close": "late"})
    marks = {p.id: p.marks for p in conformance([subject]).args[1]}
    (mark,) = marks["onnxruntime-check_close"]
    assert mark.kwargs == {"strict": True, "reason": "late"}


def test_every_check_says_what_holds() -> None:
    assert len(checks()) >= 40
    assert all((check.__doc__ or "").strip() for check in checks().values())


def test_kit_leaves_its_folder_only(tmp_path: Path) -> None:
    subject = Subject(Faulty())
    for name, check in checks().items():
        folder = tmp_path / name
        folder.mkdir()
        check(subject, folder)
    assert {p.name for p in tmp_path.iterdir()} == set(checks())
