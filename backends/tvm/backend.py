"""TVM: libraries of machine code, made by edgeinfer's converter for one instruction set.

Only TVM's small runtime is loaded, never its compiler. A library over fixed shapes is one function
that takes the caller's arrays as they lie; one with open sizes is a program of TVM's virtual
machine, which allocates its outputs and serves one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Lock, local
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn
from weakref import WeakSet

import numpy as np

from edgeinfer.backends.base import Artifact, Bound, Capabilities, Device, LoadOptions, Probe
from edgeinfer.backends.checks import (
    array_type,
    check_buffers,
    check_device,
    check_file,
    check_signature,
    fits,
    one_line,
    thread_count,
)
from edgeinfer.backends.engines import import_tvm_runtime
from edgeinfer.backends.operators import Operator, OperatorProfile, timed
from edgeinfer.backends.tvm.cuda import Recorded
from edgeinfer.backends.tvm.library import ENTRY, Library, check_machine, map_weights, read, stored
from edgeinfer.backends.tvm.operators import ONE_FUNCTION, profile
from edgeinfer.backends.tvm.trial import check_runs
from edgeinfer.errors import BackendError, ClosedError, LoadError, RunError
from edgeinfer.installed import install, version
from edgeinfer.machine.cpu import usual_name
from edgeinfer.machine.cuda import cuda_devices
from edgeinfer.types import Array, Feeds, TensorSpec

NAME = "tvm"

_DTYPES = frozenset(
    {
        *("bfloat16", "float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    }
)

# Of tvm::runtime::threading::ThreadGroup: fast cores first.
_BIG = 1
# Of DLPack.
_CPU, _CUDA = 1, 2
_POOLED = 2

_threads = local()


class TvmBackend:
    """Runs libraries that edgeinfer made with TVM."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for the runtime, and for NVIDIA devices."""
        return self._found("cuda")

    def probe_cpu(self) -> Probe:
        """Look for the runtime alone; NVIDIA's driver is not started."""
        return self._found("cpu")

    def _found(self, wanted: str) -> Probe:
        """Look for the runtime; for a load on the CPU NVIDIA's driver is not started."""
        try:
            runtime = import_tvm_runtime()
            runtime.get_global_func("runtime.config_threadpool")
            found = version("apache-tvm", "tvm")
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError)
            reason = "not installed" if missing else f"cannot be used: {one_line(error)}"
            return Probe(NAME, None, reason=f"{NAME} {reason}; {install('tvm')}")
        has_cuda = runtime.get_global_func("ffi.Module.load_from_bytes.cuda", allow_missing=True)
        gpus = cuda_devices() if has_cuda and wanted != "cpu" else ()
        return Probe(NAME, found, (*gpus, Device("cpu", usual_name())))

    def capabilities(self) -> Capabilities:
        """Libraries with fixed or open sizes; arrays are used where they lie."""
        return Capabilities(formats=frozenset({"tvm"}), dtypes=_DTYPES)

    def load(self, artifact: Artifact, options: LoadOptions) -> TvmExecutable:
        """Open a library.

        Raises:
            NotAvailableError: the runtime or the device is not here.
            LoadError: the file is no library for this CPU, ends its process, or an option is
                unknown.
        """
        probe = self._found(options.device)
        check_device(probe, options.device, "needs an NVIDIA driver")
        threads = thread_count(NAME, options)
        trial = _trial(options)
        path = check_file(NAME, artifact, ("tvm",))
        about = read(path)
        if about.kind in ("regions", "functions"):
            what = "operators for ONNX Runtime" if about.kind == "regions" else "no model"
            raise LoadError(f"tvm refuses {path}: it holds {what}")
        check_machine(path, about)
        if about.device != options.device:
            raise LoadError(
                f"tvm refuses {path}: it is for a {about.device}, not a {options.device}"
            )
        inputs, outputs = about.inputs, about.outputs
        for spec in (*inputs, *outputs):
            if spec.dtype not in _DTYPES:
                raise LoadError(f"tvm refuses {path}: {spec.name!r} has elements {spec.dtype}")
        order: tuple[tuple[int, ...], tuple[int, ...]]
        order = (tuple(range(len(inputs))), tuple(range(len(outputs))))
        if artifact.inputs or artifact.outputs:
            order = tuple(  # type: ignore[assignment]  # two of them
                check_signature(NAME, kind, wanted, [{s.name: s.dtype} for s in found])
                for kind, wanted, found in (
                    ("input", artifact.inputs, inputs),
                    ("output", artifact.outputs, outputs),
                )
            )
            inputs, outputs = artifact.inputs, artifact.outputs
        if trial:
            check_runs(path, str(probe.version), artifact.digest)
        run = _open(path, about, threads if about.parallel else 0)
        return TvmExecutable(run, about, inputs, outputs, order)

    def profile(
        self, artifact: Artifact, options: LoadOptions, feeds: Feeds, *, runs: int
    ) -> OperatorProfile:
        """Time the functions of a program; of a library that is one function, say so.

        Raises:
            NotAvailableError: the runtime or the device is not here.
            LoadError: as ``load``.
            RunError: it fails.
        """
        executable = self.load(artifact, options)
        try:
            return executable.profile(feeds, runs=runs)
        finally:
            executable.close()


