"""The backend ``coreml-reference``: the conformance kit on packages that our lowering writes."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("coremltools")

from edgeinfer import profiles
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.coreml_reference import backend
from edgeinfer.backends.coreml_reference.backend import LABEL, CoreMLReferenceBackend
from edgeinfer.backends.process import isolated, isolation
from edgeinfer.backends.testing import Subject, conformance
from edgeinfer.backends.testing.subject import describe
from edgeinfer.convert.lower.coreml.target import CoreMLTarget
from edgeinfer.convert.lower.target import Lowered, LowerOptions
from edgeinfer.convert.passes import normalise
from edgeinfer.errors import ClosedError, LoadError, NotAvailableError, RunError, UnsupportedError
from edgeinfer.profiles.schema import Profile
from edgeinfer.runtime import pairs
from tests.backends.coreml_reference import mil

KNOWN = {
    "check_numbers_of_empty_tensors": "Core ML has no axes of length 0",
}


def make_artifact(model: bytes, folder: Path) -> Artifact:
    graph = normalise(ir.from_proto(_parse(model))).model
    profile = profiles.load("ios")
    shutil.rmtree(folder / "model.mlpackage", ignore_errors=True)
    try:
        lowered = _lowered(graph, profile, folder)
    except UnsupportedError:
        # What cannot be written is a file that cannot be loaded.
        path = folder / "Manifest.json"
        path.write_bytes(b"")
        return Artifact("mlprogram", path, *describe(model))
    return Artifact("mlprogram", lowered.files[0], *describe(model))


def _lowered(graph: ir.Model, profile: Profile, folder: Path) -> Lowered:
    """As a user would: sums of integers of 64 bits need bounds."""
    try:
        return CoreMLTarget().lower(graph, profile, LowerOptions(), folder)
    except UnsupportedError as e:
        would_do = re.search(r"hold: (-?\d+) to (\d+) would do", str(e))
        if would_do is None:
            raise
    wide = (ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.UINT32)
    low, high = map(int, would_do.groups())
    bounds = {
        v.name or "": (low if v.dtype == ir.DataType.INT64 else 0, high)
        for v in graph.graph.inputs
        if v.dtype in wide
    }
    return CoreMLTarget().lower(graph, profile, LowerOptions(integers=bounds), folder)


def _parse(model: bytes) -> Any:
    import onnx

    return onnx.load_from_string(model)


@conformance([Subject(CoreMLReferenceBackend(), make_artifact, KNOWN)])
def test_conformance(subject: Subject, check: Any, tmp_path: Path) -> None:
    check(subject, tmp_path)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of others: y = x * half in float16, with input and output in float32."""
    return mil.package(tmp_path_factory.mktemp("mil") / "m.mlpackage", _scaled, {"x": (2, 3)})


def _scaled(mb: Any, x: Any) -> Any:
    return mb.mul(x=x, y=np.float32(1 / 3), name="y")


def opened(path: Path, **extra: str) -> Any:
    artifact = Artifact("mlprogram", path, (), ())
    return CoreMLReferenceBackend().load(artifact, LoadOptions(extra=extra))


def test_the_probe_says_that_this_is_no_apple_hardware() -> None:
    probe = CoreMLReferenceBackend().probe()
    assert probe.available
    assert LABEL in probe.devices[0].name


