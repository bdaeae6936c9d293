"""OpenVINO: ``openvino_ir`` and ``onnx`` on Intel's and other CPUs, Intel GPUs and NPUs.

Known limits of the CPU plugin, all of openvino 2026.4.1: int64 and uint64 tensors are computed in
32 bits (larger input values are refused here), float64 in float32, and string tensors corrupt the
process's memory (models with one are refused).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn
from weakref import WeakSet

from edgeinfer import forks
from edgeinfer.backends.base import (
    Artifact,
    Bound,
    Capabilities,
    Device,
    DeviceKind,
    LoadOptions,
    Probe,
)
from edgeinfer.backends.checks import (
    check_buffers,
    check_device,
    check_file,
    check_signature,
    one_line,
    thread_count,
)
from edgeinfer.backends.engines import import_openvino
from edgeinfer.backends.openvino import floats
from edgeinfer.backends.openvino.operators import COUNTERS, placement, profile
from edgeinfer.backends.openvino.ports import BoundPort, SqueezedPort
from edgeinfer.backends.openvino.running import infer_by, may_fail
from edgeinfer.backends.operators import OperatorProfile, Placement
from edgeinfer.bounded import parse_json
from edgeinfer.bundle.values import FINITE, integer_bounds
from edgeinfer.errors import BackendError, ClosedError, LoadError, RunError
from edgeinfer.installed import install
from edgeinfer.types import Array, Dim, Feeds, TensorSpec

NAME = "openvino"

_READERS = {"openvino_ir": "ir", "onnx": "onnx"}

_KINDS: dict[str, DeviceKind] = {"CPU": "cpu", "GPU": "gpu", "NPU": "npu"}

_DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "boolean": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
}

SQUEEZED = ("edgeinfer", "squeezed_outputs")
"""Where a model says from which outputs every axis of size 1 is still to be removed: the engine
cannot hold a result whose rank follows from the sizes."""

BOUNDS = ("edgeinfer", "integers")
"""Where a model says between which values its integer inputs are computed right."""


class OpenVinoBackend:
    """Runs OpenVINO IR and ONNX models with OpenVINO."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for the engine and ask it for its devices."""
        return self._found(_names)

    def probe_cpu(self) -> Probe:
        """Look for the engine alone; no plugin of another unit is loaded."""
        return self._found(lambda _: ["CPU"])

    def _found(self, names: Callable[[Any], list[str]]) -> Probe:
        """Look for the engine, and describe the devices of these names.

        To ask for all of them loads the plugins of GPUs and NPUs, and on a machine with a card of
        anybody its OpenCL driver: 120 MB and 0.2 s, for a load on the CPU.
        """
        try:
            core = _core()
            version = str(import_openvino().__version__).split("-", 1)[0]
            devices = tuple(_device(core, name) for name in names(core))
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == NAME
            reason = "not installed" if missing else f"cannot be used: {one_line(error)}"
            return Probe(NAME, None, reason=f"{NAME} {reason}; {install('openvino')}")
        ranked = tuple(sorted(devices, key=lambda d: ("gpu", "npu", "cpu").index(d.kind)))
        return Probe(NAME, version, ranked, "" if ranked else "the engine finds no device")

    def capabilities(self) -> Capabilities:
        """Dynamic shapes, concurrent runs, bound buffers used in place."""
        return Capabilities(
            formats=frozenset(_READERS),
            dtypes=frozenset(_DTYPES.values()),
            # Relu, Clip, Max and others make a number of NaN.
            unprepared_inputs=FINITE,
        )

    def load(self, artifact: Artifact, options: LoadOptions) -> OpenVinoExecutable:
        """Open an IR (``.xml`` with its ``.bin`` next to it) or an ONNX model.

        Raises:
            NotAvailableError: the engine or the device is not here.
            LoadError: the engine refuses the model or an option.
        """
        here = self.probe_cpu() if options.device == "cpu" else self.probe()
        check_device(here, options.device, "needs the vendor's driver")
        path = check_file(NAME, artifact, _READERS, tuple(floats.HINTS))
        if not options.optimize:
            raise LoadError("openvino cannot switch its graph optimisation off; use onnxruntime")
        model = _read(path, artifact.format)
        device, placed = _placed(model, options)
        squeezed, bounds = _squeezed(model), _bounds(model)
        # Compiling merges tensors and their names, so names are looked up before it.
        inputs = _specs("input", model.inputs, artifact, artifact.inputs)
        outputs = _specs("output", model.outputs, artifact, artifact.outputs)
        kind = floats.wanted(model, artifact.computed_in)
        asked = floats.config_of(_core(), kind, device)
        try:
            config = _config(options) | asked | options.extra
            compiled = _core().compile_model(model, device, config)
        except Exception as error:
            raise LoadError(f"openvino refuses {path}: {_reason(error)}") from error
        floats.check(kind, compiled)
        return OpenVinoExecutable(
            compiled,
            tuple(
                BoundPort(spec, compiled.inputs[index], bounds.get(spec.name, ()))
                for spec, index in inputs
            ),
            tuple(
                _port(spec, compiled.outputs[index], spec.name in squeezed)
                for spec, index in outputs
            ),
            asynchronous=options.device == "cpu"
            and _threads_a_run(options) == 1
            and may_fail(model),
            placed=placed,
        )

    def profile(
        self, artifact: Artifact, options: LoadOptions, feeds: Feeds, *, runs: int
    ) -> OperatorProfile:
        """Time each step by the engine's counters.

        Raises:
            NotAvailableError: the engine or the device is not here.
            LoadError: the engine refuses the model or an option.
            RunError: it fails.
        """
        counting = replace(options, extra={**COUNTERS, **options.extra})
        plain, counted = self.load(artifact, options), self.load(artifact, counting)
        try:
            return counted.profile(plain, feeds, runs=runs)
        finally:
            plain.close()
            counted.close()