def _trial(options: LoadOptions) -> bool:
    if unknown := sorted(options.extra.keys() - {"trial"}):
        raise LoadError(f"tvm: unknown options {', '.join(unknown)}; there is trial")
    value = options.extra.get("trial", "on")
    if value not in ("on", "off"):
        raise LoadError(f"tvm: option trial: expected on or off, received {value!r}")
    return value == "on"


class _Direct:
    """One function over fixed shapes; any number of threads may call it."""

    def __init__(self, function: Any, weights: list[Any], threads: int) -> None:
        self.function, self.weights, self.threads = function, weights, threads

    def run(self, inputs: list[Any], outputs: list[Any]) -> None:
        """Run on tensors."""
        if self.threads:
            _use_threads(self.threads)
        self.function(*inputs, *outputs, *self.weights)

    def bound(self, inputs: list[Any], outputs: list[Any]) -> Callable[[], object]:
        """Return a call on fixed tensors."""
        call: Callable[[], object] = partial(self.function, *inputs, *outputs, *self.weights)
        if not self.threads:
            return call

        def parallel() -> None:
            _use_threads(self.threads)
            call()

        return parallel


class _Machine:
    """A program of TVM's virtual machine; one thread at a time."""

    def __init__(self, module: Any, threads: int, on_gpu: bool) -> None:
        self.module, self.function = module, module["main"]
        self.threads, self.on_gpu = threads, on_gpu
        self.lock = Lock()

    def run(self, inputs: list[Any]) -> list[Array]:
        """Run on tensors; the arrays are the runtime's memory, which lives as long as they do."""
        with self.lock:
            if self.threads:
                _use_threads(self.threads)
            if self.on_gpu:
                inputs = [_to_gpu(t) for t in inputs]
            made = self.function(*inputs)
            return [_to_host(t) if self.on_gpu else np.from_dlpack(t) for t in made]


_Opened = _Direct | _Machine | Recorded


def _use_threads(count: int) -> None:
    """Have parallel loops of this thread run on so many; the runtime has a pool for each thread."""
    if getattr(_threads, "count", 0) != count:
        runtime = import_tvm_runtime()
        runtime.get_global_func("runtime.config_threadpool")(_BIG, count)
        _threads.count = count


def _to_gpu(tensor: Any) -> Any:
    runtime = import_tvm_runtime()
    allocate = runtime.get_global_func("runtime.TVMTensorAllocWithScope")
    made = allocate(runtime.Shape(tensor.shape), tensor.dtype, runtime.Device("cuda", 0), None)
    runtime.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, made)
    return made


def _to_host(tensor: Any) -> Array:
    runtime = import_tvm_runtime()
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    runtime.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, runtime.from_dlpack(array))
    return array


def _open(path: Path, about: Library, threads: int) -> _Opened:
    runtime = import_tvm_runtime()
    try:
        # The loader takes a name without a folder for one to look for elsewhere.
        module = runtime.load_module(str(path.absolute()))
        if about.kind == "direct" and about.device == "gpu":
            return Recorded(module[ENTRY], about, map_weights(path, about))
        if about.kind == "direct":
            weights = [_tensor(w) for w in map_weights(path, about)]
            return _Direct(module[ENTRY], weights, threads)
        machine = module["vm_load_executable"]()
        on_gpu = about.device == "gpu"
        devices = [_CUDA, 0, _POOLED, _CPU, 0, _POOLED] if on_gpu else [_CPU, 0, _POOLED]
        machine["vm_initialization"](*devices)
        return _Machine(machine, threads, on_gpu)
    except Exception as error:
        raise LoadError(f"tvm refuses {path}: {one_line(error)}") from error