def test_the_probe_gives_a_reason_without_coremltools(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'coremltools'", name="coremltools")

    monkeypatch.setattr(backend, "import_coreml_spec", missing)
    probe = CoreMLReferenceBackend().probe()
    assert not probe.available
    assert probe.reason == "coremltools not installed; pip install 'edgeinfer[coreml]'"
    with pytest.raises(NotAvailableError, match="coremltools not installed"):
        opened(Path("nowhere"))


def test_a_package_is_opened_by_its_folder_and_by_its_manifest(package: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = [opened(p).run({"x": x})["y"] for p in (package, package / "Manifest.json")]
    assert np.array_equal(results[0], results[1])


def test_float16_is_rounded_unless_it_is_switched_off(package: Path) -> None:
    x = np.linspace(0, 5, 6, dtype=np.float32).reshape(2, 3)
    third = np.float16(1 / 3)
    rounded = opened(package).run({"x": x})["y"]
    assert np.array_equal(rounded, (x.astype(np.float16) * third).astype(np.float32))
    smooth = opened(package, rounding="off").run({"x": x})["y"]
    assert np.array_equal(smooth, x * np.float32(third))
    assert not np.array_equal(smooth, rounded)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"rounding": "some"}, "rounding is on or off, not 'some'"),
        ({"color": "red"}, r"has the options function and rounding, not \['color'\]"),
        ({"function": "other"}, "has no function 'other', only main"),
    ],
)
def test_unknown_options_are_refused(package: Path, extra: dict[str, str], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        opened(package, **extra)


def test_inputs_that_do_not_fit_are_refused(package: Path) -> None:
    executable = opened(package)
    with pytest.raises(RunError, match="expected float32, received float64"):
        executable.run({"x": np.zeros((2, 3))})
    with pytest.raises(RunError, match=r"received shape \(3, 2\)"):
        executable.run({"x": np.zeros((3, 2), np.float32)})
    with pytest.raises(RunError, match=r"expected inputs \['x'\], received \['z'\]"):
        executable.run({"z": np.zeros((2, 3), np.float32)})
    executable.close()
    with pytest.raises(ClosedError):
        executable.run({"x": np.zeros((2, 3), np.float32)})


def test_state_lives_as_long_as_its_handle(tmp_path: Path) -> None:
    path = mil.package(
        tmp_path / "m.mlpackage", _counting, {"x": (3,)}, target="iOS18", states={"total": (3,)}
    )
    executable = opened(path)
    x = np.array([1, 2, 3], np.float32)
    state, other = executable.make_state(), executable.make_state()
    sums = [executable.run({"x": x}, state)["y"] for _ in range(3)]
    assert [s.tolist() for s in sums] == [[1, 2, 3], [2, 4, 6], [3, 6, 9]]
    assert executable.run({"x": x}, other)["y"].tolist() == [1, 2, 3]
    assert executable.run({"x": x})["y"].tolist() == [1, 2, 3]


def _counting(mb: Any, x: Any, total: Any) -> Any:
    sum_ = mb.add(x=mb.cast(x=mb.read_state(input=total), dtype="fp32"), y=x)
    kept = mb.coreml_update_state(state=total, value=mb.cast(x=sum_, dtype="fp16"))
    return mb.cast(x=kept, dtype="fp32", name="y")


def test_enumerated_shapes_are_the_only_ones(tmp_path: Path) -> None:
    import coremltools as ct

    shapes = ct.EnumeratedShapes(shapes=[[1, 4], [1, 6]], default=[1, 4])
    path = mil.package(tmp_path / "m.mlpackage", _scaled, {"x": shapes})
    executable = opened(path)
    assert executable.inputs[0].shape == (1, None)
    for length in (4, 6):
        assert executable.run({"x": np.ones((1, length), np.float32)})["y"].shape == (1, length)
    with pytest.raises(RunError, match=r"shape \(1, 5\) is not one of \[\(1, 4\), \(1, 6\)\]"):
        executable.run({"x": np.ones((1, 5), np.float32)})


def test_a_range_of_sizes_has_ends(tmp_path: Path) -> None:
    import coremltools as ct

    shape = (1, ct.RangeDim(lower_bound=2, upper_bound=5, default=3))
    executable = opened(mil.package(tmp_path / "m.mlpackage", _scaled, {"x": shape}))
    assert executable.run({"x": np.ones((1, 5), np.float32)})["y"].shape == (1, 5)
    with pytest.raises(RunError, match=r"shape \(1, 6\) is outside of"):
        executable.run({"x": np.ones((1, 6), np.float32)})


def test_a_function_is_chosen_by_name(tmp_path: Path) -> None:
    import coremltools as ct

    first = mil.package(tmp_path / "a.mlpackage", _scaled, {"x": (2,)}, target="iOS18")
    second = mil.package(tmp_path / "b.mlpackage", _doubled, {"x": (2,)}, target="iOS18")
    description = ct.utils.MultiFunctionDescriptor()
    description.add_function(str(first), "main", "third")
    description.add_function(str(second), "main", "double")
    description.default_function_name = "double"
    ct.utils.save_multifunction(description, str(tmp_path / "both.mlpackage"))
    x = np.array([3, 6], np.float32)
    both = tmp_path / "both.mlpackage"
    assert opened(both).run({"x": x})["y"].tolist() == [6, 12]
    assert opened(both, function="third").run({"x": x})["y"].tolist() == pytest.approx([1, 2], 1e-3)


def _doubled(mb: Any, x: Any) -> Any:
    return mb.mul(x=x, y=2.0, name="y")


def test_a_classifier_gives_its_label_and_probabilities(tmp_path: Path) -> None:
    import coremltools as ct

    path = mil.package(
        tmp_path / "m.mlpackage",
        lambda mb, x: mb.softmax(x=x, axis=-1, name="p"),
        {"x": (1, 3)},
        classifier_config=ct.ClassifierConfig(["cat", "dog", "owl"]),
        precision="fp32",
    )
    found = opened(path).run({"x": np.array([[0, 2, 1]], np.float32)})
    assert found["classLabel"].item() == "dog"
    powers = np.exp(np.array([0, 2, 1], np.float32))
    assert found["classLabel_probs"] == pytest.approx(powers / powers.sum(), rel=1e-6)


def _filled(mb: Any, x: Any) -> Any:
    """Make an array whose size only a run knows: as many rows, and columns, as the input says."""
    length = mb.cast(x=x, dtype="int32")
    return mb.reduce_sum(x=mb.fill(shape=length, value=np.float32(1)), name="y")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a kernel that counts private memory")
def test_what_a_program_makes_has_a_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "CEILING_MB", 2048)
    path = mil.package(tmp_path / "m.mlpackage", _filled, {"x": (2,)}, precision="fp32")
    engine = isolated.IsolatedBackend(backend.NAME, reuse=False)
    executable = engine.load(Artifact("mlprogram", path, (), ()), LoadOptions())
    try:
        few, many = (np.full(2, n, np.float32) for n in (100, 40_000))
        assert executable.run({"x": few})["y"] == 10_000
        with pytest.raises(RunError, match=r"'fill' .*: out of memory"):
            executable.run({"x": many})
        assert executable.run({"x": few})["y"] == 10_000
    finally:
        executable.close()


@pytest.mark.skipif(not isolation.SUPPORTED, reason="needs processes that end with their parent")
def test_commands_set_it_apart_with_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(isolation.IN_PROCESS, raising=False)
    engine = pairs.within(backend.NAME, None)
    assert isinstance(engine, isolated.IsolatedBackend)
    assert engine._run_s == engine._load_s == isolation.TIMEOUT_S