def _placed(model: Any, options: LoadOptions) -> tuple[str, Placement | None]:
    """Return the engine's name of the device, and where a model's operators run on it.

    Raises:
        LoadError: the device does not take some, and they may not run elsewhere; names them.
    """
    device = _device_name(options)
    if options.device == "cpu":
        return device, None
    try:
        found = placement(_core(), model, device)
        if found.elsewhere and options.fallback:
            device = f"HETERO:{device},CPU"
            found = placement(_core(), model, device)
    except Exception as error:
        raise LoadError(f"openvino cannot place the operators: {_reason(error)}") from error
    if found.elsewhere and not options.fallback:
        raise LoadError(f"openvino: {found}")
    return device, found


@cache
def _core() -> Any:
    return forks.owned(import_openvino().Core())


def _names(core: Any) -> list[str]:
    """Return the engine's names of the devices that it can run on.

    Its GPU plugin lists every OpenCL device, and compiles for Intel's alone: on a machine with an
    NVIDIA card it fails at the first model.
    """
    return [
        name
        for name in sorted(core.available_devices)
        if name.split(".")[0] in _KINDS
        and (name.split(".")[0] != "GPU" or "Intel" in core.get_property(name, "FULL_DEVICE_NAME"))
    ]


def _device(core: Any, name: str) -> Device:
    """Describe one device of the engine, e.g. ``GPU.1``."""
    kind, _, index = name.partition(".")
    return Device(_KINDS[kind], str(core.get_property(name, "FULL_DEVICE_NAME")), int(index or 0))


def _device_name(options: LoadOptions) -> str:
    """Return the engine's name of the first device of the kind requested, never ``AUTO``."""
    wanted = options.device.upper()
    if wanted == "CPU":
        return wanted
    return next(n for n in _names(_core()) if n.split(".")[0] == wanted)


