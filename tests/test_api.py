"""The public functions next to load and export, and how results look in a notebook."""

from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer.bundle.manifest import Manifest
from edgeinfer.convert.model_info import ModelInfo
from edgeinfer.convert.pipeline.entry import ExportResult
from edgeinfer.convert.verify import Vector
from edgeinfer.errors import UsageError
from edgeinfer.profiles.schema import Profile

onnx = pytest.importorskip("onnx")

NET = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 4] x) => (float[1, 4] y) <float[4] w = {1, 2, 3, 4}> { m = Mul (x, w) y = Relu (m) }
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    folder = tmp_path_factory.mktemp("api")
    onnx.save(onnx.parser.parse_model(NET), folder / "net.onnx")
    return edgeinfer.export(folder / "net.onnx", folder / "net.edge", targets=["onnxruntime"])


def test_a_model_is_inspected(result: ExportResult) -> None:
    found = edgeinfer.inspect(result.path.with_suffix(".onnx"))
    assert isinstance(found, ModelInfo)
    assert (found.operators, found.weights) == (
        {"Mul": 1, "Relu": 1},
        {"float32": {"tensors": 1, "bytes": 16}},
    )
    assert [(v.name, v.dtype, v.shape) for v in found.inputs] == [("x", "float32", (1, 4))]


def test_a_bundle_is_inspected(result: ExportResult) -> None:
    found = edgeinfer.inspect(result.path)
    assert isinstance(found, Manifest)
    assert [v.id for v in found.variants] == ["onnxruntime-onnx-fp32"]


def test_a_model_is_checked(result: ExportResult) -> None:
    found = edgeinfer.check(result.path.with_suffix(".onnx"), targets=["onnxruntime"])
    assert found == {"onnxruntime-onnx": []}


def test_targets_are_the_profiles() -> None:
    found = edgeinfer.targets()
    assert "rpi5" in [t.name for t in found]
    assert all(isinstance(t, Profile) for t in found)


def test_devices_tell_what_is_here() -> None:
    found = edgeinfer.devices()
    assert found.machine.cpus > 0
    assert "onnxruntime" in [p.backend for p in found.backends]


def test_a_bundle_is_verified(result: ExportResult) -> None:
    found = edgeinfer.verify(result.path)
    assert found.passed
    assert [(c.variant, c.backend) for c in found.checked] == [
        ("onnxruntime-onnx-fp32", "onnxruntime")
    ]
    with edgeinfer.Bundle.open(result.path) as opened:
        assert edgeinfer.verify(opened, backend="onnxruntime").passed
        with pytest.raises(UsageError, match="an open bundle takes no trusted"):
            edgeinfer.verify(opened, trusted=("key.pem",))
        assert opened.manifest.vectors
    with pytest.raises(edgeinfer.errors.EdgeInferError, match=r"none\.edge"):
        edgeinfer.verify(result.path.with_name("none.edge"))


def test_a_bundle_is_timed(result: ExportResult) -> None:
    told: list[float] = []
    found = edgeinfer.bench(
        result.path, {"x": np.ones((1, 4), np.float32)}, runs=2, progress=told.append
    )
    assert {row.engine for row in found.rows} == {"onnxruntime", "plain onnxruntime"}
    assert all(t.median_ms > 0 for t in found.rows.values())
    assert (found.shapes, told[-1]) == ({"x": (1, 4)}, 1.0)


def test_results_are_one_line(result: ExportResult) -> None:
    with edgeinfer.load(result.path) as session:
        shown: list[object] = [
            result,
            result.report,
            result.manifest,
            session.report(),
            session.verify(),
        ]
    with edgeinfer.Bundle.open(result.path) as opened:
        shown += [opened]
    shown += [edgeinfer.verify(result.path), edgeinfer.devices()]
    shown += [edgeinfer.bench(result.path, runs=1), Vector({"x": np.zeros((2, 3))}, "user:a.npz")]
    shown += [edgeinfer.inspect(result.path.with_suffix(".onnx"))]
    for value in shown:
        assert len(repr(value)) < 300, type(value)
        assert "\n" not in repr(value), type(value)


def test_a_notebook_shows_the_report_in_a_frame_that_runs_nothing(result: ExportResult) -> None:
    shown = result._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "sandbox" in shown
    assert '"' not in shown.removeprefix('<iframe srcdoc="').partition('"')[0]


def test_submodules_resolve() -> None:
    assert edgeinfer.media.parse_description is not None
    for name in ("types", "tasks", "results", "heads"):
        assert getattr(edgeinfer, name).__name__ == f"edgeinfer.{name}"


def test_the_command_has_another_name_here() -> None:
    with pytest.raises(AttributeError, match=r"'convert'; it is edgeinfer\.export"):
        edgeinfer.__getattr__("convert")


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(edgeinfer.errors.EdgeInferError, match=r"none\.onnx"):
        edgeinfer.inspect(tmp_path / "none.onnx")
