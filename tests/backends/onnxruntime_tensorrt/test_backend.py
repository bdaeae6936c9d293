"""Engines built ahead, with a stand-in for the provider; TensorRT itself was not run."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeinfer.backends.base import Artifact, BuildsAhead, LoadOptions, ShapeRange
from edgeinfer.backends.engine_store import RECORD
from edgeinfer.backends.onnxruntime.plugins import Plugin
from edgeinfer.backends.onnxruntime_tensorrt import backend as module
from edgeinfer.backends.onnxruntime_tensorrt.backend import NAME, OnnxRuntimeTensorRTBackend
from edgeinfer.errors import LoadError, NotAvailableError, RunError
from edgeinfer.machine import cuda
from edgeinfer.types import TensorSpec
from tests.backends.onnxruntime_tensorrt.standin import StandIn
from tests.backends.onnxruntime_tensorrt.standin import standin as standin

GPU = LoadOptions(device="gpu")
FIXED, OPEN = "(float[2,3] x) => (float[2,3] y)", "(float[n,3] x) => (float[n,3] y)"
SHAPES: dict[str, ShapeRange] = {"x": ((1, 3), (2, 3), (4, 3))}


@pytest.fixture
def backend() -> OnnxRuntimeTensorRTBackend:
    return OnnxRuntimeTensorRTBackend()


def artifact(folder: Path, signature: str = FIXED, precision: str = "fp32") -> Artifact:
    path = folder / "model.onnx"
    head = '<ir_version: 10, opset_import: ["" : 21]> g '
    onnx.save(onnx.parser.parse_model(f"{head}{signature} {{ y = Neg(x) }}"), path)
    dims = (2, 3) if signature == FIXED else ("n", 3)
    x, y = (TensorSpec(name, "float32", dims) for name in "xy")
    return Artifact("onnx", path, (x,), (y,), precision)


def test_the_engine_is_built_at_the_first_load_with_a_word_and_found_at_the_next(
    standin: StandIn,
    backend: OnnxRuntimeTensorRTBackend,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = artifact(tmp_path)
    assert isinstance(backend, BuildsAhead)
    assert backend.unbuilt(made, GPU) == "none was built yet"
    executable = backend.load(made, GPU)
    first, second = (r.getMessage() for r in caplog.records)
    assert "building its TensorRT engine, which can take minutes: none was built yet" in first
    assert "`edgeinfer build BUNDLE`" in first
    assert "engine built in" in second
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)
    caplog.clear()
    assert backend.unbuilt(made, GPU) == ""
    backend.load(made, GPU)
    assert (len(standin.built), len(standin.loaded), caplog.records) == (1, 2, [])


@pytest.mark.parametrize(
    ("precision", "fp16", "int8"),
    [
        ("fp32", "0", "0"),
        ("fp16+fp32", "1", "0"),
        ("bf16+fp32", "0", "0"),
        ("static_wi8_ai8", "0", "1"),
        ("static_wi8_ai8+fp16", "1", "1"),
    ],
)
def test_only_what_the_artifact_holds_is_allowed(
    standin: StandIn,
    backend: OnnxRuntimeTensorRTBackend,
    tmp_path: Path,
    precision: str,
    fp16: str,
    int8: str,
) -> None:
    backend.build(artifact(tmp_path, precision=precision), GPU)
    (options,) = standin.built
    assert (options["trt_fp16_enable"], options["trt_int8_enable"]) == (fp16, int8)
    # Older builds refuse an option that they do not know.
    assert ("trt_bf16_enable" in options) == precision.startswith("bf16")


def test_a_gpu_older_than_ampere_refuses_bf16_by_name(
    standin: StandIn,
    backend: OnnxRuntimeTensorRTBackend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "compute_capability", lambda index=0: "7.2")
    backend.build(artifact(tmp_path, precision="fp16"), GPU)
    with pytest.raises(NotAvailableError, match=r"compute capability 8.0 on; this one has 7.2"):
        backend.build(artifact(tmp_path, precision="bf16+fp32"), GPU)


def test_an_engine_of_another_tensorrt_is_built_anew_and_said_to_be(
    standin: StandIn,
    backend: OnnxRuntimeTensorRTBackend,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = artifact(tmp_path)
    backend.build(made, GPU)
    standin.tensorrt = "10.7.0"
    why = "it was built for TensorRT 10.3.0, this is 10.7.0"
    assert backend.unbuilt(made, GPU) == why
    backend.load(made, GPU)
    assert why in caplog.records[0].getMessage()
    assert len(standin.built) == 2


def test_a_changed_artifact_or_option_gets_an_engine_of_its_own(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    made = artifact(tmp_path)
    backend.build(made, GPU)
    other = dataclasses.replace(GPU, extra={"trt_fp16_enable": "1"})
    assert backend.unbuilt(made, other) == "none was built with these options and shapes"
    # Another doc_string.
    made.path.write_bytes(made.path.read_bytes() + b"\x32\x01x")
    assert backend.unbuilt(made, GPU) == "none was built yet"


def test_a_damaged_engine_is_never_loaded(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    made = artifact(tmp_path)
    folder = backend.build(made, GPU)
    (folder / "kernel_sm87.engine").write_text("")
    assert backend.unbuilt(made, GPU) == "its files are damaged"
    assert backend.build(made, GPU) == folder
    assert (folder / "kernel_sm87.engine").read_text() == "10.3.0"


def test_an_engine_that_is_refused_is_built_anew_once(
    standin: StandIn,
    backend: OnnxRuntimeTensorRTBackend,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = artifact(tmp_path)
    folder = backend.build(made, GPU)
    engine = folder / "kernel_sm87.engine"
    engine.write_text("10.2.9")
    # Whole by its record, as one that an older library wrote is.
    record = json.loads((folder / RECORD).read_text())
    record["files"][engine.name] = hashlib.sha256(b"10.2.9").hexdigest()
    (folder / RECORD).write_text(json.dumps(record))
    backend.load(made, GPU)
    assert "refused and built anew" in caplog.records[0].getMessage()
    assert len(standin.built) == 2


def test_an_engine_that_was_changed_is_not_opened(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    made = artifact(tmp_path)
    engine = backend.build(made, GPU) / "kernel_sm87.engine"
    content = engine.read_bytes()
    engine.write_bytes(bytes(len(content)))
    assert backend.unbuilt(made, GPU) == "its files are damaged"
    backend.load(made, GPU)
    assert engine.read_bytes() == content


def test_times_of_kernels_are_kept_between_builds_and_apart_from_the_engine(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    made = artifact(tmp_path)
    for extra in (dict[str, str](), {"trt_fp16_enable": "1"}):
        folder = backend.build(made, dataclasses.replace(GPU, extra=extra))
        assert not list(folder.glob("*.timing"))
    (kept,) = (tmp_path / "cache" / "engines" / "timing").iterdir()
    assert kept.read_text() == "tactic;tactic;"


def test_open_sizes_need_shapes_and_others_are_refused_in_a_run(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    made = artifact(tmp_path, OPEN)
    with pytest.raises(LoadError, match=r"sizes of 'x' are open: give the smallest, usual"):
        backend.load(made, GPU)
    executable = backend.load(made, dataclasses.replace(GPU, shapes=SHAPES))
    assert standin.built[0]["trt_profile_min_shapes"] == "x:1x3"
    assert standin.built[0]["trt_profile_opt_shapes"] == "x:2x3"
    assert standin.built[0]["trt_profile_max_shapes"] == "x:4x3"
    assert executable.run({"x": np.ones((4, 3), np.float32)})["y"].shape == (4, 3)
    with pytest.raises(RunError, match=r"from \[1, 3\] to \[4, 3\].*received \[5, 3\]"):
        executable.run({"x": np.ones((5, 3), np.float32)})
    with pytest.raises(RunError, match="edgeinfer build --shape"):
        executable.bind({"x": np.ones((9, 3), np.float32)}, {"y": np.ones((9, 3), np.float32)})
    assert len(standin.built) == 1


def test_a_graph_that_is_refused_is_one_line_and_leaves_nothing(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    standin.refuses = "graph nodes that are assigned to the default CPU EP"
    made = artifact(tmp_path)
    with pytest.raises(LoadError, match=r"onnxruntime refuses .*assigned to the default CPU"):
        backend.load(made, GPU)
    assert backend.unbuilt(made, GPU) == "none was built yet"
    assert not [
        p for p in (tmp_path / "cache" / "engines").rglob("*") if p.is_dir() and "-" in p.name
    ]


def test_a_provider_that_writes_no_context_model_is_an_error(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    standin.context = False
    with pytest.raises(LoadError, match="wrote no context model"):
        backend.build(artifact(tmp_path), GPU)


def test_the_probe_says_what_is_missing(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backend.probe().version == "1.23.0+trt.10.3.0"
    standin.tensorrt = ""
    assert "libnvinfer) cannot be loaded" in backend.probe().reason
    monkeypatch.setattr(StandIn, "get_available_providers", lambda _: ["CPUExecutionProvider"])
    assert "this build of onnxruntime has no TensorrtExecutionProvider" in backend.probe().reason
    monkeypatch.setattr(module, "cuda_devices", lambda: ())
    assert backend.probe().reason == "no NVIDIA device or driver is here"


def test_a_plugin_takes_the_place_of_the_provider(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.tensorrt = ""
    name = "NvTensorRTRTXExecutionProvider"
    device: Any = type("Device", (), {"ep_name": name})()
    found = Plugin("onnxruntime_ep_nv_tensorrt_rtx", "0.5.0", (name,), (device,))
    monkeypatch.setattr(module, "plugins", lambda: (found,))
    assert backend.probe().version == "1.23.0+trt.0.5.0"
    broken = dataclasses.replace(found, devices=(), problem="finds no device of its kind here")
    monkeypatch.setattr(module, "plugins", lambda: (broken,))
    assert "finds no device of its kind here" in backend.probe().reason


def test_nothing_of_an_encrypted_bundle_is_written_to_the_disk(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    made = artifact(tmp_path)
    link = tmp_path / "link.onnx"
    with made.path.open("rb") as file:
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        with pytest.raises(LoadError, match="the bundle is encrypted"):
            backend.load(dataclasses.replace(made, path=link), GPU)
    assert standin.built == []


def test_without_a_device_loading_says_so(tmp_path: Path) -> None:
    probe = OnnxRuntimeTensorRTBackend().probe()
    if probe.available:
        pytest.skip("TensorRT is here")
    with pytest.raises(NotAvailableError, match=NAME):
        OnnxRuntimeTensorRTBackend().load(artifact(tmp_path), GPU)


def test_an_engine_in_a_model_is_refused(
    standin: StandIn, backend: OnnxRuntimeTensorRTBackend, tmp_path: Path
) -> None:
    made = artifact(tmp_path)
    model = onnx.load(made.path)
    model.graph.node[0].op_type, model.graph.node[0].domain = "EPContext", "com.microsoft"
    onnx.save(model, made.path)
    with pytest.raises(LoadError, match="holds an engine that somebody else built"):
        backend.load(made, GPU)
    with pytest.raises(LoadError, match="holds an engine that somebody else built"):
        backend.build(made, GPU)
    assert not standin.built
