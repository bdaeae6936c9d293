"""ONNX Runtime's Core ML provider, which is not here: its place is taken by the CPU provider.

What is handed to the engine is shown, not what Core ML makes of it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.onnxruntime_coreml import backend as module
from edgeinfer.backends.onnxruntime_coreml.backend import OnnxRuntimeCoreMLBackend
from edgeinfer.errors import LoadError, NotAvailableError

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }"""
PROVIDER = "CoreMLExecutionProvider"


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    onnx.save(onnx.parser.parse_model(TEXT), str(tmp_path / "m.onnx"))
    return Artifact("onnx", tmp_path / "m.onnx", (), ())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """A Mac whose engine answers to the provider's name."""
    seen: list[Any] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, settings: Any, providers: list[Any]) -> None:
            seen.extend(providers)
            super().__init__(path, settings, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return [PROVIDER, *super().get_providers()]

    monkeypatch.setattr(module, "_system", lambda: "darwin")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [PROVIDER])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path))
    return seen


@pytest.mark.parametrize(
    ("device", "units"), [("npu", "CPUAndNeuralEngine"), ("gpu", "CPUAndGPU"), ("cpu", "CPUOnly")]
)
def test_a_device_is_a_set_of_compute_units(
    device: Any, units: str, artifact: Artifact, asked: list[Any], tmp_path: Path
) -> None:
    options = LoadOptions(device=device, extra={"RequireStaticInputShapes": "1"})
    executable = OnnxRuntimeCoreMLBackend().load(artifact, options)
    x = np.array([[-1, 2]], np.float32)
    np.testing.assert_array_equal(executable.run({"x": x})["y"], np.maximum(x, 0))
    (name, given), fallback = asked
    assert (name, fallback) == (PROVIDER, "CPUExecutionProvider")
    assert given["ModelFormat"] == "MLProgram"
    assert given["MLComputeUnits"] == units
    assert given["AllowLowPrecisionAccumulationOnGPU"] == "0"
    assert given["RequireStaticInputShapes"] == "1"
    assert Path(given["ModelCacheDirectory"]).is_relative_to(tmp_path)
    assert "computed on the CPU" in executable.notes[0]


def test_the_probe_says_why_it_is_not_here(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_system", lambda: "linux")
    assert OnnxRuntimeCoreMLBackend().probe().reason == "Core ML runs on macOS"
    monkeypatch.setattr(module, "_system", lambda: "darwin")
    assert f"has no {PROVIDER}" in OnnxRuntimeCoreMLBackend().probe().reason
    with pytest.raises(NotAvailableError, match=PROVIDER):
        OnnxRuntimeCoreMLBackend().load(artifact, LoadOptions())


def test_what_the_engine_refuses_is_wrapped(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    bad = Artifact("onnx", tmp_path / "bad.onnx", (), ())
    with pytest.raises(LoadError, match="onnxruntime refuses"):
        OnnxRuntimeCoreMLBackend().load(bad, LoadOptions())
