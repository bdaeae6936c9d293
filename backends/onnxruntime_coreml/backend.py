"""ONNX Runtime's Core ML provider on a Mac: an alternative to packages, for ONNX files as they are.

It hands parts of the graph to Core ML when the file is loaded and computes the rest on the CPU.
It is used only where it is requested by name: what Core ML computes in half precision leaves the
budget of files in single precision.
"""

from __future__ import annotations

import platform
import sys
from typing import Any, ClassVar

from edgeinfer.backends.base import (
    Artifact,
    Capabilities,
    Device,
    DeviceKind,
    LoadOptions,
    Probe,
)
from edgeinfer.backends.checks import (
    check_device,
    check_file,
    check_signature,
    one_line,
    thread_count,
)
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend, OnnxRuntimeExecutable, specs
from edgeinfer.backends.onnxruntime.operators import RECORD_OPTION
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.bundle.memory import is_in_memory
from edgeinfer.errors import LoadError, NotAvailableError
from edgeinfer.installed import install

NAME = "onnxruntime-coreml"

_PROVIDER = "CoreMLExecutionProvider"
_UNITS: dict[DeviceKind, str] = {
    "npu": "CPUAndNeuralEngine",
    "gpu": "CPUAndGPU",
    "cpu": "CPUOnly",
}
_NOTE = "operators that Core ML does not take are computed on the CPU by ONNX Runtime"


class OnnxRuntimeCoreMLBackend:
    """Runs ONNX models with ONNX Runtime's Core ML provider."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for macOS and for a build of the engine with the provider."""
        if _system() != "darwin":
            return Probe(NAME, None, reason="Core ML runs on macOS")
        try:
            engine = import_onnxruntime()
            version = str(engine.__version__)
            found = _PROVIDER in engine.get_available_providers()
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = "not installed" if missing else f"cannot be imported: {one_line(error)}"
            return Probe(NAME, None, reason=f"onnxruntime {reason}; {install('onnxruntime')}")
        if not found:
            return Probe(NAME, version, reason=f"this build of onnxruntime has no {_PROVIDER}")
        machine = platform.machine()
        return Probe(NAME, version, tuple(Device(kind, machine) for kind in _UNITS))

    def capabilities(self) -> Capabilities:
        """ONNX files with dynamic shapes; bound buffers are copied by Core ML."""
        plain = OnnxRuntimeBackend().capabilities()
        return Capabilities(formats=frozenset({"onnx"}), dtypes=plain.dtypes, zero_copy=False)

    def load(self, artifact: Artifact, options: LoadOptions) -> OnnxRuntimeExecutable:
        """Open an ONNX model; ``extra`` are options of the provider, by its own names.

        Raises:
            NotAvailableError: this is no Mac, or the build lacks the provider.
            LoadError: the engine refuses the model or an option.
        """
        check_device(self.probe(), options.device)
        path = check_file(NAME, artifact, ("onnx",))
        if is_in_memory(path):
            raise LoadError(
                f"backend {NAME!r}: the bundle is encrypted, and Core ML's package would lie in "
                "the cache in plain; load with backend='onnxruntime'"
            )
        session = _open(str(path), options)
        inputs, outputs = specs(session)
        if artifact.inputs or artifact.outputs:
            check_signature(NAME, "input", artifact.inputs, [{s.name: s.dtype} for s in inputs])
            check_signature(NAME, "output", artifact.outputs, [{s.name: s.dtype} for s in outputs])
            inputs, outputs = artifact.inputs, artifact.outputs
        executable = OnnxRuntimeExecutable(session, inputs, outputs)
        executable.notes = (_NOTE,)
        if options.device != "cpu":
            executable.wanted = (_PROVIDER,)
        return executable


def _system() -> str:
    return sys.platform


def _open(path: str, options: LoadOptions) -> Any:
    engine = import_onnxruntime()
    settings = engine.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = thread_count(NAME, options)
    settings.add_session_config_entry(RECORD_OPTION, "1")
    if not options.optimize:
        settings.graph_optimization_level = engine.GraphOptimizationLevel.ORT_DISABLE_ALL
    # https://onnxruntime.ai/docs/execution-providers/CoreML-ExecutionProvider.html
    provider = {
        "ModelFormat": "MLProgram",
        "MLComputeUnits": _UNITS[options.device],
        "AllowLowPrecisionAccumulationOnGPU": "0" if options.precise else "1",
        "ModelCacheDirectory": str(writable_folder("onnxruntime-coreml")),
        **options.extra,
    }
    try:
        session = engine.InferenceSession(
            path, settings, providers=[(_PROVIDER, provider), "CPUExecutionProvider"]
        )
    except Exception as error:
        raise LoadError(f"onnxruntime refuses {path}: {one_line(error)}") from error
    got = session.get_providers()
    if got[0] != _PROVIDER:
        raise NotAvailableError(f"onnxruntime offers {', '.join(got)} here instead of {_PROVIDER}")
    return session
