"""ONNX Runtime: ``onnx`` on the CPU, or on an NVIDIA GPU where that is requested."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from weakref import WeakSet

import numpy as np

from edgeinfer.backends.base import Artifact, Bound, Capabilities, Device, LoadOptions, Probe
from edgeinfer.backends.checks import (
    array_type,
    check_buffers,
    check_device,
    check_file,
    check_signature,
    one_line,
    thread_count,
)
from edgeinfer.backends.device_tensor import DeviceFeeds
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime.sums import precise_entries
from edgeinfer.bundle.memory import is_in_memory
from edgeinfer.errors import BackendError, ClosedError, LoadError, NotAvailableError, RunError
from edgeinfer.installed import install
from edgeinfer.machine.cpu import usual_name
from edgeinfer.types import Array, Feeds, TensorSpec

if TYPE_CHECKING:
    # A load on the CPU has no need of what an NVIDIA device takes, nor of regions.
    from edgeinfer.backends.onnxruntime.cuda import CudaBound
    from edgeinfer.backends.operators import OperatorProfile, Placement

NAME = "onnxruntime"

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

WITH_REGIONS = "onnx_tvm"
"""Format of an ONNX graph with a library of operators next to it: see ``regions``."""

_FORMATS = frozenset({"onnx", WITH_REGIONS})
_TOLD = ("tf32",)

# The engine's log goes to stderr; what matters of it is in the exception already.
_LOG_FATAL = 4

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(string)": "string",
    "tensor(bool)": "bool",
} | {
    f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

_SIGN_FAULT = "does not match y_zero_point type"
"""ONNX Runtime 1.32 on x86-64 makes signed activations unsigned, and then refuses those that its
transpose optimiser has duplicated; set to leave them signed, it takes the same file."""

_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}
"""Left to itself ONNX Runtime 1.32 rounds the other operand of a product with 4-bit weights in
blocks (``DequantizeLinear`` before ``MatMul``) to 8 bits, an error of half a percent."""

# Values of onnx.TensorProto.DataType, which ONNX fixes forever; needs no onnx here.
BFLOAT16 = 16


class OnnxRuntimeBackend:
    """Runs ONNX models with ONNX Runtime."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for the engine, and for an NVIDIA device when its build has CUDA."""
        return self._found("cuda")

    def probe_cpu(self) -> Probe:
        """Look for the engine alone; NVIDIA's driver is not started."""
        return self._found("cpu")

    def _found(self, wanted: str) -> Probe:
        """Look for the engine; for a load on the CPU NVIDIA's driver is not started."""
        try:
            onnxruntime = import_onnxruntime()

            version = str(onnxruntime.__version__)
            has_cuda = _CUDA in onnxruntime.get_available_providers()
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == NAME
            reason = "not installed" if missing else f"cannot be imported: {one_line(error)}"
            return Probe(NAME, None, reason=f"{NAME} {reason}; {install('onnxruntime')}")
        gpus: tuple[Device, ...] = ()
        if has_cuda and wanted != "cpu":
            from edgeinfer.machine.cuda import cuda_devices

            gpus = cuda_devices()
        cpu = Device("cpu", usual_name())
        return Probe(NAME, version, (*gpus, cpu))

    def capabilities(self) -> Capabilities:
        """ONNX with dynamic shapes; runs are concurrent and bound buffers are used in place."""
        return Capabilities(formats=_FORMATS, dtypes=frozenset(_DTYPES.values()), forks=True)

    def load(self, artifact: Artifact, options: LoadOptions) -> OnnxRuntimeExecutable:
        """Open an ONNX model; weights in other files lie next to it.

        Raises:
            NotAvailableError: the engine or the device is not here.
            LoadError: the engine refuses the model or an option.
        """
        here = self._found(options.device)
        check_device(here, options.device, "needs an NVIDIA driver and onnxruntime-gpu")
        path = check_file(NAME, artifact, _FORMATS, _TOLD)
        if options.device == "gpu":
            from edgeinfer.machine.cuda import check_bf16

            check_bf16(NAME, artifact.precision)
        options = _told(artifact, options)
        pooled = options.pooled and options.device == "cpu" and _can_pool()
        options = replace(options, pooled=pooled)
        try:
            session = _open_session(str(path), options, regions=artifact.format == WITH_REGIONS)
        except LoadError as error:
            # The file itself is whole; only kernels are missing.
            lacks = "NOT_IMPLEMENTED" in str(error) and options.device == "cpu"
            if not lacks or "bf16" not in artifact.precision.split("+"):
                raise
            raise NotAvailableError(
                f"backend {NAME!r}: the file is computed in bf16, for which the CPU provider has "
                "no kernels: it needs an NVIDIA GPU; take a variant in fp16 or fp32"
            ) from error
        inputs, outputs = specs(session)
        if artifact.inputs or artifact.outputs:
            check_signature(NAME, "input", artifact.inputs, [{s.name: s.dtype} for s in inputs])
            check_signature(NAME, "output", artifact.outputs, [{s.name: s.dtype} for s in outputs])
            inputs, outputs = artifact.inputs, artifact.outputs
        executable = OnnxRuntimeExecutable(session, inputs, outputs)
        executable.pooled = pooled
        return executable

    def profile(
        self, artifact: Artifact, options: LoadOptions, feeds: Feeds, *, runs: int
    ) -> OperatorProfile:
        """Time each operator with the engine's profiler; its files are read and removed.

        Raises:
            NotAvailableError: the engine or the device is not here.
            LoadError: the engine refuses the model or an option.
            RunError: it fails.
        """
        from edgeinfer.backends.onnxruntime.operators import plain
        from edgeinfer.backends.onnxruntime.operators import profile as profile_session
        from edgeinfer.bundle.scratch import Scratch

        here = self._found(options.device)
        check_device(here, options.device, "needs an NVIDIA driver and onnxruntime-gpu")
        path = str(check_file(NAME, artifact, _FORMATS, _TOLD))
        regions = artifact.format == WITH_REGIONS
        options = _told(artifact, options)
        if options.device == "gpu":
            # A recorded run is one step to the engine.
            from edgeinfer.backends.onnxruntime.cuda import GRAPH_OPTION

            options = replace(options, extra={GRAPH_OPTION: "0", **options.extra})
        plain_us = plain(_open_session(path, options, regions=regions), feeds, runs)
        with Scratch() as folder:
            session = _open_session(path, options, profiles=str(folder), regions=regions)
            timed = profile_session(session, feeds, runs=runs, plain_us=plain_us)
        if not regions:
            return timed
        from edgeinfer.backends.onnxruntime.regions import with_nodes

        return with_nodes(timed, Path(path))