def _threads_a_run(options: LoadOptions) -> int:
    return max(1, thread_count(NAME, options) // options.callers)


def _config(options: LoadOptions) -> dict[str, Any]:
    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    threads = thread_count(NAME, options)
    if options.device == "cpu":
        if options.callers > 1:
            config["PERFORMANCE_HINT"] = "THROUGHPUT"
            config["NUM_STREAMS"] = threads // _threads_a_run(options)
        config["INFERENCE_NUM_THREADS"] = threads
        # Pinned threads of two processes end up on the same core; also 1.6 µs slower a call.
        config["ENABLE_CPU_PINNING"] = False
        # Kernels are kept by layer and input shape, 5000 by default: memory grows with every new
        # length (48 different convolutions, 75 lengths: 266 MB; 123 with 512, 100 with 32). 32 hold
        # no length of such a net whole: four in turn took 1.13 of the processor time. 0 is worse,
        # for a cache without bound takes over.
        config["CPU_RUNTIME_CACHE_CAPACITY"] = 512
    if options.precise:
        # By default bf16 with AMX, fp16 on Arm and GPUs, int8 activations for compressed weights.
        config["INFERENCE_PRECISION_HINT"] = "f32"
        config["EXECUTION_MODE_HINT"] = "ACCURACY"
        if options.device == "cpu":
            config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
            config["KV_CACHE_PRECISION"] = "f32"
    return config | options.extra


def _reason(error: BaseException) -> str:
    """Return the engine's message without its stack of source lines."""
    lines = [
        line for line in str(error).splitlines() if line and not line.startswith("Exception from")
    ]
    return one_line(RuntimeError(" ".join(lines)))


def _read(path: Path, format_: str) -> Any:
    """Read a file as the format it is said to be.

    The engine's own choice tries every format it knows and logs each failure to stderr.
    """
    try:
        readers = import_openvino().frontend.FrontEndManager()
        reader = readers.load_by_framework(_READERS[format_])
        model = reader.convert(reader.load(str(path)))
    except Exception as error:
        raise LoadError(f"openvino cannot read {path} as {format_}: {_reason(error)}") from error
    if not model.outputs:
        raise LoadError(f"openvino cannot read {path} as {format_}: there is no output in it")
    return model


def _specs(
    kind: str, ports: Sequence[Any], artifact: Artifact, wanted: tuple[TensorSpec, ...]
) -> tuple[tuple[TensorSpec, int], ...]:
    """Pair each tensor, as described or else as found, with its position in the model."""
    found = [_spec(kind, port) for port in ports]
    if not (artifact.inputs or artifact.outputs):
        return tuple((spec, index) for index, spec in enumerate(found))
    named = [
        dict.fromkeys(port.get_names() or (spec.name,), spec.dtype)
        for spec, port in zip(found, ports, strict=True)
    ]
    return tuple(zip(wanted, check_signature(NAME, kind, wanted, named), strict=True))


def _squeezed(model: Any) -> frozenset[str]:
    """Return the outputs that the model itself leaves unsqueezed."""
    path = [*SQUEEZED]
    if not model.has_rt_info(path):
        return frozenset()
    return frozenset(parse_json(model.get_rt_info(path).astype(str)))


def _bounds(model: Any) -> dict[str, tuple[int, ...]]:
    """Return what the model's integer inputs may hold, where it says so."""
    path = [*BOUNDS]
    return integer_bounds(model.get_rt_info(path).astype(str)) if model.has_rt_info(path) else {}


def _port(spec: TensorSpec, port: Any, squeezed: bool) -> BoundPort:
    if squeezed:
        return SqueezedPort(TensorSpec(spec.name, spec.dtype, None), port)
    return BoundPort(spec, port)


def _spec(kind: str, port: Any) -> TensorSpec:
    name = _name(port)
    dtype = _DTYPES.get(port.element_type.get_type_name())
    if dtype is None:
        raise LoadError(
            f"backend {NAME!r}: {kind} {name!r} has elements {port.element_type}, which it refuses"
        )
    return TensorSpec(name, dtype, _dims(port.partial_shape))


def _name(port: Any) -> str:
    """Return the model's own name of an input or output, which is also its node's.

    A port goes by the names of all tensors that were merged into it, in no order.
    """
    names: set[str] = port.get_names()
    own = str(port.get_node().get_friendly_name()).removesuffix("/sink_port_0")
    return own if own in names else min(names, default=own)


def _dims(shape: Any) -> tuple[Dim, ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple(None if dim.is_dynamic else dim.get_length() for dim in shape)


def _closed(*_: object, **__: object) -> NoReturn:
    raise ClosedError(f"backend {NAME!r}: used after close()")


class OpenVinoExecutable:
    """A compiled model; each thread that runs at the same time gets a request of its own."""

    def __init__(
        self,
        compiled: Any,
        tensors: tuple[BoundPort, ...],
        results: tuple[BoundPort, ...],
        *,
        asynchronous: bool,
        placed: Placement | None = None,
    ) -> None:
        self._placed = placed
        self.inputs = tuple(port.spec for port in tensors)
        self.outputs = tuple(port.spec for port in results)
        self._compiled = compiled
        self._asynchronous = asynchronous
        self._tensors = tensors
        self._results = results
        self._idle: deque[Any] = deque()
        self._bounds: WeakSet[OpenVinoBound] = WeakSet()

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: the engine failed, or an integer input does not fit into 32 bits.
            ClosedError: after ``close``.
        """
        tensors, results = self._tensors, self._results
        request = self._request()
        if len(feeds) != len(tensors) or any(p.name not in feeds for p in tensors):
            names = [spec.name for spec in self.inputs]
            raise RunError(f"run: expected inputs {names}, received {list(feeds)}")
        try:
            # The request does not keep the arrays alive; a copy made by `share` has no other owner.
            shared = [port.share(feeds[port.name]) for port in tensors]
            for port, tensor in zip(tensors, shared, strict=True):
                request.set_tensor(port.port, tensor)
            fresh = [port.fresh(request) for port in results]
            infer_by(request, asynchronous=self._asynchronous)()
            outputs = {
                port.name: port.copy(request) if array is None else array
                for port, array in zip(results, fresh, strict=True)
            }
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"openvino failed: {_reason(error)}") from error
        if self._compiled is not None:
            self._idle.append(request)
        return outputs

    def placement(self) -> Placement | None:
        """Say which operators the device takes; None on the CPU, which takes all."""
        return self._placed

    def profile(self, plain: OpenVinoExecutable, feeds: Feeds, *, runs: int) -> OperatorProfile:
        """Read the counters that this model was compiled with."""
        self.run(feeds)
        request = self._idle[-1]
        return profile(
            lambda: plain.run(feeds),
            lambda: self.run(feeds),
            request,
            self._compiled,
            runs=runs,
            past=1,
        )

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers of all inputs and outputs; the engine reads and writes them in place.

        Raises:
            RunError: a buffer cannot be used in place.
            ClosedError: after ``close``.
        """
        if self._compiled is None:
            _closed()
        types = {port.name: port.dtype for port in (*self._tensors, *self._results)}
        ins = check_buffers("input", self.inputs, inputs, types)
        outs = check_buffers("output", self.outputs, outputs, types)
        bound = OpenVinoBound(
            self._request(new=True),
            self._tensors,
            self._results,
            ins,
            outs,
            asynchronous=self._asynchronous,
        )
        self._bounds.add(bound)
        return bound

    def close(self) -> None:
        """Free the engine's memory, also of what was bound; a run under way ends first."""
        self._compiled = None
        # A port of a result holds on to the graph above it, and so to every weight.
        self._tensors = self._results = ()
        self._idle.clear()
        for bound in list(self._bounds):
            bound.release()

    def _request(self, *, new: bool = False) -> Any:
        """Return a request that no other thread uses."""
        compiled = self._compiled
        if compiled is None:
            _closed()
        try:
            return compiled.create_infer_request() if new else self._idle.pop()
        except IndexError:
            return compiled.create_infer_request()


class OpenVinoBound:
    """A compiled model with its buffers fixed; one thread at a time."""

    __slots__ = ("__weakref__", "_checks", "_infer", "_wide", "inputs", "outputs")

    def __init__(
        self,
        request: Any,
        tensors: tuple[BoundPort, ...],
        results: tuple[BoundPort, ...],
        inputs: dict[str, Array],
        outputs: dict[str, Array],
        *,
        asynchronous: bool,
    ) -> None:
        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        self._wide = tuple((p, inputs[p.name]) for p in tensors if p.bounds)
        self._checks: tuple[tuple[str, Array, Any], ...] = ()
        try:
            for port in tensors:
                request.set_tensor(port.port, port.tensor(inputs[port.name]))
            for port in results:
                port.check_fixed()
                tensor = port.tensor(outputs[port.name])
                request.set_tensor(port.port, tensor)
                if port.port.partial_shape.is_dynamic:
                    self._checks += ((port.name, outputs[port.name], tensor),)
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"openvino cannot bind: {_reason(error)}") from error
        self._infer = infer_by(request, asynchronous=asynchronous)

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        for port, array in self._wide:
            port.check_range(array)
        try:
            self._infer()
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"openvino failed: {_reason(error)}") from error
        for name, array, tensor in self._checks:
            # The engine writes a smaller result into a larger buffer without a word.
            if tuple(tensor.shape) != array.shape:
                raise RunError(
                    f"bind: output {name!r}: the buffer has shape {array.shape}, "
                    f"the result {tuple(tensor.shape)}"
                )

    def release(self) -> None:
        """Let go of the engine's request; a later call raises ``ClosedError``."""
        self._infer = _closed
        self._checks = ()
