"""A stand-in for ONNX Runtime with its TensorRT provider: it writes and reads context models.

It takes the options that the real one takes, refuses what that refuses, and computes on the CPU.
It cannot say whether TensorRT takes a graph, nor what it makes of its types.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeinfer.backends.base import Device
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime_tensorrt import backend as module
from edgeinfer.backends.tensorrt import library

PROVIDER = "TensorrtExecutionProvider"
OPTIONS = frozenset(
    {
        "device_id",
        "trt_bf16_enable",
        "trt_engine_cache_enable",
        "trt_fp16_enable",
        "trt_int8_enable",
        "trt_layer_norm_fp32_fallback",
        "trt_profile_max_shapes",
        "trt_profile_min_shapes",
        "trt_profile_opt_shapes",
        "trt_timing_cache_enable",
        "trt_timing_cache_path",
    }
)
"""Those of onnxruntime-gpu 1.31.1 that are used."""


class StandIn:
    """What the module under test takes for ONNX Runtime.

    Attributes:
        tensorrt: version of the library.
        built: options of each build.
        loaded: options of each context model that was opened.
        refuses: why graphs cannot be compiled; empty compiles them.
    """

    def __init__(self) -> None:
        self._real = import_onnxruntime()
        self.__version__ = "1.23.0"
        self.tensorrt = "10.3.0"
        self.built: list[dict[str, str]] = []
        self.loaded: list[dict[str, str]] = []
        self.refuses = ""
        self.context = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_available_providers(self) -> list[str]:
        return [PROVIDER, "CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(  # noqa: N802
        self, path: str, settings: Any, *, providers: list[Any], enable_fallback: int
    ) -> Any:
        ((name, options),) = providers
        assert name == PROVIDER
        assert set(options) <= OPTIONS, set(options) - OPTIONS
        assert enable_fallback == 0
        assert settings.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
        try:
            place = settings.get_session_config_entry("ep.context_file_path")
        except RuntimeError:
            self._open(Path(path), options)
        else:
            self._build(Path(path), Path(place), options)
        real = self._real.InferenceSession(path, providers=["CPUExecutionProvider"])
        return SimpleNamespace(
            _sess=None,
            run=real.run,
            get_inputs=real.get_inputs,
            get_outputs=real.get_outputs,
            get_providers=lambda: [PROVIDER],
        )

    def _build(self, source: Path, place: Path, options: dict[str, str]) -> None:
        self.built.append(options)
        if self.refuses:
            raise RuntimeError(self.refuses)
        timing = (
            Path(options["trt_timing_cache_path"]) / "TensorrtExecutionProvider_cache_sm87.timing"
        )
        known = timing.read_text() if timing.exists() else ""
        timing.write_text(known + "tactic;")
        if self.context:
            place.write_bytes(source.read_bytes())
            (place.parent / "kernel_sm87.engine").write_text(self.tensorrt)

    def _open(self, place: Path, options: dict[str, str]) -> None:
        self.loaded.append(options)
        engine = place.parent / "kernel_sm87.engine"
        if engine.read_text() != self.tensorrt:
            raise RuntimeError(f"engine of TensorRT {engine.read_text()} in {self.tensorrt}")


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    """A machine with a GPU, ONNX Runtime with TensorRT, and an empty cache."""
    made = StandIn()
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "import_onnxruntime", lambda: made)
    monkeypatch.setattr(module, "load_libraries", lambda: None)
    monkeypatch.setattr(module, "library_version", lambda: made.tensorrt)
    monkeypatch.setattr(module, "plugins", lambda: ())
    gpu = (Device("gpu", "Orin"),)
    monkeypatch.setattr(module, "cuda_devices", lambda: gpu)
    monkeypatch.setattr(library, "cuda_devices", lambda: gpu)
    monkeypatch.setattr(library, "compute_capability", lambda: "8.7")
    return made
