"""The backend for Macs, tested without one: a thin fake of Core ML answers with the evaluator.

coremltools' own code runs; only its native module and the system's name are replaced. That Core ML
itself accepts what is handed over is not shown here.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("coremltools")

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreml import backend as coreml
from edgeinfer.backends.coreml.backend import CoreMLBackend
from edgeinfer.backends.coreml_reference.package import Package, open_package
from edgeinfer.backends.coreml_reference.stand_in import ModelProxy, answering
from edgeinfer.backends.engines import import_coremltools
from edgeinfer.backends.testing import Subject, checks
from edgeinfer.errors import ClosedError, LoadError, NotAvailableError, RunError
from tests.backends.coreml_reference import mil
from tests.backends.coreml_reference.test_backend import KNOWN, make_artifact


class MLCPUComputeDevice: ...


class MLGPUComputeDevice: ...


class MLNeuralEngineComputeDevice: ...


class FakeCoreML(ModelProxy):
    """Core ML as coremltools sees it: compiled folders, devices, a plan."""

    compiled: ClassVar[list[str]] = []
    loaded: ClassVar[list[tuple[str, str]]] = []
    fault: ClassVar[str] = ""

    def __init__(self, path: str, units: str, function: str = "", *rest: Any) -> None:
        super().__init__(path, units, function, *rest)
        self.loaded.append((units, function))

    def open(self, path: Path) -> Package:
        return open_package(path / "source.mlpackage")

    def predict(self, data: Any, state: Any = None) -> dict[str, Any]:
        if self.fault:
            raise RuntimeError(self.fault)
        return super().predict(data, state)

    @classmethod
    def compileModel(cls, source: str) -> str:  # noqa: N802
        cls.compiled.append(source)
        target = Path(tempfile.mkdtemp(), "model.mlmodelc")
        shutil.copytree(source, target / "source.mlpackage")
        return str(target)

    @staticmethod
    def get_all_compute_devices() -> list[Any]:
        return [MLCPUComputeDevice(), MLGPUComputeDevice(), MLNeuralEngineComputeDevice()]

    @staticmethod
    def get_compute_plan(path: str, units: str) -> Any:
        names = ["mul", "add", "gather"]
        block = SimpleNamespace(operations=[SimpleNamespace(operator_name=n) for n in names])
        program = SimpleNamespace(functions={"main": SimpleNamespace(block=block)})

        def usage(operation: Any) -> Any:
            slow = operation.operator_name == "gather" or units == "CPU_ONLY"
            device = MLCPUComputeDevice() if slow else MLNeuralEngineComputeDevice()
            return SimpleNamespace(preferred_compute_device=device)

        return SimpleNamespace(
            model_structure=SimpleNamespace(program=program),
            get_compute_device_usage_for_mlprogram_operation=usage,
        )


@pytest.fixture(autouse=True)
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import_coremltools()
    from coremltools.models import compute_device, compute_plan

    native: Any = ModuleType("coremltools.libcoremlpython")
    native._MLModelProxy = FakeCoreML
    monkeypatch.setattr(FakeCoreML, "compiled", [])
    monkeypatch.setattr(FakeCoreML, "loaded", [])
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(coreml, "_system", lambda: "15.3")
    monkeypatch.setitem(sys.modules, native.__name__, native)
    with ExitStack() as patches:
        patches.enter_context(answering(FakeCoreML))
        for module in (compute_device, compute_plan):
            patches.enter_context(mock.patch.object(module, "_MLModelProxy", FakeCoreML))
        yield


def known(name: str) -> Any:
    """Return a check's name with a strict xfail where it is known to fail.

    ``conformance`` asks the probe when the tests are collected, which is before the fake is there.
    """
    reason = KNOWN.get(name)
    marks = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [known(name) for name in checks()])
def test_conformance(name: str, tmp_path: Path) -> None:
    checks()[name](Subject(CoreMLBackend(), make_artifact, KNOWN), tmp_path)


def _half(mb: Any, x: Any) -> Any:
    return mb.mul(x=x, y=np.float32(0.5), name="y")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return mil.package(tmp_path / "m.mlpackage", _half, {"x": (2,)})


def opened(path: Path, device: Any = "cpu", **extra: str) -> Any:
    artifact = Artifact("mlprogram", path, (), ())
    return CoreMLBackend().load(artifact, LoadOptions(device=device, extra=extra))


def test_the_probe_lists_the_units_best_first() -> None:
    probe = CoreMLBackend().probe()
    assert [d.kind for d in probe.devices] == ["npu", "gpu", "cpu"]
    assert probe.version == f"{import_coremltools().__version__} on macOS 15.3"


def test_off_a_mac_the_probe_says_so(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coreml, "_system", lambda: None)
    probe = CoreMLBackend().probe()
    assert not probe.available
    assert "Core ML runs on macOS; the backend coreml-reference evaluates packages" in probe.reason
    with pytest.raises(NotAvailableError, match="Core ML runs on macOS"):
        opened(package)


@pytest.mark.parametrize(
    ("device", "extra", "units"),
    [
        ("cpu", {}, "CPU_ONLY"),
        ("gpu", {}, "CPU_AND_GPU"),
        ("npu", {}, "CPU_AND_NE"),
        ("npu", {"units": "all"}, "ALL"),
    ],
)
def test_a_device_is_a_set_of_compute_units(
    package: Path, device: str, extra: dict[str, str], units: str
) -> None:
    executable = opened(package, device, **extra)
    assert FakeCoreML.loaded == [(units, "")]
    assert executable.run({"x": np.array([1, 3], np.float32)})["y"].tolist() == [0.5, 1.5]


def test_a_package_is_compiled_once_and_again_when_it_changes(package: Path) -> None:
    opened(package)
    opened(package / "Manifest.json", "gpu")
    assert FakeCoreML.compiled == [str(package)]
    weights = next(package.rglob("*.mlmodel"))
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    spec.ParseFromString(weights.read_bytes())
    spec.description.metadata.author = "somebody else"
    weights.write_bytes(spec.SerializeToString())
    opened(package)
    assert len(FakeCoreML.compiled) == 2


def test_the_report_says_where_operations_run(package: Path) -> None:
    assert opened(package, "npu").notes == (
        "operations as Core ML plans them: 2 on the Neural Engine, 1 on the CPU (1 gather)",
    )
    assert opened(package).notes == ("operations as Core ML plans them: 3 on the CPU",)


def test_errors_of_core_ml_are_wrapped(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = opened(package)
    monkeypatch.setattr(FakeCoreML, "fault", "Unable to compute\n the prediction")
    with pytest.raises(RunError, match="Core ML failed: Unable to compute the prediction"):
        executable.run({"x": np.zeros(2, np.float32)})
    executable.close()
    with pytest.raises(ClosedError):
        executable.run({"x": np.zeros(2, np.float32)})


def test_what_core_ml_cannot_do_is_refused(package: Path) -> None:
    artifact = Artifact("mlprogram", package, (), ())
    for options, message in (
        (LoadOptions(optimize=False), "optimisation cannot be switched off"),
        (LoadOptions(threads=0), "threads must be 1 or more"),
        (LoadOptions(extra={"units": "gpu"}), "units is all, or left out"),
        (LoadOptions(extra={"speed": "max"}), r"options function and units, not \['speed'\]"),
    ):
        with pytest.raises(LoadError, match=message):
            CoreMLBackend().load(artifact, options)


def test_images_are_handed_over_as_pictures(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    import coremltools as ct

    def build(mb: Any, x: Any) -> Any:
        return mb.identity(x=x, name="y")

    program = mil.program(build, {"x": (1, 3, 2, 4)})
    colour = ct.colorlayout.BGR
    model = ct.convert(
        program,
        minimum_deployment_target=ct.target.iOS17,
        inputs=[ct.ImageType(name="x", shape=(1, 3, 2, 4), color_layout=colour)],
        skip_model_load=True,
    )
    path = tmp_path / "m.mlpackage"
    model.save(str(path))
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 2, 4)).astype(np.float32)
    assert np.array_equal(opened(path).run({"x": pixels})["y"], pixels)


def lowered(text: str, folder: Path, **asked: Any) -> Artifact:
    from edgeinfer import profiles
    from edgeinfer.convert.lower.coreml.target import CoreMLTarget
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.passes import input_specs, normalise, output_specs
    from tests.convert.lower.coreml.run import model_of

    model = model_of(text)
    options = LowerOptions(deployment="iOS18", **asked)
    made = CoreMLTarget().lower(normalise(model).model, profiles.load("macos"), options, folder)
    return Artifact("mlprogram", made.files[0], input_specs(model), output_specs(model))


FILTER = (
    "g (float[1,2] state, float[1,2] x) => (float[1,2] next, float[1,2] y) "
    "{next = Add(state, x) y = Neg(next)}"
)


def test_states_are_kept_or_given_and_taken(tmp_path: Path) -> None:
    artifact = lowered(FILTER, tmp_path, states={"state": "next"})
    executable = CoreMLBackend().load(artifact, LoadOptions())
    assert [s.name for s in executable.inputs] == ["state", "x"]
    assert executable.kept == ("state",)
    x = np.array([[1, 2]], np.float32)
    given = executable.run({"state": 3 * x, "x": x})
    assert list(given) == ["next", "y"]
    np.testing.assert_array_equal(given["next"], 4 * x)
    state = executable.make_state()
    for turn in (1, 2):
        np.testing.assert_array_equal(executable.run({"x": x}, state)["y"], -turn * x)
    assert executable.load_state(state, {"state": 5 * x}) == {}
    np.testing.assert_array_equal(executable.run({"x": x}, state)["y"], -6 * x)
    with pytest.raises(RunError, match="Core ML refuses a state"):
        executable.load_state(state, {"state": np.zeros((3, 3), np.float32)})


def test_scores_of_a_classifier_come_in_the_models_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[1,3] x) => (float[1,3] p) {p = Softmax(x)}"
    artifact = lowered(text, tmp_path, labels=("c", "a", "b"), classifier=True)
    executable = CoreMLBackend().load(artifact, LoadOptions())
    predict = FakeCoreML.predict

    def shuffled(self: FakeCoreML, data: Any, state: Any = None) -> dict[str, Any]:
        found = predict(self, data, state)
        return {k: dict(sorted(v.items())) if k.endswith("probs") else v for k, v in found.items()}

    monkeypatch.setattr(FakeCoreML, "predict", shuffled)
    x = np.log(np.array([[0.2, 0.7, 0.1]], np.float32))
    np.testing.assert_allclose(executable.run({"x": x})["p"], np.exp(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("processor", "told"),
    [("Apple M2 Max", True), ("Apple M4", False), ("Intel(R) Core(TM)", False)],
)
def test_the_report_says_what_the_chip_does_not_speed_up(
    processor: str, told: bool, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgeinfer.machine import apple_chips

    monkeypatch.setattr(apple_chips, "processor", lambda: processor)
    plan = FakeCoreML.get_compute_plan

    def quantized(path: str, units: str) -> Any:
        made = plan(path, units)
        operation = SimpleNamespace(operator_name="ios17.quantize")
        made.model_structure.program.functions["main"].block.operations.append(operation)
        return made

    monkeypatch.setattr(FakeCoreML, "get_compute_plan", staticmethod(quantized))
    notes = opened(package, "npu").notes
    assert [("Neural Engine of M2" in note) for note in notes[1:]] == [True] * told


def test_operations_off_the_unit_are_told_by_name(package: Path) -> None:
    placed = opened(package, "npu").placement()
    assert placed.unit == "the Neural Engine"
    assert (placed.ops, [e.kind for e in placed.elsewhere]) == (3, ["gather"])
    assert str(placed) == (
        "1 of 3 operators do not run on the Neural Engine, by Core ML's compute plan: "
        "gather on the CPU (Core ML prefers it to the Neural Engine)"
    )
    assert opened(package, "cpu").placement() is None
    assert opened(package, "npu", units="all").placement() is None
