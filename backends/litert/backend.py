"""LiteRT: ``tflite`` files on CPUs, and on GPUs and NPUs by delegates.

An interpreter serves one thread at a time and keeps the sizes of its last inputs; its ``invoke``
releases the GIL, making one and allocating its tensors does not (ai-edge-litert 2.3.0).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np

from edgeinfer.backends.base import (
    Artifact,
    Bound,
    Capabilities,
    Coverage,
    Device,
    LoadOptions,
    Probe,
)
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
from edgeinfer.backends.engines import import_litert
from edgeinfer.backends.litert.apart import Workers, started
from edgeinfer.backends.litert.delegates import delegates_here, library_of
from edgeinfer.backends.litert.signatures import Signatures
from edgeinfer.backends.litert.stored import note, stored_of, to_floats, to_integers
from edgeinfer.backends.litert.trial import InterpreterOpening, check_runs, open_interpreter
from edgeinfer.errors import BackendError, ClosedError, InputError, LoadError, RunError
from edgeinfer.installed import install, version
from edgeinfer.types import Array, Feeds, Stored, TensorSpec

if TYPE_CHECKING:
    # What runs each operator is asked about few files.
    from edgeinfer.backends.operators import Operator, OperatorProfile, Placement

T = TypeVar("T")

NAME = "litert"
SIGNATURE = "serving_default"
"""The signature that is run; another one if it is the only one."""

_DTYPES = frozenset(
    {
        *("bfloat16", "float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    }
)

_SMALL = 4096
"""Bytes of a result up to which a copy takes less than what shows it in place."""

_STATEFUL = frozenset({"VAR_HANDLE", "HASHTABLE"})
"""Operators whose state outlives a run and cannot be reset."""


class LitertBackend:
    """Runs ``.tflite`` files with LiteRT, or with its predecessor tflite-runtime."""

    name: ClassVar[str] = NAME

    def probe(self) -> Probe:
        """Look for the engine and for delegates of this machine."""
        found = self.probe_cpu()
        if not found.available:
            return found
        return replace(found, devices=(*delegates_here(), *found.devices))

    def probe_cpu(self) -> Probe:
        """Look for the engine alone; to look for delegates starts other programs."""
        try:
            import_litert()
            found = _version()
        except Exception as error:  # a broken installation may raise anything; it is the reason
            missing = isinstance(error, ModuleNotFoundError) and "litert" in (error.name or "")
            reason = "not installed" if missing else f"cannot be used: {one_line(error)}"
            return Probe(NAME, None, reason=f"{NAME} {reason}; {install('litert')}")
        return Probe(NAME, found, (Device("cpu", "any"),))

    def capabilities(self) -> Capabilities:
        """Dynamic shapes and concurrent runs; buffers are copied into the engine's own."""
        return Capabilities(frozenset({"tflite"}), _DTYPES, zero_copy=False, forks=True)

    def load(self, artifact: Artifact, options: LoadOptions) -> LitertExecutable:
        """Open a ``.tflite`` file.

        Raises:
            NotAvailableError: the engine or the device is not here.
            LoadError: the engine refuses the file or an option, or the file ends its process.
        """
        here = self.probe_cpu() if options.device == "cpu" else self.probe()
        check_device(here, options.device, "needs the vendor's delegate library")
        path = str(check_file(NAME, artifact, ("tflite",)))
        opening, trial = _opening(path, options)
        with open(path, "rb") as file:
            if file.read(8)[4:] != b"TFL3":
                raise LoadError(f"litert refuses {path}: it is no .tflite file")
        if trial:
            check_runs(opening, _version(), artifact.digest)
        interpreter, ready, workers = _opened(opening)
        signatures = _signatures(interpreter)
        ports = _ports(interpreter, path)
        ins, outs = (
            _matched(kind, wanted, found, described=bool(artifact.inputs or artifact.outputs))
            for kind, wanted, found in zip(
                ("input", "output"), (artifact.inputs, artifact.outputs), ports, strict=True
            )
        )
        if signatures and not artifact.inputs:
            ins = tuple(_with_open_sizes(port, signatures) for port in ins)
            outs = tuple(_Port(_without_sizes(port.spec), port.index) for port in outs)
        runner = _Runner(interpreter, ready, ins, signatures, workers)
        return LitertExecutable(opening, runner, ins, outs)

    def profile(
        self, artifact: Artifact, options: LoadOptions, feeds: Feeds, *, runs: int
    ) -> OperatorProfile:
        """List the operators and what runs each; the engine tells no times. Raises as ``load``."""
        from edgeinfer.backends.litert.coverage import profile

        return profile(self.load(artifact, options), feeds, runs)


