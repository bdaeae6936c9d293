"""Core ML on a Mac: packages compiled once, run on the CPU, the GPU or the Neural Engine."""

from __future__ import annotations

import hashlib
import platform
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeinfer.backends.base import (
    Artifact,
    Capabilities,
    Device,
    DeviceKind,
    LoadOptions,
    Probe,
)
from edgeinfer.backends.checks import (
    array_type,
    check_device,
    check_feeds,
    check_package,
    one_line,
    thread_count,
)
from edgeinfer.backends.copying import Copying
from edgeinfer.backends.coreml_reference.memory import Memories
from edgeinfer.backends.coreml_reference.package import Package, open_package, package_folder
from edgeinfer.backends.coreml_reference.signature import DTYPES, FORMAT, FeaturePort, ports
from edgeinfer.backends.engines import import_coremltools
from edgeinfer.backends.operators import Elsewhere, Placement
from edgeinfer.bounded import sha256_of
from edgeinfer.bundle.cache import writable_folder
from edgeinfer.errors import ClosedError, LoadError, RunError
from edgeinfer.installed import install
from edgeinfer.machine.apple_chips import advice, chip
from edgeinfer.records import dataclass
from edgeinfer.types import Array, Feeds

NAME = "coreml"

_UNITS: dict[DeviceKind, str] = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "npu": "CPU_AND_NE"}
_ALL = "ALL"
_DEVICES: tuple[tuple[str, DeviceKind], ...] = (
    ("MLNeuralEngineComputeDevice", "npu"),
    ("MLGPUComputeDevice", "gpu"),
    ("MLCPUComputeDevice", "cpu"),
)
_PLACES = {"npu": "the Neural Engine", "gpu": "the GPU", "cpu": "the CPU"}


class CoreMLBackend:
    """Runs ML Programs with Core ML."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for macOS and for coremltools with its native part."""
        try:
            system = _system()
            if system is None:
                reason = "Core ML runs on macOS; the backend coreml-reference evaluates packages"
                return Probe(NAME, None, reason=reason)
            tools = import_coremltools()
            from coremltools.models.compute_device import MLComputeDevice

            found = [_kind(device) for device in MLComputeDevice.get_all_compute_devices()]
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = "not installed" if missing else f"cannot be used: {one_line(error)}"
            return Probe(NAME, None, reason=f"coremltools {reason}; {install('coreml')}")
        version = f"{tools.__version__} on macOS {system}"
        kinds = [kind for _, kind in _DEVICES if kind in found]
        return Probe(NAME, version, tuple(Device(k, platform.machine()) for k in kinds))

    def capabilities(self) -> Capabilities:
        """Packages with flexible shapes; buffers are copied, runs wait for each other."""
        return Capabilities(formats=frozenset({FORMAT}), dtypes=frozenset(DTYPES), zero_copy=False)

    def load(self, artifact: Artifact, options: LoadOptions) -> CoreMLExecutable:
        """Compile a package, or take what was compiled before, and open it.

        ``extra`` may name its ``function``, or set ``units`` to ``all``, which lets Core ML use any
        unit besides the CPU.

        Raises:
            NotAvailableError: this is no Mac, or it lacks the device.
            LoadError: Core ML refuses the package or an option.
        """
        check_device(self.probe(), options.device)
        function, units = _extra(options)
        package = open_package(check_package(NAME, artifact, FORMAT))
        memories = Memories.of(package.facts(function), artifact)
        description = package.description(function)
        inputs = ports(NAME, "input", memories.inputs, description, package.facts(function))
        outputs = ports(NAME, "output", memories.outputs, description, package.facts(function))
        tools = import_coremltools()
        named = function if len(package.functions) > 1 else None
        try:
            compiled = _compiled(package, tools)
            unit = getattr(tools.ComputeUnit, units)
            model = tools.models.CompiledMLModel(str(compiled), unit, named)
        except Exception as error:
            raise LoadError(f"Core ML refuses {artifact.path}: {one_line(error)}") from error
        planned = _planned(compiled, units, package, named)
        notes = (planned.note, *advice(chip(), planned.kinds))
        return CoreMLExecutable(
            model, inputs, outputs, memories, artifact, notes, planned.placement
        )


def _system() -> str | None:
    return platform.mac_ver()[0] if sys.platform == "darwin" else None


