"""TensorRT by its own Python package, as JetPack brings it: whole graphs, built ahead.

The package ``tensorrt`` (8.6 and newer) and the driver are all it takes; no ONNX Runtime, no CUDA
toolkit for Python. **Never run with TensorRT itself**: the tests use a stand-in with the members
and parameters that the packages 8.6.1, 10.3.0 and 11.4.0 have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from edgeinfer.backends.base import Artifact, Capabilities, LoadOptions, Probe
from edgeinfer.backends.built_ahead import (
    EngineBuilder,
    SizeRanges,
    WantedEngine,
    give_timing,
    open_inputs,
    plain_model,
    take_timing,
)
from edgeinfer.backends.checks import check_device, check_signature, one_line, thread_count
from edgeinfer.backends.engine_store import EngineKey, digest_of
from edgeinfer.backends.engines import import_tensorrt
from edgeinfer.backends.tensorrt import build as tensorrt_build
from edgeinfer.backends.tensorrt.build import (
    NAME,
    BuildPlan,
    log_of,
    plan_of,
    reason_of,
    version_of,
)
from edgeinfer.backends.tensorrt.library import machine_facts
from edgeinfer.backends.tensorrt.run import DTYPES, EngineExecutable, ports_of
from edgeinfer.errors import LoadError, NotAvailableError
from edgeinfer.machine.cuda import check_bf16, cuda_devices
from edgeinfer.types import Progress

ENGINE = "engine.plan"
_TIMES = "tensorrt.timing"
_NOTES = "notes.txt"
_OLDEST = (8, 6)


class TensorRTBackend(EngineBuilder[BuildPlan]):
    """Runs ONNX models as engines that TensorRT's own builder makes."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for the package ``tensorrt`` and an NVIDIA device."""
        try:
            trt = import_tensorrt()
        except Exception as error:
            if not isinstance(error, ModuleNotFoundError):
                return Probe(NAME, None, reason=f"tensorrt cannot be imported: {one_line(error)}")
            reason = "tensorrt not installed; JetPack brings it for the system's Python"
            return Probe(NAME, None, reason=reason)
        version = str(trt.__version__)
        if version_of(trt) < _OLDEST:
            return Probe(NAME, version, reason=f"TensorRT {version} is too old: 8.6 or newer")
        if not (found := cuda_devices()):
            return Probe(NAME, version, reason="no NVIDIA device or driver is here")
        return Probe(NAME, version, tuple(found))

    def capabilities(self) -> Capabilities:
        """ONNX files; open sizes within the shapes that an engine was built for."""
        return Capabilities(formats=frozenset({"onnx"}), dtypes=DTYPES, zero_copy=False)

    def load(self, artifact: Artifact, options: LoadOptions) -> EngineExecutable:
        """Open the engine of a model; builds it first where no current one is here.

        Raises:
            NotAvailableError: TensorRT or an NVIDIA device is not here.
            LoadError: TensorRT refuses the model, or an option or a shape is wrong.
        """
        asked = self._asked(artifact, options)
        trt = import_tensorrt()

        def opened(folder: Path) -> tuple[Path, Any]:
            return folder, _engine(trt, folder / ENGINE, asked.maker)

        folder, engine = self._opened(asked, opened)
        ports = ports_of(trt, engine)
        inputs = tuple(p.spec for p in ports if p.is_input)
        outputs = tuple(p.spec for p in ports if not p.is_input)
        if artifact.inputs or artifact.outputs:
            check_signature(NAME, "input", artifact.inputs, [{s.name: s.dtype} for s in inputs])
            check_signature(NAME, "output", artifact.outputs, [{s.name: s.dtype} for s in outputs])
            inputs, outputs = artifact.inputs, artifact.outputs
        ranges = SizeRanges(inputs, options.shapes)
        executable = EngineExecutable(trt, engine, ports, inputs, outputs, ranges)
        lines = (folder / _NOTES).read_text(encoding="utf-8").splitlines()
        executable.notes = (f"engine of TensorRT {trt.__version__}: {folder}", *lines)
        return executable

    def _asked(self, artifact: Artifact, options: LoadOptions) -> WantedEngine[BuildPlan]:
        check_device(self.probe(), options.device, "needs an NVIDIA device and TensorRT")
        # No thread of the host computes; what is no number of them is refused all the same.
        thread_count(NAME, options)
        path = plain_model(NAME, artifact)
        check_bf16(NAME, artifact.precision)
        trt = import_tensorrt()
        names = open_inputs(NAME, artifact, options)
        plan = plan_of(trt, artifact.precision, names, options)
        facts = machine_facts(str(trt.__version__))
        key = EngineKey(digest_of(path), facts, {"backend": NAME, **plan.to_key()})
        return WantedEngine(plan, key, path, artifact, options)

    def _make(
        self, folder: Path, asked: WantedEngine[BuildPlan], progress: Progress | None = None
    ) -> None:
        take_timing(folder)
        place = folder / _TIMES
        timing = place.read_bytes() if place.is_file() else b""
        plan, trt = asked.maker, import_tensorrt()
        made = tensorrt_build.build(trt, asked.path, plan, timing, progress)
        (folder / ENGINE).write_bytes(made.engine)
        (folder / _NOTES).write_text("\n".join(made.notes), encoding="utf-8")
        if made.timing:
            place.write_bytes(made.timing)
        give_timing(folder)


def _engine(trt: Any, path: Path, plan: BuildPlan) -> Any:
    """Read an engine that this machine built.

    Raises:
        LoadError: the library refuses it.
        NotAvailableError: the library finds no device.
    """
    log = log_of(trt)
    log.errors.clear()
    try:
        trt.init_libnvinfer_plugins(log, "")
        runtime = trt.Runtime(log)
    except Exception as error:
        raise NotAvailableError(f"TensorRT: {reason_of(trt, one_line(error))}") from error
    if plan.settings.dla_core is not None:
        runtime.DLA_core = plan.settings.dla_core
    try:
        engine = runtime.deserialize_cuda_engine(path.read_bytes())
    except Exception as error:
        raise LoadError(f"TensorRT refuses {path}: {reason_of(trt, one_line(error))}") from error
    if engine is None:
        raise LoadError(
            f"TensorRT {trt.__version__} refuses {path}: {reason_of(trt, 'no reason given')}"
        )
    return engine