class _Writable:
    """Memory as if it could be written, which DLPack asks for; kernels only read inputs."""

    def __init__(self, array: Array) -> None:
        self.kept = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _tensor(array: Array) -> Any:
    """Wrap an array's memory; of one without elements there is none, and NumPy tells no strides."""
    if not array.size:
        runtime = import_tvm_runtime()
        allocate = runtime.get_global_func("runtime.TVMTensorAllocWithScope")
        kind, here = runtime.dtype(array.dtype.name), runtime.Device("cpu", 0)
        return allocate(runtime.Shape(array.shape), kind, here, None)
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return _wrapper()(array)


def _bits(array: Array) -> Any:
    """Wrap an array's memory as its elements' bits, where NumPy's own types lack them."""
    return _tensor(array.view(stored(array.dtype.name)))


@cache
def _wrapper() -> Callable[[Array], Any]:
    # Looking for the module takes longer than a small model.
    wrap: Callable[[Array], Any] = import_tvm_runtime().from_dlpack
    return wrap


def _failed(error: Exception) -> RunError:
    """Say what ended a run; the machine holds sizes that it counts against what they may be."""
    if "match_cast" not in str(error):
        return RunError(f"tvm failed: {one_line(error)}")
    return RunError(
        "tvm: these inputs need an impossible size (fewer elements than none, more than "
        f"an axis has, or sizes that do not fit each other): {one_line(error)}"
    )


def _closed(*_: object) -> NoReturn:
    raise ClosedError(f"backend {NAME!r}: used after close()")