_HALVES = ("fp16", "bf16")


def _told(artifact: Artifact, options: LoadOptions) -> LoadOptions:
    """Return the options by which the engine computes in floats of fewer bits.

    Without TF32 its convolutions use no tensor core for halves either (1.31: it strikes all such
    plans of cuDNN), 1.04 to 1.29 times as slow on an H200. A file of nothing but halves has no
    product in single precision that TF32 could round.

    Raises:
        NotAvailableError: the device does not.
    """
    computed_in = artifact.computed_in
    if options.device == "gpu" and not computed_in and artifact.precision in _HALVES:
        return replace(options, precise=False)
    if not computed_in:
        return options
    if options.device != "gpu":
        raise NotAvailableError(
            f"backend {NAME!r}: the file is to be computed in {computed_in}, which it does on "
            "NVIDIA's GPUs alone; take a variant in fp32"
        )
    from edgeinfer.machine.cuda import check_tf32

    check_tf32(NAME)
    return replace(options, precise=False)


def _open_session(
    path: str, options: LoadOptions, *, profiles: str = "", regions: bool = False
) -> Any:
    """Open a session, with its profile written to a folder where one is named.

    With ``regions``, operators of the graph are in a library next to it.

    Raises:
        NotAvailableError: the provider is not here.
        LoadError: the engine refuses the model or an option; where that is for operators that
            the device does not take, each is named.
    """
    onnxruntime = import_onnxruntime()

    trial = False
    if regions:
        from edgeinfer.backends.onnxruntime.regions import register, without_trial

        trial, options = without_trial(options)
    config, provider = _split_extra(options)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = _LOG_FATAL
    # What runs at once shares one pool; each caller's own thread is one of it.
    settings.intra_op_num_threads = max(1, thread_count(NAME, options) // options.callers)
    settings.inter_op_num_threads = 1
    # With patterns, memory is planned anew and kept for each input shape that was ever seen.
    settings.enable_mem_pattern = False
    if not options.optimize:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profiles:
        settings.enable_profiling = True
        settings.profile_file_prefix = f"{profiles}/profile"
    if options.pooled:
        from edgeinfer.backends.onnxruntime.pool import use_pool

        use_pool(settings)
    for key, value in {**_EXACT, **config}.items():
        settings.add_session_config_entry(key, value)
    if regions:
        register(settings, Path(path), options.device, trial, str(onnxruntime.__version__))
    wanted = _CUDA if options.device == "gpu" else _CPU
    try:
        session = _session(path, settings, wanted, provider)
    except Exception as error:
        from edgeinfer.backends.onnxruntime.operators import is_for_fallback

        why = _left_out(path, options) if is_for_fallback(error) else ""
        why = why or one_line(error)
        raise LoadError(f"onnxruntime refuses {path}: {why}") from error
    got = session.get_providers()
    if got[0] != wanted:
        raise NotAvailableError(f"onnxruntime offers {', '.join(got)} here instead of {wanted}")
    return session


def _can_pool() -> bool:
    from edgeinfer.backends.onnxruntime.pool import can_pool

    return can_pool()


def _left_out(path: str, options: LoadOptions) -> str:
    """Name the operators that the device does not take; empty where it takes none at all."""
    from edgeinfer.backends.onnxruntime.operators import placement

    try:
        session = _open_session(path, replace(options, fallback=True))
    except NotAvailableError:
        return ""
    return str(placement(session, (_CUDA,)) or "")


def _session(path: str, settings: Any, wanted: str, provider: dict[str, str]) -> Any:
    """Open a session; on a GPU one whose runs can be recorded, where the model allows it."""
    onnxruntime = import_onnxruntime()

    source: str | bytes = path
    if is_in_memory(Path(path)):
        from edgeinfer.backends.onnxruntime.regions import LIBRARY
        from edgeinfer.bundle.memory import companions

        if kept := {n: data for n, data in companions(Path(path)).items() if n != LIBRARY}:
            # The engine takes no links for weights in other files.
            source = Path(path).read_bytes()
            settings.add_external_initializers_from_files_in_memory(
                [*kept], [*kept.values()], [len(data) for data in kept.values()]
            )

    def open_with(options: dict[str, str]) -> Any:
        return onnxruntime.InferenceSession(
            source, settings, providers=[(wanted, options)], enable_fallback=0
        )

    if wanted != _CUDA:
        try:
            return open_with(provider)
        except Exception as error:
            if _SIGN_FAULT not in str(error):
                raise
            settings.add_session_config_entry("session.qdqisint8allowed", "1")
            return open_with(provider)
    from edgeinfer.backends.onnxruntime.cuda import GRAPH_OPTION, graph_refused, load_libraries

    load_libraries()
    if GRAPH_OPTION in provider:
        return open_with(provider)
    try:
        return open_with({GRAPH_OPTION: "1", **provider})
    except Exception as error:
        if not graph_refused(error):
            raise
        # Control flow, for one, decides on the CPU what comes next.
        return open_with(provider)


def _split_extra(options: LoadOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Return session entries and provider options: ours, then the caller's on top.

    A key with a dot is a session entry of the engine, one without is an option of the provider.
    """
    config = {
        "session.intra_op.allow_spinning": "1" if options.spinning else "0",
        "session.inter_op.allow_spinning": "0",
    }
    provider: dict[str, str] = {}
    if options.precise:
        config.update(precise_entries(import_onnxruntime()))
        config["mlas.enable_gemm_fastmath_arm64_bfloat16"] = "0"
    if options.device == "gpu":
        from edgeinfer.backends.onnxruntime.operators import CPU_REFUSED_OPTION, RECORD_OPTION

        config[CPU_REFUSED_OPTION] = "0" if options.fallback else "1"
        config[RECORD_OPTION] = "1"
        provider["use_tf32"] = "0" if options.precise else "1"
    for key, value in options.extra.items():
        (config if "." in key else provider)[key] = value
    return config, provider


def on_gpu(provider: str) -> bool:
    """Whether a provider's tensors lie on an NVIDIA device."""
    return provider == _CUDA or "tensorrt" in provider.lower()


def specs(session: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Describe the inputs and outputs of an engine's session.

    Raises:
        LoadError: one has an element type that no array holds.
    """
    inputs = tuple(_spec("input", arg) for arg in session.get_inputs())
    return inputs, tuple(_spec("output", arg) for arg in session.get_outputs())


def _spec(kind: str, arg: Any) -> TensorSpec:
    dtype = _DTYPES.get(arg.type)
    if dtype is None:
        raise LoadError(f"backend {NAME!r}: {kind} {arg.name!r} is {arg.type}, which has no array")
    return TensorSpec(arg.name, dtype, tuple(d if d != "" else None for d in arg.shape))


def _raw(session: Any, method: str) -> Callable[..., Any]:
    """Return the engine's native method, or the public one of the same name and arguments.

    onnxruntime 1.32's public wrapper adds 2 µs of checks to each run, all made before by us.
    """
    public: Callable[..., Any] = getattr(session, method)
    native = getattr(getattr(session, "_sess", None), method, None)
    return native if callable(native) else public


def _closed(*_: object) -> NoReturn:
    raise ClosedError(f"backend {NAME!r}: used after close()")


class OnnxRuntimeExecutable:
    """A loaded ONNX model.

    Attributes:
        notes: for the session's report.
        wanted: providers of the device that was requested; empty for the CPU's own.
        pooled: whether runs take their memory from the common store.
    """

    def __init__(
        self, session: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        onnxruntime = import_onnxruntime()

        self.inputs = inputs
        self.outputs = outputs
        self.notes: tuple[str, ...] = ()
        self.pooled = False
        self._session = session
        self._arity = len(inputs)
        self._names = [spec.name for spec in outputs]
        self._dtypes = {s.name: array_type(s.dtype) for s in (*inputs, *outputs)}
        self._bounds: WeakSet[OnnxRuntimeBound | CudaBound] = WeakSet()
        self._settings = onnxruntime.RunOptions()
        self._settings.log_severity_level = _LOG_FATAL
        provider = session.get_providers()[0]
        self._on_gpu = on_gpu(provider)
        self.wanted: tuple[str, ...] = (provider,) if self._on_gpu else ()
        # Only this provider keeps recorded runs apart by their buffers.
        self._records = provider == _CUDA
        if self._records:
            from edgeinfer.backends.onnxruntime.cuda import plain_run_options

            plain_run_options(self._settings)
        self._run: Callable[..., list[Array]] = _raw(session, "run")
        if any(spec.dtype == "bfloat16" for spec in (*inputs, *outputs)):
            self._run = _ValueRun(session, inputs, self._dtypes)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: the engine failed.
            ClosedError: after ``close``.
        """
        # The engine itself names an input too many; one that is missing would reach its kernels.
        if len(feeds) != self._arity:
            self._refuse(feeds)
        if type(feeds) is not dict:
            if isinstance(feeds, DeviceFeeds):
                return self._run_there(feeds)
            feeds = dict(feeds)
        names = self._names
        try:
            return dict(zip(names, self._run(names, feeds, self._settings), strict=True))
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"onnxruntime failed: {one_line(error)}") from error

    @property
    def takes_device_tensors(self) -> bool:
        """Whether tensors on the device are read and given where they are."""
        return self._on_gpu

    def _run_there(self, feeds: DeviceFeeds) -> dict[str, Any]:
        """Run once on tensors of the device; results stay there, for the caller to take."""
        if self._session is None:
            _closed()
        if not self._on_gpu:
            raise RunError("run: an input lies on an NVIDIA device, the engine runs on the CPU")
        try:
            from edgeinfer.backends.onnxruntime.cuda import run_there

            return run_there(self._session, self._settings, feeds, self._names)
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"onnxruntime failed: {one_line(error)}") from error

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers of all inputs and outputs; the engine reads and writes them in place.

        On a GPU they may be ``DeviceTensor``.

        Raises:
            RunError: a buffer cannot be used in place.
            ClosedError: after ``close``.
        """
        if self._session is None:
            _closed()
        there = self._on_gpu
        ins = check_buffers("input", self.inputs, inputs, self._dtypes, there=there)
        outs = check_buffers("output", self.outputs, outputs, self._dtypes, there=there)
        bound: OnnxRuntimeBound | CudaBound
        try:
            if there:
                from edgeinfer.backends.onnxruntime.cuda import CudaBound

                bound = CudaBound(self._session, ins, outs, record=self._records)
            else:
                bound = OnnxRuntimeBound(self._session, self._settings, ins, outs)
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"onnxruntime cannot bind: {one_line(error)}") from error
        self._bounds.add(bound)
        return bound

    def placement(self) -> Placement | None:
        """Say which operators the wanted providers took; None where the CPU's own is wanted."""
        if not (self.wanted and self._session):
            return None
        from edgeinfer.backends.onnxruntime.operators import placement

        return placement(self._session, self.wanted)

    def close(self) -> None:
        """Free the engine's memory, also of what was bound; a run under way ends first."""
        self._run = _closed
        self._session = None
        for bound in list(self._bounds):
            bound.release()

    def _refuse(self, feeds: Feeds) -> None:
        if self._session is None:
            _closed()
        names = [spec.name for spec in self.inputs]
        raise RunError(f"run: expected inputs {names}, received {list(feeds)}")


def bind_host(bind: Callable[..., None], name: str, array: Array) -> None:
    """Bind an array where it is.

    Args:
        bind: the engine's method for an input or an output.
        name: Name of the tensor.
        array: C-contiguous.
    """
    element = BFLOAT16 if array.dtype.name == "bfloat16" else array.dtype.type
    bind(name, "cpu", 0, element, array.shape, array.ctypes.data)


class OnnxRuntimeBound:
    """An ONNX model with its buffers fixed; one thread at a time."""

    __slots__ = ("__weakref__", "_binding", "_run", "_settings", "inputs", "outputs")

    def __init__(
        self, session: Any, settings: Any, inputs: dict[str, Array], outputs: dict[str, Array]
    ) -> None:
        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        self._settings = settings
        binding = session.io_binding()
        for name, array in inputs.items():
            bind_host(binding.bind_input, name, array)
        for name, array in outputs.items():
            bind_host(binding.bind_output, name, array)
        self._run = _raw(session, "run_with_iobinding")
        public = self._run == session.run_with_iobinding
        self._binding = binding if public else binding._iobinding

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        try:
            self._run(self._binding, self._settings)
        except BackendError:
            raise
        except Exception as error:
            raise RunError(f"onnxruntime failed: {one_line(error)}") from error

    def release(self) -> None:
        """Let go of the engine's session; a later call raises ``ClosedError``."""
        self._run = _closed
        self._binding = None


class _ValueRun:
    """Runs a model with bfloat16 tensors, which the engine's plain call does not take."""

    def __init__(
        self, session: Any, inputs: tuple[TensorSpec, ...], dtypes: dict[str, np.dtype[Any]]
    ) -> None:
        self._session = session
        self._inputs = inputs
        self._dtypes = dtypes

    def __call__(self, names: list[str], feeds: dict[str, Array], settings: Any) -> list[Array]:
        values_of = import_onnxruntime().OrtValue

        values = {}
        for spec in self._inputs:
            array = np.ascontiguousarray(feeds[spec.name]).reshape(feeds[spec.name].shape)
            if array.dtype != self._dtypes[spec.name]:
                raise RunError(
                    f"run: input {spec.name!r}: expected {spec.dtype}, received {array.dtype}"
                )
            values[spec.name] = (
                values_of.ortvalue_from_numpy_with_onnx_type(array, BFLOAT16)
                if spec.dtype == "bfloat16"
                else values_of.ortvalue_from_numpy(array)
            )
        results = self._session.run_with_ort_values(names, values, settings)
        return [self._array(name, value) for name, value in zip(names, results, strict=True)]

    def _array(self, name: str, value: Any) -> Array:
        dtype = self._dtypes[name]
        if value.data_type() != "tensor(bfloat16)":
            return np.array(value.numpy())
        shape = tuple(value.shape())
        raw = ctypes.string_at(value.data_ptr(), int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(bytearray(raw), dtype).reshape(shape)