def _version() -> str:
    for package in ("ai-edge-litert", "tflite-runtime"):
        if found := version(package, package.replace("-", "_")):
            return found
    return "unknown"


def _opening(path: str, options: LoadOptions) -> tuple[InterpreterOpening, bool]:
    """Read the options; the second value is whether a file never seen before is tried."""
    extra = dict(options.extra)
    xnnpack = _switch(extra, "xnnpack", default=options.optimize)
    if xnnpack and not options.optimize:
        raise LoadError("litert: optimize=False switches XNNPACK off; xnnpack=on contradicts it")
    trial = _switch(extra, "trial", default=True)
    name = extra.pop("delegate", "")
    prefix = "delegate."
    given = {k.removeprefix(prefix): v for k, v in extra.items() if k.startswith(prefix)}
    if unknown := sorted(k for k in extra if not k.startswith(prefix)):
        raise LoadError(
            f"litert: unknown options {', '.join(unknown)}; there are xnnpack, trial, delegate "
            "and delegate.KEY"
        )
    if given and not name:
        raise LoadError("litert: options of a delegate, but no delegate is named")
    delegate = library_of(name, options.device)
    return InterpreterOpening(path, thread_count(NAME, options), xnnpack, delegate, given), trial


def _switch(extra: dict[str, str], key: str, *, default: bool) -> bool:
    value = extra.pop(key, "on" if default else "off")
    if value not in ("on", "off"):
        raise LoadError(f"litert: option {key}: expected on or off, received {value!r}")
    return value == "on"


def _opened(opening: InterpreterOpening) -> tuple[Any, bool, Workers | None]:
    try:
        with started(NAME) as workers:
            return *open_interpreter(opening), workers()
    except Exception as error:  # the engine's own exceptions, of any kind
        text = one_line(error)
        custom = re.search(r"unresolved custom op: ([^\s.]+)", text)
        if custom:
            text = f"it needs the custom operator {custom[1]!r}"
        raise LoadError(f"litert refuses {opening.path}: {text}") from error


class _Port:
    """One input or output and its tensor in the engine."""

    __slots__ = ("dtype", "held", "index", "name", "spec", "stored")

    def __init__(self, spec: TensorSpec, index: int, stored: Stored | None = None) -> None:
        self.spec, self.index = spec, index
        self.name = spec.name
        self.dtype = array_type(spec.dtype)
        self.held = stored
        # Integers of the file stay what they are for a caller that asks for integers.
        self.stored = stored if spec.dtype == "float32" else None

    def taken(self, array: Array) -> Array:
        """What the engine's tensor takes for an array."""
        return array if self.stored is None else to_integers(self.name, array, self.stored)

    def given(self, array: Array) -> Array:
        """What an array of the engine's tensor means."""
        return array if self.stored is None else to_floats(array, self.stored)

    def check(self, array: Array) -> None:
        """Refuse an array of another type or shape."""
        if array.dtype != self.dtype:
            raise RunError(
                f"run: input {self.name!r}: expected {self.spec.dtype}, received {array.dtype}"
            )
        if self.spec.shape is not None and not fits(self.spec.shape, array.shape):
            raise RunError(
                f"run: input {self.name!r}: expected {self.spec}, received shape {array.shape}"
            )


def _ports(interpreter: Any, path: str) -> tuple[list[_Port], list[_Port]]:
    """Describe inputs and outputs: names of the signature, or of the tensors without one."""
    ins, outs = interpreter.get_input_details(), interpreter.get_output_details()
    signatures = interpreter._get_full_signature_list()
    if not signatures:
        return _described(path, _by_name(ins), ins), _described(path, _by_name(outs), outs)
    key = SIGNATURE if SIGNATURE in signatures else next(iter(signatures))
    if len(signatures) > 1 and key != SIGNATURE:
        raise LoadError(f"litert: {path} has signatures {sorted(signatures)}, none {SIGNATURE!r}")
    names = signatures[key]
    if not {d["index"] for d in outs} >= set(names["outputs"].values()):
        raise LoadError(f"litert: signature {key!r} of {path} is not of the main graph")
    return _described(path, names["inputs"], ins), _described(path, names["outputs"], outs)