class TvmExecutable:
    """A loaded library.

    Attributes:
        is_threadless: whether it runs on the calling thread alone, without TVM's pool.
    """

    def __init__(
        self,
        opened: _Opened,
        about: Library,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        order: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._opened: _Opened | None = opened
        self.is_threadless = not (isinstance(opened, _Direct | _Machine) and opened.threads)
        self._about = about
        self._types = {s.name: array_type(s.dtype) for s in (*inputs, *outputs)}
        has_brain = any(s.dtype == "bfloat16" for s in (*inputs, *outputs))
        self._tensor = _bits if has_brain else _tensor
        self._bounds: WeakSet[TvmBound] = WeakSet()
        # The library's order, by the names of the description.
        self._ins = _in_order(inputs, order[0])
        self._outs = _in_order(outputs, order[1])
        self._names = {s.name for s in inputs}
        self._plain = [
            (s.name, self._types[s.name], _fixed(s, own))
            for s, own in zip(self._ins, about.inputs, strict=True)
        ]
        # A result that is declared as open may have one size all the same.
        self._made = [
            (s.name, own.shape, self._types[s.name])
            for s, own in zip(self._outs, about.outputs, strict=True)
        ]
        self._given = tuple(s.name for s in outputs)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: the library refused the inputs, or failed.
            ClosedError: after ``close``.
        """
        opened = self._opened
        if opened is None:
            _closed()
        arrays = self._arrays(feeds)
        try:
            if isinstance(opened, _Machine):
                results = opened.run([self._tensor(array) for array in arrays])
                made = {
                    s.name: a.view(self._types[s.name]) if s.dtype == "bfloat16" else a
                    for s, a in zip(self._outs, results, strict=True)
                }
            else:
                made = {name: np.empty(shape, kind) for name, shape, kind in self._made}  # type: ignore[arg-type]
                if isinstance(opened, Recorded):
                    opened.run(arrays, list(made.values()))
                else:
                    outputs = [self._tensor(a) for a in made.values()]
                    opened.run([self._tensor(array) for array in arrays], outputs)
        except BackendError:
            raise
        except Exception as error:
            raise _failed(error) from error
        return {name: made[name] for name in self._given}

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers of all inputs and outputs; they are used where they lie.

        Raises:
            RunError: a buffer cannot be used in place.
            ClosedError: after ``close``.
        """
        opened = self._opened
        if opened is None:
            _closed()
        ins = check_buffers("input", self.inputs, inputs, self._types)
        outs = check_buffers("output", self.outputs, outputs, self._types)
        _check_sizes(self._about.inputs, self._ins, ins)
        _check_sizes(self._about.outputs, self._outs, outs)
        call: Callable[[], object]
        if isinstance(opened, Recorded):
            call = opened.bound(
                [ins[s.name] for s in self._ins], [outs[s.name] for s in self._outs]
            )
            bound = TvmBound(call, ins, outs)
            self._bounds.add(bound)
            return bound
        tensors = [self._tensor(ins[s.name]) for s in self._ins]
        if isinstance(opened, _Machine):
            buffers = [
                (s.name, outs[s.name].view(stored(outs[s.name].dtype.name))) for s in self._outs
            ]
            call = partial(_run_and_copy, opened, tensors, buffers)
        else:
            call = opened.bound(tensors, [self._tensor(outs[s.name]) for s in self._outs])
        bound = TvmBound(call, ins, outs)
        self._bounds.add(bound)
        return bound

    @property
    def recorded(self) -> Recorded | None:
        """The CUDA graph that a run replays; None if it is none."""
        return self._opened if isinstance(self._opened, Recorded) else None

    def profile(self, feeds: Feeds, *, runs: int) -> OperatorProfile:
        """Run with TVM's instrument, which stays set: close the executable afterwards."""
        opened, unit = self._opened, self._about.device

        def run() -> object:
            return self.run(feeds)

        if isinstance(opened, _Machine):
            return profile(opened.module, run, unit, runs=runs)
        run()
        from statistics import median

        us = median(timed(run, runs))
        whole = Operator(ENTRY, "library", unit, None)
        return OperatorProfile("", (whole,), runs, us, us, ONE_FUNCTION)

    def close(self) -> None:
        """Let go of the library, also of what was bound; a run under way ends first."""
        opened, self._opened = self._opened, None
        for bound in list(self._bounds):
            bound.release()
        if isinstance(opened, Recorded):
            opened.close()

    def _arrays(self, feeds: Feeds) -> list[Array]:
        """Return the inputs in the library's order."""
        if feeds.keys() != self._names:
            raise RunError(f"run: expected inputs {sorted(self._names)}, received {list(feeds)}")
        found: list[Array] = []
        for name, kind, shape in self._plain:
            array = feeds[name]
            # Most calls: small models take less time than a closer look.
            if array.shape != shape or array.dtype != kind or not array.flags.c_contiguous:
                return self._looked_at(feeds)
            found.append(array)
        return found

    def _looked_at(self, feeds: Feeds) -> list[Array]:
        found: list[Array] = []
        for spec, own in zip(self._ins, self._about.inputs, strict=True):
            array = feeds[spec.name]
            if array.dtype != self._types[spec.name]:
                raise RunError(
                    f"run: input {spec.name!r}: expected {spec.dtype}, received {array.dtype}"
                )
            for wanted in (spec, own):
                if wanted.shape is not None and not fits(wanted.shape, array.shape):
                    raise RunError(
                        f"run: input {spec.name!r}: expected {wanted}, received shape {array.shape}"
                    )
            found.append(np.ascontiguousarray(array).reshape(array.shape))
        return found


def _fixed(*specs: TensorSpec) -> tuple[int, ...] | None:
    """The one shape that some specifications of a tensor allow; None if there are several."""
    shapes = [s.shape for s in specs]
    if any(shape is None or shape != shapes[0] for shape in shapes):
        return None
    found = tuple(d for d in shapes[0] or () if isinstance(d, int))
    return found if len(found) == len(shapes[0] or ()) else None


def _in_order(specs: tuple[TensorSpec, ...], order: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    indices = sorted(range(len(order)), key=order.__getitem__)
    return tuple(specs[i] for i in indices)


def _check_sizes(
    own: tuple[TensorSpec, ...], specs: tuple[TensorSpec, ...], arrays: dict[str, Array]
) -> None:
    for spec, wanted in zip(specs, own, strict=True):
        shape = arrays[spec.name].shape
        if wanted.shape is not None and not fits(wanted.shape, shape):
            raise RunError(f"bind: {spec.name!r}: expected {wanted}, received shape {shape}")


def _run_and_copy(machine: _Machine, inputs: list[Any], outputs: list[tuple[str, Array]]) -> None:
    for (name, buffer), result in zip(outputs, machine.run(inputs), strict=True):
        if result.shape != buffer.shape:
            raise RunError(
                f"bind: output {name!r}: the buffer has shape {buffer.shape}, "
                f"the result {result.shape}"
            )
        np.copyto(buffer, result)


class TvmBound:
    """A library with its buffers fixed; one thread at a time."""

    __slots__ = ("__weakref__", "_call", "inputs", "outputs")

    def __init__(
        self, call: Callable[[], object], inputs: dict[str, Array], outputs: dict[str, Array]
    ) -> None:
        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        self._call = call

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        try:
            self._call()
        except BackendError:
            raise
        except Exception as error:
            raise _failed(error) from error

    def release(self) -> None:
        """Let go of the library; a later call raises ``ClosedError``."""
        self._call = _closed