def _kind(device: Any) -> str | None:
    return dict(_DEVICES).get(type(device).__name__)


def _extra(options: LoadOptions) -> tuple[str, str]:
    if strange := sorted(options.extra.keys() - {"function", "units"}):
        raise LoadError(f"backend {NAME!r} has the options function and units, not {strange}")
    if not options.optimize:
        raise LoadError(f"backend {NAME!r}: Core ML's optimisation cannot be switched off")
    thread_count(NAME, options)  # Core ML picks its threads by itself
    units = options.extra.get("units")
    if units not in (None, "all"):
        raise LoadError(f"backend {NAME!r}: units is all, or left out, not {units!r}")
    return options.extra.get("function", ""), _ALL if units else _UNITS[options.device]


def _compiled(package: Package, tools: Any) -> Path:
    """Return the compiled form of a package, which is kept by content, system and version."""
    source = package_folder(package.path)
    digest = hashlib.sha256(f"{_system()} {tools.__version__}".encode())
    files = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
    for file in files:
        digest.update(f"\0{file.relative_to(source.parent).parts[1:]}\0".encode())
        with file.open("rb") as stream:
            digest.update(sha256_of(stream))
    folder = writable_folder("coreml")
    kept = folder / f"{digest.hexdigest()}.mlmodelc"
    if not kept.is_dir():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch, "model.mlmodelc")
            tools.models.utils.compile_model(str(source), str(made))
            try:
                made.rename(kept)
            except OSError:
                if not kept.is_dir():  # another process was faster
                    raise
    return kept


@dataclass(frozen=True, slots=True)
class _Planned:
    """What Core ML's compute plan says.

    Attributes:
        note: for people.
        kinds: types of operations there are.
        placement: where they run; None where there is no plan, or every unit is as good.
    """

    note: str
    kinds: set[str]
    placement: Placement | None = None


def _planned(compiled: Path, units: str, package: Package, function: str | None) -> _Planned:
    """Say on which unit Core ML means to run how many operations."""
    kinds: set[str] = set()
    counts: Counter[str] = Counter()
    elsewhere: list[Elsewhere] = []
    wanted = next((k for k, name in _UNITS.items() if name == units and k != "cpu"), None)
    try:
        tools = import_coremltools()
        from coremltools.models.compute_plan import MLComputePlan

        plan = MLComputePlan.load_from_path(str(compiled), getattr(tools.ComputeUnit, units))
        block = plan.model_structure.program.functions[function or package.default].block
        for operation in block.operations:
            kinds.add(operation.operator_name)
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            if usage is None:
                continue
            kind = _kind(usage.preferred_compute_device) or "cpu"
            counts[kind] += 1
            if wanted is not None and kind != wanted:
                elsewhere.append(_elsewhere(operation, usage, kind, wanted))
    except Exception as error:
        return _Planned(f"Core ML gives no compute plan: {one_line(error)}", kinds)
    parts = [f"{n} on {_PLACES[kind]}" for kind, n in counts.most_common()]
    summary = f"operations as Core ML plans them: {', '.join(parts) or 'none'}"
    slow = Counter(e.kind for e in elsewhere if e.unit == _PLACES["cpu"])
    if slow:
        summary += f" ({', '.join(f'{n} {name}' for name, n in slow.most_common())})"
    placed = None
    if wanted is not None:
        by = "Core ML's compute plan"
        placed = Placement(_PLACES[wanted], counts.total(), tuple(elsewhere), by)
    return _Planned(summary, kinds, placed)


def _elsewhere(operation: Any, usage: Any, kind: str, wanted: str) -> Elsewhere:
    outputs = getattr(operation, "outputs", None) or ()
    name = str(getattr(outputs[0], "name", "")) if outputs else ""
    able = {_kind(device) for device in getattr(usage, "supported_compute_devices", None) or ()}
    reason = f"Core ML prefers it to {_PLACES[wanted]}"
    if able and wanted not in able:
        reason = f"{_PLACES[wanted]} does not support it"
    return Elsewhere(name, str(operation.operator_name), _PLACES[kind], reason)