def _signatures(interpreter: Any) -> Signatures | None:
    """The same model at other sizes, where the file has it."""
    # tflite-runtime of old knows no signatures.
    listed: Mapping[str, Any] = getattr(interpreter, "get_signature_list", dict)()
    return Signatures(interpreter, SIGNATURE) if SIGNATURE in listed else None


def _with_open_sizes(port: _Port, signatures: Signatures) -> _Port:
    shape = port.spec.shape
    opened = shape if shape is None else signatures.open(port.name, shape)
    return _Port(replace(port.spec, shape=opened), port.index)


def _without_sizes(spec: TensorSpec) -> TensorSpec:
    shape = spec.shape
    return replace(spec, shape=None if shape is None else (None,) * len(shape))


def _by_name(details: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {detail["name"]: detail["index"] for detail in details}


def _described(
    path: str, names: Mapping[str, int], details: Iterable[Mapping[str, Any]]
) -> list[_Port]:
    """Pair names with tensors, in the order of the file's tensors."""
    ports: list[_Port] = []
    for detail in details:
        # An output may go by several names.
        for name in (n for n, index in names.items() if index == detail["index"]):
            dtype = np.dtype(detail["dtype"]).name
            if dtype not in _DTYPES:
                raise LoadError(f"litert refuses {path}: {name!r} has elements {dtype}")
            sizes = detail.get("shape_signature", detail["shape"])
            dims = tuple(None if s < 0 else int(s) for s in sizes)
            port = _Port(TensorSpec(name, dtype, dims), int(detail["index"]), stored_of(detail))
            if all(port.name != p.name for p in ports):
                ports.append(port)
    return ports


def _matched(
    kind: str, wanted: tuple[TensorSpec, ...], found: list[_Port], *, described: bool
) -> tuple[_Port, ...]:
    """Return the tensors in the order of the description."""
    if not described:
        return tuple(found)
    asked = {spec.name: spec.dtype for spec in wanted}
    # Floats may be stored as integers.
    kinds = [
        {p.name: "float32" if p.held and asked.get(p.name) == "float32" else p.spec.dtype}
        for p in found
    ]
    order = check_signature(NAME, kind, wanted, kinds)
    return tuple(
        _Port(s, found[i].index, found[i].held) for s, i in zip(wanted, order, strict=True)
    )


def _closed(*_: object) -> NoReturn:
    raise ClosedError(f"backend {NAME!r}: used after close()")


def _operators(interpreter: Any) -> list[str]:
    """Name the operators; to describe them with their tensors takes as long as to load some."""
    engine = getattr(interpreter, "_interpreter", None)
    if engine is None or not hasattr(engine, "NodeName"):
        return []
    return [engine.NodeName(index) for index in range(engine.NumNodes())]


class _Runner:
    """An interpreter and the sizes it was allocated for; one thread at a time.

    Attributes:
        shapes: Shapes of the inputs that its tensors are allocated for; empty before that.
    """

    __slots__ = ("_results", "_signatures", "_workers", "interpreter", "keeps_state", "shapes")

    def __init__(
        self,
        interpreter: Any,
        ready: bool,
        inputs: tuple[_Port, ...],
        signatures: Signatures | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.interpreter = interpreter
        self._workers = workers
        self._signatures = signatures
        self._results: dict[str, Array] | None = None
        details = {d["index"]: tuple(d["shape"]) for d in interpreter.get_input_details()}
        self.shapes = [details[port.index] for port in inputs] if ready else []
        self.keeps_state = not _STATEFUL.isdisjoint(_operators(interpreter))

    @property
    def is_ready(self) -> bool:
        """Whether tensors are allocated."""
        return bool(self.shapes)

    def invoke(self, inputs: tuple[_Port, ...], arrays: list[Array]) -> None:
        """Run once; results stay in the engine's tensors until the next run."""
        engine = self.interpreter
        if self._workers is not None:
            self._workers.look()
        if self._signatures:
            engine.reset_all_variables()
            pairs = zip(inputs, arrays, strict=True)
            feeds = {port.name: port.taken(array) for port, array in pairs}
            self._results = None
            self._results = self._signatures.run(feeds)
            return
        shapes = [array.shape for array in arrays]
        if shapes != self.shapes:
            # Nothing is known of the tensors until all are allocated again.
            self.shapes = []
            for port, shape in zip(inputs, shapes, strict=True):
                engine.resize_tensor_input(port.index, shape)
            engine.allocate_tensors()
            self.shapes = shapes
        # Fused recurrent operators carry their state over to the next run otherwise.
        engine.reset_all_variables()
        for port, array in zip(inputs, arrays, strict=True):
            engine.set_tensor(port.index, port.taken(array))
        engine.invoke()

    def copy(self, port: _Port) -> Array:
        """Return a result in memory of its own."""
        # A result of rank 0 is given as a number.
        if self._results is not None:
            return np.asarray(port.given(self._results[port.name]))
        try:
            array: Array = np.asarray(port.given(self.interpreter.get_tensor(port.index)))
        except ValueError:
            # Results without elements may have no memory at all.
            shape = self._shape(port)
            if all(shape):
                raise
            return np.empty(shape, port.dtype)
        return array

    def _shape(self, port: _Port) -> tuple[int, ...]:
        if self._results is not None:
            return self._results[port.name].shape
        details = self.interpreter.get_output_details()
        return next(tuple(map(int, d["shape"])) for d in details if d["index"] == port.index)

    def _view(self, port: _Port, size: int) -> Array:
        """Show a result; a small one is copied, which is quicker than to show it."""
        if not size:
            # Without elements it may have no memory to view.
            return np.empty(self._shape(port))
        if size <= _SMALL:
            return np.asarray(self.interpreter.get_tensor(port.index))
        view: Array = self.interpreter.tensor(port.index)()
        return view

    def store(self, port: _Port, buffer: Array) -> None:
        """Copy a result into a buffer, which must have its shape."""
        # A view must be gone before the next run, so it stays inside this function.
        if self._results is not None:
            view = self._results[port.name]
        else:
            view = self._view(port, buffer.nbytes)
        if view.shape != buffer.shape:
            raise RunError(
                f"bind: output {port.name!r}: the buffer has shape {buffer.shape}, "
                f"the result {view.shape}"
            )
        np.copyto(buffer, port.given(view))


class LitertExecutable:
    """A loaded file; each thread that runs at the same time gets an interpreter of its own."""

    def __init__(
        self,
        opening: InterpreterOpening,
        runner: _Runner,
        tensors: tuple[_Port, ...],
        results: tuple[_Port, ...],
    ) -> None:
        self.inputs = tuple(port.spec for port in tensors)
        self.outputs = tuple(port.spec for port in results)
        self.notes = tuple(
            note(port.name, port.stored, ports is tensors)
            for ports in (tensors, results)
            for port in ports
            if port.stored
        )
        self._opening: InterpreterOpening | None = opening
        self._tensors = tensors
        self._results = results
        self._idle: deque[_Runner] = deque([runner])
        self._bounds: WeakSet[LitertBound] = WeakSet()

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run once; outputs are owned by the caller.

        Raises:
            RunError: the engine failed.
            ClosedError: after ``close``.
        """
        runner = self._runner()
        try:
            arrays = self._arrays(feeds, runner.shapes)
        except (RunError, InputError):
            self._give_back(runner)
            raise
        # One that failed is not used again.
        with _engine_errors():
            runner.invoke(self._tensors, arrays)
            results = {port.name: runner.copy(port) for port in self._results}
        self._give_back(runner)
        return results

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        """Fix the buffers of all inputs and outputs; each call copies them in and out.

        Raises:
            RunError: a buffer cannot be used.
            ClosedError: after ``close``.
        """
        if self._opening is None:
            _closed()
        types = {port.name: port.dtype for port in (*self._tensors, *self._results)}
        ins = check_buffers("input", self.inputs, inputs, types)
        outs = check_buffers("output", self.outputs, outputs, types)
        bound = LitertBound(self._new, self._runner(), self._tensors, self._results, ins, outs)
        self._bounds.add(bound)
        return bound

    def coverage(self) -> Coverage | None:
        """Say which operators the delegate takes, at the sizes of the last run."""
        from edgeinfer.backends.litert.coverage import coverage

        opening = self._opening
        if opening is None or not (opening.xnnpack or opening.delegate):
            return None
        return self._look(coverage)

    def operators(self) -> list[Operator]:
        """Say what runs each operator, at the sizes of the last run."""
        from edgeinfer.backends.litert.coverage import operators

        return self._look(lambda engine, unit: list(operators(engine, unit))) or []

    def placement(self) -> Placement | None:
        """Say what a delegate of another unit leaves to the CPU; None where there is none."""
        from edgeinfer.backends.litert.coverage import placement

        if self._opening is None or not self._opening.delegate:
            return None
        return self._look(placement)

    def _look(self, at: Callable[[Any, str], T]) -> T | None:
        from edgeinfer.backends.litert.coverage import KERNELS

        opening = self._opening
        if opening is None:
            _closed()
        runner = self._runner()
        unit = opening.delegate or ("XNNPACK" if opening.xnnpack else KERNELS)
        found = at(runner.interpreter, unit) if runner.is_ready else None
        self._give_back(runner)
        return found

    def close(self) -> None:
        """Free the engine's memory, also of what was bound; a run under way ends first."""
        self._opening = None
        self._idle.clear()
        for bound in list(self._bounds):
            bound.release()

    def _arrays(self, feeds: Feeds, known: list[tuple[int, ...]]) -> list[Array]:
        """Return the inputs in order; shapes that are known to fit are not looked at again."""
        try:
            arrays = [feeds[port.name] for port in self._tensors]
        except KeyError:
            arrays = []
        if len(feeds) != len(self._tensors) or len(arrays) != len(feeds):
            names = [spec.name for spec in self.inputs]
            raise RunError(f"run: expected inputs {names}, received {list(feeds)}")
        is_known = [array.shape for array in arrays] == known
        for port, array in zip(self._tensors, arrays, strict=True):
            if not is_known or array.dtype is not port.dtype:
                port.check(array)
        return arrays

    def _runner(self) -> _Runner:
        """Return an interpreter that no other thread uses."""
        if self._opening is None:
            _closed()
        try:
            return self._idle.pop()
        except IndexError:
            return self._new()

    def _new(self) -> _Runner:
        opening = self._opening
        if opening is None:
            _closed()
        interpreter, ready, workers = _opened(opening)
        return _Runner(interpreter, ready, self._tensors, _signatures(interpreter), workers)

    def _give_back(self, runner: _Runner) -> None:
        if not runner.keeps_state:
            self._idle.append(runner)
        if self._opening is None:
            self._idle.clear()


class LitertBound:
    """A loaded file with its buffers fixed; one thread at a time."""

    def __init__(
        self,
        renew: Callable[[], _Runner],
        runner: _Runner,
        tensors: tuple[_Port, ...],
        results: tuple[_Port, ...],
        inputs: dict[str, Array],
        outputs: dict[str, Array],
    ) -> None:
        self.inputs: Feeds = MappingProxyType(inputs)
        self.outputs: Feeds = MappingProxyType(outputs)
        self._renew = renew
        self._runner: _Runner | None = runner
        self._tensors = tensors
        self._arrays = [inputs[port.name] for port in tensors]
        self._buffers = [(port, outputs[port.name]) for port in results]
        self._is_closed = False

    def __call__(self) -> None:
        """Run once over the bound buffers."""
        if self._is_closed:
            _closed()
        runner = self._runner or self._renew()
        # One that failed, or that cannot forget, is not used again.
        self._runner = None
        with _engine_errors():
            runner.invoke(self._tensors, self._arrays)
            for port, buffer in self._buffers:
                runner.store(port, buffer)
        if not runner.keeps_state and not self._is_closed:
            self._runner = runner

    def release(self) -> None:
        """Let go of the interpreter; a later call raises ``ClosedError``."""
        self._is_closed = True
        self._runner = None


class _engine_errors:  # noqa: N801  (reads as a statement)
    """Turn whatever the engine raises into ``RunError``; cheaper than a generator."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, (BackendError, InputError)):
            raise RunError(f"litert failed: {one_line(error)}") from error