class CoreMLExecutable(Copying):
    """A compiled package; runs of several threads wait for each other.

    Attributes:
        notes: where its operations run, for the session's report.
        kept: inputs of the model that the package keeps as states.
    """

    def __init__(
        self,
        model: Any,
        inputs: tuple[FeaturePort, ...],
        outputs: tuple[FeaturePort, ...],
        memories: Memories,
        artifact: Artifact,
        notes: tuple[str, ...],
        placed: Placement | None = None,
    ) -> None:
        self._placed = placed
        self.inputs = artifact.inputs or tuple(port.spec for port in inputs)
        self.outputs = artifact.outputs or tuple(port.spec for port in outputs)
        self.kept = tuple(m.input.name for m in memories.every)
        self._memories = memories
        self.notes = notes
        self._model = model
        self._inputs = inputs
        self._outputs = outputs
        self._dtypes = {s.name: array_type(s.dtype) for s in (*self.inputs, *self.outputs)}
        self._lock = threading.Lock()

    def placement(self) -> Placement | None:
        """Say where the operations run; None on the CPU."""
        return self._placed

    def make_state(self) -> Any:
        """Return a new state of the model.

        Raises:
            RunError: Core ML cannot make one here.
            ClosedError: after ``close``.
        """
        with self._lock:
            model = self._opened()
            try:
                return model.make_state()
            except Exception as error:
                raise RunError(f"Core ML failed: {one_line(error)}") from error

    def load_state(self, state: Any, feeds: Feeds) -> dict[str, Array]:
        """Replace the states that are fed; return the other feeds.

        Raises:
            RunError: Core ML refuses one.
        """
        try:
            return self._memories.write(feeds, state.write_state)
        except Exception as error:
            raise RunError(f"Core ML refuses a state: {one_line(error)}") from error

    def run(self, feeds: Feeds, state: Any = None) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Args:
            feeds: an array for each input, with the states that the model has as inputs; without
                them where a ``state`` is given.
            state: from ``make_state``.

        Raises:
            RunError: Core ML failed, or an input does not fit.
            ClosedError: after ``close``.
        """
        with self._lock:
            model = self._opened()
            if state is not None or not self._memories.every:
                return self._computed(model, feeds, state)
            return self._remembered(model, feeds)

    def _computed(self, model: Any, feeds: Feeds, state: Any) -> dict[str, Array]:
        given = self._given(feeds)
        try:
            results = model.predict(given) if state is None else model.predict(given, state)
        except Exception as error:
            raise RunError(f"Core ML failed: {one_line(error)}") from error
        return {p.spec.name: self._taken(p, results) for p in self._outputs}

    def _remembered(self, model: Any, feeds: Feeds) -> dict[str, Array]:
        """Run from the states that are fed, and give out what has become of them."""
        check_feeds(self.inputs, self._dtypes, feeds)
        try:
            state = model.make_state()
        except Exception as error:
            raise RunError(f"Core ML failed: {one_line(error)}") from error
        rest = self.load_state(state, feeds)
        results = self._computed(model, rest, state)
        results |= self._memories.read(state.read_state)
        return {spec.name: results[spec.name] for spec in self.outputs}

    def close(self) -> None:
        """Free the model; a run under way ends first."""
        with self._lock:
            self._model = None

    def _opened(self) -> Any:
        if self._model is None:
            raise ClosedError(f"backend {NAME!r}: used after close()")
        return self._model

    def _given(self, feeds: Feeds) -> dict[str, Any]:
        check_feeds([port.spec for port in self._inputs], self._dtypes, feeds)
        given = {}
        for port in self._inputs:
            held = np.ascontiguousarray(port.to_package(feeds[port.spec.name]))
            given[port.feature.name] = _picture(held, port) if port.feature.image else held
        return given

    @staticmethod
    def _taken(port: FeaturePort, results: Mapping[str, Any]) -> Array:
        if port.feature.name not in results:
            raise RunError(f"Core ML gave no output {port.feature.name!r}, only {sorted(results)}")
        return np.array(port.to_model(results[port.feature.name]), order="C")


def _picture(array: Array, port: FeaturePort) -> Any:
    """Return the image that Core ML takes in place of an array."""
    from PIL import Image

    if port.feature.image == "F":
        return Image.fromarray(array[0, 0].astype(np.float32))
    pixels = np.clip(np.round(array[0]), 0, 255).astype(np.uint8)
    if len(pixels) == 1:
        return Image.fromarray(pixels[0])
    planes = pixels[::-1] if port.feature.image == "BGR" else pixels
    return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))
